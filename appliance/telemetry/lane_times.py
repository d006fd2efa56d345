"""Times by lane on the fine grid, without the tenant: for true quantiles, and for what the last five minutes were like."""

import time
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Exemplar

from appliance.telemetry import families as f
from appliance.telemetry.grid import FineHistogram, quantile_s
from appliance.telemetry.histogram import Histogram
from appliance.telemetry.requests import histogram
from engine.wire import LANES


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of the last five minutes, in seconds; null where there was nothing."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    p999: float | None


class LaneTimes:
    """TTFT and gaps between tokens of each lane."""

    def __init__(
        self, registry: CollectorRegistry, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._families = {family: histogram(registry, family) for family in (f.LANE_TTFT, f.LANE_INTER_TOKEN)}
        self._ttft: Mapping[str, FineHistogram] = {}
        self._inter_token: Mapping[str, FineHistogram] = {}
        self._labels: tuple[str, ...] = ()
        self.bind("", "", "")

    @property
    def metrics(self) -> tuple[Histogram, ...]:
        """Both, in the order they are shown."""
        return tuple(self._families.values())

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on; another one's times begin anew."""
        labels = (model, quantization, gpu_type)
        if labels != self._labels:
            self._labels = labels
            self._ttft, self._inter_token = (self._anew(family) for family in self._families.values())

    def _anew(self, family: Histogram) -> Mapping[str, FineHistogram]:
        family.remove_by_labels({})
        return {lane: FineHistogram(family.labels(lane, *self._labels)) for lane in LANES}

    def observe_ttft(self, lane: str, seconds: float, slow: Mapping[str, str] | None = None) -> None:
        """A first token. `slow`: the names of a request beyond its target, which is shown as the bucket's exemplar."""
        if lane in self._ttft:
            exemplar = Exemplar(dict(slow), seconds, self._wall_s()) if slow else None
            self._ttft[lane].observe(seconds, self._clock_s(), exemplar)

    def observe_gap(self, lane: str, seconds: float) -> None:
        """Between two tokens of an output."""
        if lane in self._inter_token:
            self._inter_token[lane].observe(seconds, self._clock_s())

    def ttft(self, lane: str) -> Quantiles:
        """Of the last five minutes."""
        return _quantiles(self._ttft[lane].recent(self._clock_s()))

    def inter_token(self, lane: str) -> Quantiles:
        """Of the last five minutes."""
        return _quantiles(self._inter_token[lane].recent(self._clock_s()))


def _quantiles(counts: list[int]) -> Quantiles:
    found = (quantile_s(counts, q) for q in (0.5, 0.9, 0.99, 0.999))
    p50, p90, p99, p999 = (None if seconds is None else round(seconds, 5) for seconds in found)  # true within 10 %
    return Quantiles(count=sum(counts), p50=p50, p90=p90, p99=p99, p999=p999)
