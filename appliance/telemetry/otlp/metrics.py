"""The registry's families as OTLP metrics, sent now and then."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from appliance.telemetry.otlp.attributes import Sender, attributes_of
from appliance.telemetry.otlp.transport import Collector, NotSent

log = structlog.get_logger(__name__)

METRICS_PATH = "v1/metrics"
BREATH_S = 0.001
"""Between two families, for the threads that serve requests: all of them at once would hold the interpreter lock."""
SAY_AGAIN_S = 60.0
UNITS = {"seconds": "s", "bytes": "By", "ratio": "1"}
"""By the last word of a name (UCUM)."""


class MetricExporter:
    """Sends all families every `every_s` seconds. A time that fails is made good by the next: the values are cumulative."""

    def __init__(self, collector: Collector, sender: Sender, families: Callable[[], Iterable[Family]], every_s: float) -> None:
        self._collector = collector
        self._sender = sender
        self._families = families
        self._every_s = every_s
        self._began_ns = time.time_ns()
        self._said_s = -SAY_AGAIN_S

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.send()

    async def send(self) -> None:
        """All families as they are now."""
        message = await asyncio.to_thread(self._message)
        try:
            await self._collector.send(METRICS_PATH, message)
        except NotSent as error:
            now_s = time.monotonic()
            if now_s - self._said_s >= SAY_AGAIN_S:
                self._said_s = now_s
                log.warning("metrics_not_sent", endpoint=self._collector.endpoint, error=str(error))

    def _message(self) -> ExportMetricsServiceRequest:
        metrics: list[Metric] = []
        for family in self._families():
            if (metric := metric_of(family, self._began_ns, time.time_ns())) is not None:
                metrics.append(metric)
            time.sleep(BREATH_S)
        scoped = ScopeMetrics(scope=self._sender.scope, metrics=metrics)
        return ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(resource=self._sender.resource, scope_metrics=[scoped])])


def metric_of(family: Family, began_ns: int, now_ns: int) -> Metric | None:
    """A family under the name that Prometheus shows: counters as monotonic sums, histograms with their bounds, the rest as gauges.
    None where it has no series."""
    if not family.samples:
        return None
    metric = Metric(name=family.name, description=family.documentation, unit=UNITS.get(family.name.rpartition("_")[2], ""))
    match family.type:
        case "histogram":
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.histogram.data_points.extend(_histogram_points(family.samples, began_ns, now_ns))
        case "counter":
            metric.name = f"{family.name}_total"
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.extend(_points(family.samples, began_ns, now_ns))
        case _:
            metric.gauge.data_points.extend(_points(family.samples, 0, now_ns))
    return metric


def _points(samples: Iterable[Sample], began_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [
        NumberDataPoint(
            attributes=attributes_of(sample.labels), start_time_unix_nano=began_ns, time_unix_nano=now_ns, as_double=float(sample.value)
        )
        for sample in samples
    ]


@dataclass(slots=True)
class _Buckets:
    """One label set of a histogram."""

    labels: Mapping[str, str]
    bounds: list[float] = field(default_factory=list[float])
    upto: list[float] = field(default_factory=list[float])
    """Cumulated, as Prometheus has them."""
    total: float = 0.0


def _histogram_points(samples: Iterable[Sample], began_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    found: dict[tuple[tuple[str, str], ...], _Buckets] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        buckets = found.setdefault(tuple(labels.items()), _Buckets(labels))
        if sample.name.endswith("_bucket"):
            buckets.bounds.append(float(sample.labels["le"]))
            buckets.upto.append(sample.value)
        elif sample.name.endswith("_sum"):
            buckets.total = sample.value
    return [_histogram_point(buckets, began_ns, now_ns) for buckets in found.values()]


def _histogram_point(buckets: _Buckets, began_ns: int, now_ns: int) -> HistogramDataPoint:
    """The last bound is infinity, which OTLP leaves unsaid."""
    counts = [round(after - before) for before, after in zip([0.0, *buckets.upto], buckets.upto, strict=False)]
    return HistogramDataPoint(
        attributes=attributes_of(buckets.labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=buckets.total,
        bucket_counts=counts,
        explicit_bounds=buckets.bounds[:-1],
    )
