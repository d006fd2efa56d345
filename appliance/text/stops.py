"""Stop strings in a stream of text."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string; holds back only what may be the beginning of one.

    The stop string that is complete first wins, the longer one of two that end together, so the answer does not
    depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string found; nothing passes after it."""

    def push(self, text: str) -> str:
        """The part of the text so far that is surely wanted and was not returned before."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        num_held = max(_overlap(text, stop) for stop in self._stops)
        cut = len(text) - num_held
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """What was held back, once no text follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper beginning of `stop` that `text` ends with."""
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
