"""Good and bad requests of one tenant, lane and SLO: since the start, by minute of the last hour, by hour of the last three days."""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

MINUTE_S, HOUR_S = 60, 3_600
WINDOWS_S = {"5m": 300, "1h": 3_600, "6h": 21_600, "3d": 259_200}
"""As the burn-rate alerts look back."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A minute or an hour in which there were requests, and what was counted before it."""

    index: int
    good_before: int
    bad_before: int


def _index_of(span: _Span) -> int:
    return span.index


@dataclass(slots=True)
class Track:
    """Counts of one tenant, lane and SLO."""

    target_s: float
    objective: float
    good: int = 0
    bad: int = 0
    _minutes: deque[_Span] = field(default_factory=lambda: deque(maxlen=WINDOWS_S["1h"] // MINUTE_S + 1))
    _hours: deque[_Span] = field(default_factory=lambda: deque(maxlen=WINDOWS_S["3d"] // HOUR_S + 1))

    def note(self, *, is_good: bool, now_s: float) -> None:
        """Count a request that was judged at `now_s` of a monotonic clock."""
        for spans, width_s in ((self._minutes, MINUTE_S), (self._hours, HOUR_S)):
            index = int(now_s // width_s)
            if not spans or spans[-1].index != index:
                spans.append(_Span(index, self.good, self.bad))
        self.good += is_good
        self.bad += not is_good

    def since(self, window_s: float, now_s: float) -> tuple[int, int]:
        """Good and bad of a window that ends now, to the minute or the hour."""
        spans, width_s = (self._minutes, MINUTE_S) if window_s <= WINDOWS_S["1h"] else (self._hours, HOUR_S)
        place = bisect_right(spans, (now_s - window_s) // width_s, key=_index_of)
        if place == len(spans):
            return 0, 0
        return self.good - spans[place].good_before, self.bad - spans[place].bad_before

    def burn(self, window_s: float, now_s: float) -> float:
        """How many times as fast as allowed the budget is spent; 1 spends exactly all of it."""
        good, bad = self.since(window_s, now_s)
        return bad / (good + bad) / (1 - self.objective) if good + bad else 0.0
