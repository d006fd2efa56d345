"""The registry's families as OTLP metrics, sent now and then."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

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
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector as PromCollector

from appliance.telemetry.exposition import Buckets, Client, Series, series_of
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

    def __init__(
        self, collector: Collector, sender: Sender, collectors: Callable[[], Sequence[Client | PromCollector]], every_s: float
    ) -> None:
        self._collector = collector
        self._sender = sender
        self._collectors = collectors
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
        try:
            message = await asyncio.to_thread(self._message)
            await self._collector.send(METRICS_PATH, message)
        except NotSent as error:
            now_s = time.monotonic()
            if now_s - self._said_s >= SAY_AGAIN_S:
                self._said_s = now_s
                log.warning("metrics_not_sent", endpoint=self._collector.endpoint, error=str(error))
        except Exception as error:  # a defect of ours costs this time, and no later one
            log.error("metrics_not_made", error=str(error), exc_info=error)

    def _message(self) -> ExportMetricsServiceRequest:
        metrics: list[Metric] = []
        for collector in self._collectors():
            for series in all_series(collector):
                if (metric := metric_of(series, self._began_ns, time.time_ns())) is not None:
                    metrics.append(metric)
                time.sleep(BREATH_S)
        scoped = ScopeMetrics(scope=self._sender.scope, metrics=metrics)
        return ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(resource=self._sender.resource, scope_metrics=[scoped])])


def all_series(collector: Client | PromCollector) -> Iterator[Series]:
    """The families of a metric of the client, or of any collector."""
    if isinstance(collector, Counter | Gauge | Histogram):
        yield series_of(collector)
    else:
        for family in collector.collect():
            yield Series(family.name, family.type, family.documentation, _values(family))


def metric_of(series: Series, began_ns: int, now_ns: int) -> Metric | None:
    """A family under the name that Prometheus shows: counters as monotonic sums, histograms with their bounds, the rest as gauges.
    None where it has no series."""
    if not series.values:
        return None
    metric = Metric(name=series.name, description=series.documentation, unit=UNITS.get(series.name.rpartition("_")[2], ""))
    match series.kind:
        case "histogram":
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.histogram.data_points.extend(_histogram_points(series, began_ns, now_ns))
        case "counter":
            metric.name = f"{series.name}_total"
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
            metric.sum.data_points.extend(_points(series, began_ns, now_ns))
        case _:
            metric.gauge.data_points.extend(_points(series, 0, now_ns))
    return metric


def _points(series: Series, began_ns: int, now_ns: int) -> Iterator[NumberDataPoint]:
    for labels, value in series.values:
        assert not isinstance(value, Buckets), "a number, as the family's kind says"
        yield NumberDataPoint(attributes=attributes_of(labels), start_time_unix_nano=began_ns, time_unix_nano=now_ns, as_double=value)


def _histogram_points(series: Series, began_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    for labels, value in series.values:
        assert isinstance(value, Buckets), "buckets, as the family's kind says"
        yield HistogramDataPoint(
            attributes=attributes_of(labels),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=sum(value.counts),
            sum=value.total,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
        )


def _values(family: Family) -> list[tuple[Mapping[str, str], float | Buckets]]:
    """A collector's samples as numbers."""
    if family.type != "histogram":
        return [(sample.labels, float(sample.value)) for sample in family.samples]
    found: dict[tuple[tuple[str, str], ...], _Cumulated] = {}
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        cumulated = found.setdefault(labels, _Cumulated())
        if sample.name.endswith("_bucket"):
            cumulated.bounds.append(float(sample.labels["le"]))
            cumulated.upto.append(sample.value)
        elif sample.name.endswith("_sum"):
            cumulated.total = sample.value
    return [(dict(labels), cumulated.buckets()) for labels, cumulated in found.items()]


@dataclass(slots=True)
class _Cumulated:
    """A histogram's label set as Prometheus has it: each bucket counts those before it, too, and the last bound is infinity."""

    bounds: list[float] = field(default_factory=list[float])
    upto: list[float] = field(default_factory=list[float])
    total: float = 0.0

    def buckets(self) -> Buckets:
        return Buckets(self.bounds[:-1], [round(after - before) for before, after in pairwise((0.0, *self.upto))], self.total)
