"""Whether a tenant is inside what it was promised: its tokens of the last minute against its tier's `committed_tpm`."""

from dataclasses import dataclass

MINUTE_NS = 60_000_000_000


@dataclass(slots=True)
class MinuteTokens:
    """Tokens of the last 60 seconds: this minute's, and of the one before the part that the window still covers."""

    minute: int = 0
    current: int = 0
    previous: int = 0

    def add(self, tokens: int, now_ns: int) -> None:
        """They came now. Of an earlier minute than the last ones they count into that of the last ones."""
        minute = now_ns // MINUTE_NS
        if minute > self.minute:
            self.previous = self.current if minute == self.minute + 1 else 0
            self.minute, self.current = minute, 0
        self.current += tokens

    def at(self, now_ns: int) -> float:
        """Their number now."""
        passed = now_ns // MINUTE_NS - self.minute
        covered = 1.0 - now_ns % MINUTE_NS / MINUTE_NS
        if passed <= 0:
            return self.current + self.previous * covered
        return self.current * covered if passed == 1 else 0.0
