"""The text that Prometheus scrapes, made from prometheus-client's own objects, but faster than the client makes it.

A scrape of 100 tenants has some 40,000 series, most of which did not change since the last one. The client builds every
label set anew (7 microseconds a series, 0.3 s a scrape of held interpreter lock, while no token goes out). Here each
child's lines are kept until one of its values changes, and a family's text until one of its children's does. A value is
one field of one object, so it is read without the client's lock.

It reads fields of the client that have no public name (`_metrics`, `_value`, `_buckets`, `_sum`), all in this file;
tests/inference/test_exposition.py compares the text with the client's own, so a new version that moves them is noticed.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric, Timestamp
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

TEXT_MEDIA_TYPE = "text/plain; version=0.0.4"
"""Litestar adds the charset to text; twice it would be an error to Prometheus."""
OPENMETRICS_MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

type Client = Counter | Gauge | Histogram


def wants_openmetrics(accept: str) -> bool:
    """Whether the scraper reads OpenMetrics (Prometheus does, and only there exemplars are shown)."""
    return any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


class Exposition:
    """Renders collectors in the order they were added. Not for two threads at once: whoever calls it holds a lock."""

    def __init__(self) -> None:
        self.collectors: list[Client | Collector] = []
        self._parts: list[Callable[[bool], Iterable[str]]] = []

    def add(self, collector: Client | Collector) -> None:
        """A metric of the client, rendered from kept lines, or any collector, rendered from what it collects."""
        self.collectors.append(collector)
        if isinstance(collector, Histogram):
            self._parts.append(_HistogramFamily(collector).lines)
        elif isinstance(collector, Counter | Gauge):
            self._parts.append(_ValueFamily(collector).lines)
        else:
            self._parts.append(lambda openmetrics: _collected(collector.collect(), openmetrics))

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The whole exposition."""
        text = "".join(line for part in self._parts for line in part(openmetrics))
        return (text + "# EOF\n" if openmetrics else text).encode()


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's label set. `counts` has one more than `bounds`: what lies beyond the last."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float
    """Sum of all values."""


@dataclass(frozen=True, slots=True)
class Series:
    """A family as numbers."""

    name: str
    """Without a counter's `_total`."""
    kind: str
    documentation: str
    values: Sequence[tuple[Mapping[str, str], float | Buckets]]
    """By labels."""


def series_of(client: Client) -> Series:
    """What a metric of the client holds, without its samples: these take 7 microseconds a bucket."""
    metric: Any = client
    names: tuple[str, ...] = metric._labelnames
    values = [(dict(zip(names, key, strict=True)), _value(child)) for key, child in _items(metric)]
    return Series(metric._name, metric._type, metric._documentation, values)


def _value(child: Any) -> float | Buckets:
    if not hasattr(child, "_buckets"):
        return child._value.get()
    return Buckets(child._upper_bounds[:-1], [int(bucket.get()) for bucket in child._buckets], child._sum.get())


def _items(metric: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Children by label values; without labels the metric is its own child."""
    if not metric._labelnames:
        return [((), metric)]
    with metric._lock:
        return list(metric._metrics.items())


class _Children:
    """A metric's label sets and their children, in its order."""

    def __init__(self, metric: Client) -> None:
        self._metric: Any = metric
        self.shown: list[Any] = []

    def changed(self) -> list[tuple[str, Any]] | None:
        """Label text and child of each, where some came or went since the last look; else None."""
        items, names = _items(self._metric), self._metric._labelnames
        children = [child for _, child in items]
        if children == self.shown:
            return None
        self.shown = children
        return [(_labels(names, key), child) for key, child in items]


class _ValueFamily:
    """A counter or gauge: a line a child."""

    def __init__(self, metric: Counter | Gauge) -> None:
        self._children = _Children(metric)
        name, kind, documentation = _facts(metric)
        self._name = f"{name}_total" if kind == "counter" else name
        self._heads = {openmetrics: _head(name, kind, documentation, openmetrics) for openmetrics in (False, True)}
        self._prefixes: list[str] = []
        self._cells: list[Any] = []
        self._values: list[float] = []
        self._lines: list[str] = []
        self._text = ""

    def lines(self, openmetrics: bool) -> Iterable[str]:
        found = self._children.changed()
        if found is not None:
            self._prefixes = [f"{self._name}{{{labels}}} " if labels else f"{self._name} " for labels, _ in found]
            self._cells = [child._value for _, child in found]
            self._values, self._lines = [float("nan")] * len(found), [""] * len(found)
        values: list[float] = [cell._value for cell in self._cells]
        if values != self._values:
            for place, (value, before) in enumerate(zip(values, self._values, strict=True)):
                if value != before:
                    self._lines[place] = f"{self._prefixes[place]}{_number(value)}\n"
            self._values, self._text = values, "".join(self._lines)
        return self._heads[openmetrics], self._text if self._lines else ""


class _HistogramFamily:
    """A histogram: buckets, count and sum of each child."""

    def __init__(self, metric: Histogram) -> None:
        self._children = _Children(metric)
        name, kind, documentation = _facts(metric)
        self._name = name
        self._heads = {openmetrics: _head(name, kind, documentation, openmetrics) for openmetrics in (False, True)}
        self._series: list[_HistogramSeries] = []
        self._buckets: list[Any] = []
        self._counts: list[float] = []
        self._texts: dict[bool, str] = {}

    def lines(self, openmetrics: bool) -> Iterable[str]:
        found = self._children.changed()
        if found is not None:
            known = {series.child: series for series in self._series}
            self._series = [known.get(child) or _HistogramSeries(self._name, labels, child) for labels, child in found]
            self._buckets = [bucket for _, child in found for bucket in child._buckets]
            self._texts = {}
        counts: list[float] = [bucket._value for bucket in self._buckets]
        if counts != self._counts:
            self._counts, self._texts = counts, {}
        if openmetrics not in self._texts:
            ends = itertools.accumulate((len(series.child._buckets) for series in self._series), initial=0)
            self._texts[openmetrics] = "".join(
                series.text(counts[begin:end], exemplars=openmetrics)
                for series, (begin, end) in zip(self._series, itertools.pairwise(ends), strict=True)
            )
        return self._heads[openmetrics], self._texts[openmetrics]


class _HistogramSeries:
    """A histogram's lines: cumulated buckets, count, sum."""

    __slots__ = ("_counts", "_prefixes", "_tail", "_texts", "child")

    def __init__(self, name: str, labels: str, child: Any) -> None:
        self.child = child
        inner, outer = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
        self._prefixes = [f'{name}_bucket{{{inner}le="{floatToGoString(bound)}"}} ' for bound in child._upper_bounds]
        self._tail = (f"{name}_count{outer} ", f"{name}_sum{outer} ")
        self._counts: list[float] = []
        self._texts: dict[bool, str] = {}

    def text(self, counts: list[float], *, exemplars: bool) -> str:
        """Its lines, ended by newlines; `counts` of its buckets, not cumulated."""
        if counts != self._counts:
            self._counts, self._texts = counts, {}
        if exemplars not in self._texts:
            self._texts[exemplars] = self._render(exemplars)
        return self._texts[exemplars]

    def _render(self, exemplars: bool) -> str:
        totals = [_number(total) for total in itertools.accumulate(self._counts)]
        if exemplars:
            totals = [f"{total}{_exemplar(bucket.get_exemplar())}" for total, bucket in zip(totals, self.child._buckets, strict=True)]
        lines = [f"{prefix}{total}\n" for prefix, total in zip(self._prefixes, totals, strict=True)]
        count, total_s = self._tail
        lines.append(f"{count}{_number(sum(self._counts))}\n{total_s}{floatToGoString(self.child._sum._value)}\n")
        return "".join(lines)


def _facts(metric: Any) -> tuple[str, str, str]:
    """Name, kind and documentation of a metric of the client."""
    return metric._name, metric._type, metric._documentation


@lru_cache(maxsize=16_384)
def _number(value: float) -> str:
    """As the format writes it; most values are small counts that many series share."""
    return floatToGoString(value)


def _collected(metrics: Iterable[Metric], openmetrics: bool) -> Iterable[str]:
    for metric in metrics:
        yield _head(metric.name, metric.type, metric.documentation, openmetrics)
        for sample in metric.samples:
            yield _sample_line(sample, openmetrics)


def _sample_line(sample: Sample, openmetrics: bool) -> str:
    labels = _labels(tuple(sample.labels), tuple(sample.labels.values()))
    exemplar = _exemplar(sample.exemplar) if openmetrics else ""
    return (
        f"{sample.name}{{{labels}}} {floatToGoString(sample.value)}{exemplar}\n"
        if labels
        else f"{sample.name} {floatToGoString(sample.value)}{exemplar}\n"
    )


def _head(name: str, kind: str, documentation: str, openmetrics: bool) -> str:
    """HELP and TYPE. The older format names a counter with its `_total`."""
    shown = f"{name}_total" if kind == "counter" and not openmetrics else name
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    labels = _labels(exemplar.labels, exemplar.labels.values())
    when = exemplar.timestamp
    shown = f" {float(when) if isinstance(when, Timestamp) else when}" if when is not None else ""
    return f" # {{{labels}}} {floatToGoString(exemplar.value)}{shown}"
