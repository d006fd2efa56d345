"""Places kept for refused clients: who comes back when told to gets in, whoever else came meanwhile.

Without them the clients of a flood, all told the same wait, would come back together and be refused again.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

EARLY_S = 0.25
"""A timer may run a little fast: so much before its time a place is good already."""
KEPT_S = 10.0
"""A client that is so late has given up."""
LONGEST_WAIT_S = 120.0
"""No client is told to wait longer, so no place is kept further ahead."""


@dataclass(slots=True)
class Place:
    """Good from `due_s` (monotonic) on, once."""

    due_s: float
    tokens: float
    rows: int


@dataclass(slots=True)
class Places:
    """Of one tenant in one lane, by the fingerprint of the refused request. Requests that are alike may have several."""

    tokens: float = 0.0
    """Prompt tokens of all that are kept, as of the last `forfeit`."""
    rows: int = 0
    """Sequences, likewise."""
    _by_fingerprint: dict[int, deque[Place]] = field(default_factory=dict)
    _by_time: list[tuple[float, int, int]] = field(default_factory=list)
    """A heap of due time, number and fingerprint."""
    _number: int = 0

    def forfeit(self, now_s: float) -> None:
        """Let go of those whose clients did not come."""
        while self._by_time and now_s > self._by_time[0][0] + KEPT_S:
            due_s, _, fingerprint = heappop(self._by_time)
            kept = self._by_fingerprint.get(fingerprint)
            while kept and kept[0].due_s <= due_s:
                self._let_go(fingerprint)
                kept = self._by_fingerprint.get(fingerprint)

    def take(self, fingerprint: int, now_s: float) -> bool:
        """Use the request's oldest place, if it has one and its time has come."""
        kept = self._by_fingerprint.get(fingerprint)
        if not kept or kept[0].due_s - EARLY_S > now_s:
            return False
        self._let_go(fingerprint)
        return True

    def keep(self, fingerprint: int, wait_s: float, tokens: float, rows: int, now_s: float) -> None:
        """Promise a place after so long; none beyond the longest wait that a client can be told."""
        if wait_s > LONGEST_WAIT_S:
            return
        due_s = now_s + wait_s
        kept = self._by_fingerprint.setdefault(fingerprint, deque())
        due_s = max(due_s, kept[-1].due_s) if kept else due_s
        kept.append(Place(due_s, tokens, rows))
        self._number += 1
        heappush(self._by_time, (due_s, self._number, fingerprint))
        self.tokens += tokens
        self.rows += rows

    def _let_go(self, fingerprint: int) -> None:
        kept = self._by_fingerprint[fingerprint]
        gone = kept.popleft()
        self.tokens = max(0.0, self.tokens - gone.tokens)
        self.rows -= gone.rows
        if not kept:
            del self._by_fingerprint[fingerprint]
