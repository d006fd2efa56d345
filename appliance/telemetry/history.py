"""The last hour of our own metrics in memory, for dashboards where no Prometheus is configured.

A series costs its labels (some 700 bytes), and 16 bytes each time its value changes: most of them are still most of the time. What is
kept is bounded twice: an hour, and `MAX_NUMBERS`; with more than fit, the oldest go, and the history is shorter than an hour.
"""

import contextlib
import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from appliance.promql.source import Samples
from appliance.promql.values import Labels
from appliance.telemetry.exposition import Buckets, Series
from appliance.telemetry.readings import BREATH_S

KEPT_S = 3600.0
MAX_NUMBERS = 4_000_000
"""8 bytes each: at most 32 MB. A hundred tenants that are all busy change some 15,000 numbers a sample."""

SERIES_A_BREATH = 32
"""Whoever reads so many has held the interpreter lock for a millisecond or two."""


class History:
    """A ring of samples, all taken at the same times: `note` every family, then `seal` the sample.

    One thread writes; whoever reads does it inside `reading`.
    """

    def __init__(self, interval_s: float, max_numbers: int = MAX_NUMBERS) -> None:
        """`interval_s`: between two samples."""
        self._max_samples = max(2, round(KEPT_S / interval_s))
        self._max_numbers = max_numbers
        self._times_ms: deque[int] = deque()
        self._next = 0
        """Number of the sample that is being taken; they are counted from the first one ever."""
        self._families: dict[str, _Family] = {}
        self._lock = threading.Lock()

    # ---- writing

    def note(self, series: Series) -> None:
        """A family's values in the sample that is being taken."""
        with self._lock:
            family = self._families.get(series.name)
            if family is None:
                family = self._families[series.name] = _Family(series)
            family.note(series, self._next)

    def seal(self, time_ms: int) -> None:
        """The sample is whole, and was taken at this time. A clock that was set back takes along what was sampled before."""
        with self._lock:
            if (ahead_ms := self.newest_ms - time_ms) >= 0:
                self._times_ms = deque(each - ahead_ms - 1 for each in self._times_ms)
            for family in self._families.values():
                family.end_unseen(self._next)
            self._times_ms.append(time_ms)
            self._next += 1
            while len(self._times_ms) > self._max_samples or (len(self._times_ms) > 2 and self.num_numbers > self._max_numbers):
                self._times_ms.popleft()
                for family in self._families.values():
                    family.forget_before(self._first)

    @property
    def num_numbers(self) -> int:
        """Numbers kept."""
        return sum(family.num_numbers for family in self._families.values())

    @property
    def _first(self) -> int:
        return self._next - len(self._times_ms)

    # ---- reading

    @contextlib.contextmanager
    def reading(self) -> Iterator["History"]:
        """It does not change inside."""
        with self._lock:
            yield self

    @property
    def newest_ms(self) -> int:
        """When the newest sample was taken; 0 before the first."""
        return self._times_ms[-1] if self._times_ms else 0

    @property
    def held_s(self) -> float:
        """From the oldest sample to the newest."""
        return (self._times_ms[-1] - self._times_ms[0]) / 1000 if self._times_ms else 0.0

    @property
    def times_ms(self) -> Sequence[int]:
        return tuple(self._times_ms)

    def select(self, name: str, is_wanted: Callable[[Labels], bool]) -> Iterator[Samples]:
        """As `appliance.promql.source.Source`."""
        wanted = (
            Samples(full, self._dense(tracks, place))
            for family in self._families.values()
            for more, place in family.columns.get(name, ())
            for labels, tracks in family.tracks.values()
            if is_wanted(full := {**labels, **more})
        )
        for number, samples in enumerate(wanted, 1):
            yield samples
            if number % SERIES_A_BREATH == 0:
                time.sleep(BREATH_S)

    def _dense(self, tracks: Sequence["_Track"], place: int) -> Sequence[float | None]:
        """A value for each sample."""
        first, last = self._first, self._next
        column: list[float | None] = [None] * (last - first)
        for track in tracks:
            if track.is_unbroken(first, last):
                return track.numbers[(first - track.samples[0]) * track.width + place :: track.width].tolist()
            ends = [*track.samples[1:], last if track.ended is None else track.ended]
            for begin, end, value in zip(track.samples, ends, track.numbers[place :: track.width], strict=True):
                begin, end = max(begin, first) - first, min(end, last) - first
                column[begin:end] = [value] * (end - begin)
        return column


class _Track:
    """A series from where it appeared to where it went, as the samples where it changed. `width` numbers each: a histogram has many."""

    __slots__ = ("ended", "newest", "numbers", "samples", "seen", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.newest: float | Buckets = math.nan
        self.samples: array[int] = array("L")
        self.numbers: array[float] = array("d")
        self.seen = -1
        self.ended: int | None = None
        """The first sample that does not have it any more."""

    def is_unbroken(self, first: int, last: int) -> bool:
        """It changed at each of these samples (`last` is the one beyond), and is still there."""
        return self.ended is None and self.samples[0] <= first and len(self.samples) == last - self.samples[0]

    def append(self, sample: int, value: float | Buckets, numbers: "array[float]") -> int:
        """It changed: how many numbers more are kept."""
        self.seen, self.newest = sample, value
        self.samples.append(sample)
        self.numbers.extend(numbers)
        return self.width + 1

    def holds(self, first: int) -> bool:
        """What it keeps is needed from this sample on."""
        return len(self.samples) < 2 or self.samples[1] > first

    def forget_before(self, first: int) -> int:
        """How many numbers fewer are kept: a value that held on is kept, as from `first` on."""
        if self.holds(first):
            return 0
        old = sum(1 for after in self.samples[1:] if after <= first)
        del self.samples[:old]
        del self.numbers[: old * self.width]
        return old * (self.width + 1)


class _Family:
    """Tracks by label values; more than one where a series went and came again."""

    def __init__(self, series: Series) -> None:
        self._kind = series.kind
        self.tracks: dict[tuple[str, ...], tuple[Labels, list[_Track]]] = {}
        self.columns: Mapping[str, Sequence[tuple[Labels, int]]] = _columns(series)
        """By the name that Prometheus shows: labels to add, and which number it is."""
        self.num_numbers = 0

    def note(self, series: Series, sample: int) -> None:
        if not self.columns:
            self.columns = _columns(series)  # it was empty at first
        for key, value in series.values:
            found = self.tracks.get(key)
            if found is None:
                found = self.tracks[key] = (series.labels(key), [])
            tracks = found[1]
            if tracks and tracks[-1].ended is None and tracks[-1].newest == value:
                tracks[-1].seen = sample  # most of them, each time
                continue
            numbers = _numbers(value)
            if not tracks or tracks[-1].ended is not None:
                tracks.append(_Track(len(numbers)))
            self.num_numbers += tracks[-1].append(sample, value, numbers)

    def end_unseen(self, sample: int) -> None:
        """What the sample does not have has gone."""
        for _, tracks in self.tracks.values():
            if tracks[-1].seen != sample and tracks[-1].ended is None:
                tracks[-1].ended = sample

    def forget_before(self, first: int) -> None:
        for key, (labels, tracks) in tuple(self.tracks.items()):
            if len(tracks) == 1 and tracks[0].ended is None and tracks[0].holds(first):
                continue
            self.num_numbers -= sum(track.forget_before(first) for track in tracks)
            left = [track for track in tracks if track.ended is None or track.ended > first]
            self.num_numbers -= sum(len(track.samples) + len(track.numbers) for track in tracks if track not in left)
            if left:
                self.tracks[key] = (labels, left)
            else:
                del self.tracks[key]


def _columns(series: Series) -> Mapping[str, Sequence[tuple[Labels, int]]]:
    if series.kind == "counter":
        return {f"{series.name}_total": [({}, 0)]}
    if series.kind != "histogram":
        return {series.name: [({}, 0)]}
    if not series.values:
        return {}
    first = series.values[0][1]
    assert isinstance(first, Buckets), "buckets, as the family's kind says"
    bounds = [floatToGoString(bound) for bound in (*first.bounds, float("inf"))]
    return {
        f"{series.name}_bucket": [({"le": bound}, place) for place, bound in enumerate(bounds)],
        f"{series.name}_count": [({}, len(bounds) - 1)],
        f"{series.name}_sum": [({}, len(bounds))],
    }


def _numbers(value: float | Buckets) -> "array[float]":
    return array("d", [*accumulate(value.counts), value.total] if isinstance(value, Buckets) else [value])
