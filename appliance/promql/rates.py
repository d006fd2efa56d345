"""How fast counters rise: `rate` and `increase`, extrapolated to the window's borders as Prometheus does it.

Source: `extrapolatedRate` of prometheus/promql/functions.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from appliance.promql.grid import Grid
from appliance.promql.values import Column

NEAR_SAMPLES = 1.1
"""A border that is nearer than so many sample intervals is reached; a farther one gets half an interval."""


@dataclass(frozen=True, slots=True)
class _Window:
    """Two samples or more; `first` and `last` are the places of the outermost ones."""

    first: int
    last: int
    sampled_ms: int
    to_start_ms: float
    to_end_ms: float
    """From these to the window's borders."""

    def stretch(self, gains_before: float) -> float:
        """By what the gain between first and last sample is multiplied. `gains_before`: the first value, in gains; a counter began at 0,
        so it did not rise for longer before its first sample than it would have taken it to get there."""
        to_start_ms = min(self.to_start_ms, self.sampled_ms * gains_before) if gains_before >= 0 else self.to_start_ms
        interval_ms = self.sampled_ms / (self.last - self.first)
        near_ms = interval_ms * NEAR_SAMPLES
        reached_ms = sum(distance if distance < near_ms else interval_ms / 2 for distance in (to_start_ms, self.to_end_ms))
        return (self.sampled_ms + reached_ms) / self.sampled_ms

    @property
    def enough(self) -> float:
        """From so many gains before the first sample on, the counter's beginning is no bound any more."""
        return self.to_start_ms / self.sampled_ms


type _Bounds = list[tuple[int, int, float, float, _Window] | None]
"""First and last place of a window, `enough`, the stretch from there on, and the window; None: fewer than two samples."""


class Rates:
    """Rates of many series that were sampled at the same times: what depends on the times alone is found once."""

    def __init__(self, times_ms: Sequence[int], grid: Grid, range_ms: int, *, per_second: bool) -> None:
        self._grid = grid
        self._range_ms = range_ms
        self._times_ms = times_ms
        self._divisor = range_ms / 1000 if per_second else 1.0
        self._bounds = self._bounds_of(times_ms)
        self._still = _still(self._bounds)

    def of(self, values: Sequence[float | None]) -> Column:
        """The rate of a counter at each time of the grid; none where its window holds fewer than two samples."""
        whole = [value for value in values if value is not None]
        if len(whole) == len(values):
            return self._rates(whole, self._bounds, self._still)
        bounds = self._bounds_of([time_ms for time_ms, value in zip(self._times_ms, values, strict=True) if value is not None])
        return self._rates(whole, bounds, _still(bounds))

    def _bounds_of(self, times_ms: Sequence[int]) -> _Bounds:
        bounds: _Bounds = []
        for time_ms, (first, beyond) in zip(self._grid.times_ms, self._grid.windows(times_ms, self._range_ms), strict=True):
            if beyond - first < 2:
                bounds.append(None)
                continue
            begin_ms, end_ms = times_ms[first], times_ms[beyond - 1]
            window = _Window(first, beyond - 1, end_ms - begin_ms, begin_ms - (time_ms - self._range_ms), time_ms - end_ms)
            bounds.append((window.first, window.last, window.enough, window.stretch(window.enough), window))
        return bounds

    def _rates(self, values: Sequence[float], bounds: _Bounds, still: Column) -> Column:
        risen = _risen(values)
        if not risen or risen[0] == risen[-1]:
            return still
        rates: list[float | None] = []
        for bound in bounds:
            if bound is None:
                rates.append(None)
                continue
            first, last, enough, stretch, window = bound
            gain = risen[last] - risen[first]
            if gain and not values[first] >= enough * gain:
                stretch = window.stretch(values[first] / gain)
            rates.append(gain * stretch / self._divisor)
        return rates


def _still(bounds: _Bounds) -> Column:
    """Of a counter that did not rise."""
    return [None if bound is None else 0.0 for bound in bounds]


def _risen(values: Sequence[float]) -> Sequence[float]:
    """The counter as if it had never begun again."""
    if all(before <= after for before, after in pairwise(values)):
        return values
    lost, risen = 0.0, [values[0]]
    for before, after in pairwise(values):
        lost += before if after < before else 0.0
        risen.append(after + lost)
    return risen
