"""Places kept for refused clients: who comes back when told to gets in, whoever else came meanwhile.

Without them the clients of a flood, all told the same wait, would come back together and be refused again. A place lets its own client
in whenever it comes; how much others stand back for it is another matter. A newcomer does for those that are due before it would begin,
as far as this tenant's clients do come back with what they were refused: else a flood of ever new prompts would keep everybody out of an
idle engine. Who is refused is told a time behind all of them, so that not everybody comes at once.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from appliance.domain.admission.meters import blend

EARLY_S = 0.25
"""A timer may run a little fast: so much before its time a place is good already."""
COUNTED_S = 1.5
"""`Retry-After` is whole seconds, so a client may be one late, and its way here: beyond that nobody stands back for it."""
KEPT_S = 10.0
"""A client that is so late has given up."""
LONGEST_WAIT_S = 120.0
"""No client is told to wait longer, so no place is kept further ahead."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Good from `due_s` (monotonic) on, once."""

    due_s: float
    number: int
    fingerprint: int
    tokens: float
    rows: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What places are counted as."""

    tokens: float = 0.0
    rows: float = 0.0

    def plus(self, place: Place, sign: int) -> Self:
        """With a place more, or less."""
        return type(self)(max(0.0, self.tokens + sign * place.tokens), self.rows + sign * place.rows)

    @classmethod
    def of(cls, places: Iterable[Place], share: float) -> Self:
        """A share of some places."""
        tokens, rows = 0.0, 0
        for place in places:
            tokens += place.tokens
            rows += place.rows
        return cls(tokens * share, rows * share)


NOTHING_KEPT = Kept()


@dataclass(slots=True)
class Places:
    """Of one tenant in one lane, by the fingerprint of the refused request. Requests that are alike may have several."""

    coming: float = 1.0
    """Of the places whose time came lately, the share whose clients came: a client that asks for something else each time, or does not
    wait, never uses one."""
    _awaited: list[Place] = field(default_factory=list)
    """By time."""
    _late: deque[Place] = field(default_factory=deque)
    """Nobody stands back for these; likewise."""
    _by_fingerprint: dict[int, deque[Place]] = field(default_factory=dict)
    """Both; each by time."""
    _kept: Kept = NOTHING_KEPT
    """Of all that are awaited."""
    _number: int = 0

    def __len__(self) -> int:
        return len(self._awaited) + len(self._late)

    def forfeit(self, now_s: float) -> None:
        """Wait no longer for clients that did not come, and let go of places that are too old."""
        num_late = bisect_left(self._awaited, now_s - COUNTED_S, key=_due_s)
        for place in self._awaited[:num_late]:
            self._late.append(place)
            self._kept = self._kept.plus(place, -1)
            self.coming = blend(self.coming, 0.0)
        del self._awaited[:num_late]
        while self._late and now_s > self._late[0].due_s + KEPT_S:
            self._forget(self._late.popleft())

    def take(self, fingerprint: int, now_s: float) -> bool:
        """Use the request's oldest place, if it has one and its time has come."""
        kept = self._by_fingerprint.get(fingerprint)
        if not kept or kept[0].due_s - EARLY_S > now_s:
            return False
        place = kept[0]
        at = bisect_left(self._awaited, place)
        if at < len(self._awaited) and self._awaited[at] is place:
            del self._awaited[at]
            self._kept = self._kept.plus(place, -1)
        else:
            self._late.remove(place)
        self._forget(place)
        self.coming = blend(self.coming, 1.0)
        return True

    def keep(self, fingerprint: int, wait_s: float, tokens: float, rows: int, now_s: float) -> None:
        """Promise a place after so long; none beyond the longest wait that a client can be told."""
        if wait_s > LONGEST_WAIT_S:
            return
        due_s = now_s + wait_s
        kept = self._by_fingerprint.setdefault(fingerprint, deque())
        due_s = max(due_s, kept[-1].due_s) if kept else due_s
        self._number += 1
        place = Place(due_s, self._number, fingerprint, tokens, rows)
        kept.append(place)
        insort(self._awaited, place)
        self._kept = self._kept.plus(place, 1)

    def due_by(self, due_s: float) -> Kept:
        """What a newcomer stands back for that would begin then: places that are due before, as many of them as clients do come. As of
        the last `forfeit`, as is `all`."""
        last = bisect_left(self._awaited, due_s, key=_due_s)
        return Kept.of(self._awaited[:last], self.coming) if last else NOTHING_KEPT

    @property
    def all(self) -> Kept:
        """What somebody who is told a time stands back for."""
        return self._kept

    def _forget(self, place: Place) -> None:
        """It is the first of its fingerprint's: each list is by time."""
        kept = self._by_fingerprint[place.fingerprint]
        kept.popleft()
        if not kept:
            del self._by_fingerprint[place.fingerprint]


def _due_s(place: Place) -> float:
    return place.due_s
