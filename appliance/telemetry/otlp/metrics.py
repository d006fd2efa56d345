"""The registry's families as OTLP metrics, sent now and then."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

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
from prometheus_client.registry import Collector as PromCollector

from appliance.telemetry.exposition import Buckets, Client, Series
from appliance.telemetry.otlp.attributes import Sender, attributes_of
from appliance.telemetry.otlp.transport import Collector, NotSent
from appliance.telemetry.readings import read_slowly

log = structlog.get_logger(__name__)

METRICS_PATH = "v1/metrics"
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
        for series in read_slowly(self._collectors()):
            if (metric := metric_of(series, self._began_ns, time.time_ns())) is not None:
                metrics.append(metric)
        scoped = ScopeMetrics(scope=self._sender.scope, metrics=metrics)
        return ExportMetricsServiceRequest(resource_metrics=[ResourceMetrics(resource=self._sender.resource, scope_metrics=[scoped])])


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
    for key, value in series.values:
        assert not isinstance(value, Buckets), "a number, as the family's kind says"
        yield NumberDataPoint(
            attributes=attributes_of(series.labels(key)), start_time_unix_nano=began_ns, time_unix_nano=now_ns, as_double=value
        )


def _histogram_points(series: Series, began_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    for key, value in series.values:
        assert isinstance(value, Buckets), "buckets, as the family's kind says"
        yield HistogramDataPoint(
            attributes=attributes_of(series.labels(key)),
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=sum(value.counts),
            sum=value.total,
            bucket_counts=value.counts,
            explicit_bounds=value.bounds,
        )
