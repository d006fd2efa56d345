"""How fast counters rise: `rate` and `increase`, extrapolated to the window's borders as Prometheus does it.

Source: `extrapolatedRate` of prometheus/promql/functions.go.
"""

from collections.abc import Sequence
from itertools import pairwise

from appliance.promql.grid import Grid
from appliance.promql.values import Column

NEAR_SAMPLES = 1.1
"""A border that is nearer than so many sample intervals is reached; a farther one gets half an interval."""


class Rates:
    """Rates of many series that were sampled at the same times."""

    def __init__(self, times_ms: Sequence[int], grid: Grid, range_ms: int, *, per_second: bool) -> None:
        self._times_ms = times_ms
        self._grid = grid
        self._range_ms = range_ms
        self._per_second = per_second
        self._windows = grid.windows(times_ms, range_ms)
        self._still: Column = [0.0 if last - first > 1 else None for first, last in self._windows]

    def of(self, values: Sequence[float | None]) -> Column:
        """The rate of a counter at each time of the grid; none where its window holds fewer than two samples."""
        whole = [value for value in values if value is not None]
        if len(whole) == len(values):
            return self._rates(self._times_ms, whole, self._windows, self._still)
        times_ms = [time_ms for time_ms, value in zip(self._times_ms, values, strict=True) if value is not None]
        windows = self._grid.windows(times_ms, self._range_ms)
        return self._rates(times_ms, whole, windows, [0.0 if last - first > 1 else None for first, last in windows])

    def _rates(self, times_ms: Sequence[int], values: Sequence[float], windows: Sequence[tuple[int, int]], still: Column) -> Column:
        risen = _risen(values)
        if not risen or risen[0] == risen[-1]:
            return still
        divisor = self._range_ms / 1000 if self._per_second else 1.0
        return [
            None
            if last - first < 2
            else 0.0
            if (gain := risen[last - 1] - risen[first]) == 0
            else gain * self._stretch(times_ms, time_ms, first, last, values[first] / gain) / divisor
            for time_ms, (first, last) in zip(self._grid.times_ms, windows, strict=True)
        ]

    def _stretch(self, times_ms: Sequence[int], time_ms: int, first: int, last: int, gains_before: float) -> float:
        """By what the gain between first and last sample is multiplied. `gains_before`: the first value, in gains; a counter began at 0,
        so it did not rise for longer before its first sample than it would have taken it to get there."""
        sampled_ms = times_ms[last - 1] - times_ms[first]
        interval_ms = sampled_ms / (last - first - 1)
        to_start_ms: float = times_ms[first] - (time_ms - self._range_ms)
        to_end_ms = time_ms - times_ms[last - 1]
        if gains_before >= 0:
            to_start_ms = min(to_start_ms, sampled_ms * gains_before)
        near_ms = interval_ms * NEAR_SAMPLES
        reached_ms = sum(distance if distance < near_ms else interval_ms / 2 for distance in (to_start_ms, to_end_ms))
        return (sampled_ms + reached_ms) / sampled_ms


def _risen(values: Sequence[float]) -> Sequence[float]:
    """The counter as if it had never begun again."""
    if all(before <= after for before, after in pairwise(values)):
        return values
    lost, risen = 0.0, [values[0]]
    for before, after in pairwise(values):
        lost += before if after < before else 0.0
        risen.append(after + lost)
    return risen
