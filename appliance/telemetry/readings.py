"""All families as numbers, whatever kind of collector they come from, and without building their samples where that can be."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from appliance.telemetry.exposition import Buckets, Client, Series, series_of
from appliance.telemetry.histogram import Histogram

BREATH_S = 0.001
"""Between two families, for the threads that serve requests: all of them at once would hold the interpreter lock."""


def read_slowly(collectors: Iterable[Client | Collector]) -> Iterator[Series]:
    """The families of all collectors, with a breath after each. For a thread."""
    for collector in collectors:
        for series in all_series(collector):
            yield series
            time.sleep(BREATH_S)


def all_series(collector: Client | Collector) -> Iterator[Series]:
    """The families of a metric, or of any collector."""
    if isinstance(collector, Counter | Gauge | Histogram):
        yield series_of(collector)
    else:
        for family in collector.collect():
            names = next((tuple(name for name in sample.labels if name != "le") for sample in family.samples), ())
            yield Series(family.name, family.type, family.documentation, names, _values(family))


def _values(family: Family) -> list[tuple[tuple[str, ...], float | Buckets]]:
    """A collector's samples as numbers."""
    if family.type != "histogram":
        return [(tuple(sample.labels.values()), float(sample.value)) for sample in family.samples]
    found: dict[tuple[str, ...], _Cumulated] = {}
    for sample in family.samples:
        labels = tuple(value for name, value in sample.labels.items() if name != "le")
        cumulated = found.setdefault(labels, _Cumulated())
        if sample.name.endswith("_bucket"):
            cumulated.bounds.append(float(sample.labels["le"]))
            cumulated.upto.append(sample.value)
        elif sample.name.endswith("_sum"):
            cumulated.total = sample.value
    return [(labels, cumulated.buckets()) for labels, cumulated in found.items()]


@dataclass(slots=True)
class _Cumulated:
    """A histogram's label set as Prometheus has it: each bucket counts those before it, too, and the last bound is infinity."""

    bounds: list[float] = field(default_factory=list[float])
    upto: list[float] = field(default_factory=list[float])
    total: float = 0.0

    def buckets(self) -> Buckets:
        return Buckets(self.bounds[:-1], [round(after - before) for before, after in pairwise((0.0, *self.upto))], self.total)
