"""Times by lane on the fine grid, without the tenant: for true quantiles, and for what the last five minutes were like."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from appliance.telemetry import families as f
from appliance.telemetry.grid import FINE_GRID_S, FineHistogram, quantile_s
from engine.wire import LANES

BOUNDS = (*(floatToGoString(bound) for bound in FINE_GRID_S), "+Inf")


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last five minutes, in seconds; null where there was nothing."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None


@dataclass(slots=True)
class _Lane:
    ttft: FineHistogram = field(default_factory=FineHistogram)
    inter_token: FineHistogram = field(default_factory=FineHistogram)
    slow: dict[int, Exemplar] = field(default_factory=dict)
    """The newest slow request of each bucket of TTFT."""


class LaneTimes(Collector):
    """TTFT and gaps between tokens of each lane."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._labels = ("", "", "")
        self._lanes = {lane: _Lane() for lane in LANES}

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on; another one's times begin anew."""
        labels = (model, quantization, gpu_type)
        if labels != self._labels:
            self._labels, self._lanes = labels, {lane: _Lane() for lane in LANES}

    def observe_ttft(self, lane: str, seconds: float, slow: Mapping[str, str] | None = None) -> None:
        """A first token. `slow`: the names of a request beyond its target, which is shown as the bucket's exemplar."""
        if lane not in self._lanes:
            return
        times = self._lanes[lane]
        index = times.ttft.observe(seconds, self._clock_s())
        if slow:
            times.slow[index] = Exemplar(dict(slow), seconds, self._wall_s())

    def observe_gap(self, lane: str, seconds: float) -> None:
        """Between two tokens of an output."""
        if lane in self._lanes:
            self._lanes[lane].inter_token.observe(seconds, self._clock_s())

    def ttft(self, lane: str) -> Quantiles:
        """Of the last five minutes."""
        return _quantiles(self._lanes[lane].ttft.recent(self._clock_s()))

    def inter_token(self, lane: str) -> Quantiles:
        """Of the last five minutes."""
        return _quantiles(self._lanes[lane].inter_token.recent(self._clock_s()))

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family in (f.LANE_TTFT, f.LANE_INTER_TOKEN):
            metric = HistogramMetricFamily(family.full_name, family.help, labels=family.labels)
            for lane, times in self._lanes.items():
                histogram = times.ttft if family is f.LANE_TTFT else times.inter_token
                slow = times.slow if family is f.LANE_TTFT else {}
                metric.add_metric((lane, *self._labels), _buckets(histogram, slow), histogram.sum_s)
            yield metric


def _buckets(histogram: FineHistogram, slow: dict[int, Exemplar]) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Cumulated, with exemplars."""
    total = 0
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for index, (bound, count) in enumerate(zip(BOUNDS, histogram.counts, strict=True)):
        total += count
        buckets.append((bound, float(total), slow[index]) if index in slow else (bound, float(total)))
    return buckets


def _quantiles(counts: list[int]) -> Quantiles:
    p50, p90, p99, p999 = (quantile_s(counts, q) for q in (0.5, 0.9, 0.99, 0.999))
    return Quantiles(count=sum(counts), p50=p50, p90=p90, p99=p99, p999=p999)
