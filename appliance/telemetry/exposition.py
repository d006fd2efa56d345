"""The text that Prometheus scrapes, made from prometheus-client's own objects, but faster than the client makes it.

A scrape of 100 tenants has some 40,000 series, most of which did not change since the last one. The client builds every
label set anew (7 microseconds a series, 0.3 s a scrape of held interpreter lock, while no token goes out). Here each
child's lines are kept until one of its values changes.

It reads fields of the client that have no public name (`_metrics`, `_value`, `_buckets`, `_sum`), all in this file;
tests/inference/test_exposition.py compares the text with the client's own, so a new version that moves them is noticed.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

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


class _Series(Protocol):
    """One label set of a family."""

    child: Any

    def text(self, *, exemplars: bool) -> str:
        """Its lines, ended by newlines."""
        ...


class Exposition:
    """Renders collectors in the order they were added. Not for two threads at once: whoever calls it holds a lock."""

    def __init__(self) -> None:
        self._parts: list[Callable[[bool], Iterable[str]]] = []

    def add(self, collector: Client | Collector) -> None:
        """A metric of the client, rendered from kept lines, or any collector, rendered from what it collects."""
        if isinstance(collector, Counter | Gauge | Histogram):
            self._parts.append(_Family(collector).lines)
        else:
            self._parts.append(lambda openmetrics: _collected(collector.collect(), openmetrics))

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The whole exposition."""
        text = "".join(line for part in self._parts for line in part(openmetrics))
        return (text + "# EOF\n" if openmetrics else text).encode()


class _Family:
    """A metric of the client with its children's kept lines."""

    def __init__(self, metric: Client) -> None:
        self._metric: Any = metric
        self._make = _HistogramSeries if isinstance(metric, Histogram) else _ValueSeries
        self._series: dict[tuple[str, ...], _Series] = {}
        kind: str = self._metric._type
        name: str = self._metric._name
        self._sample_name = f"{name}_total" if kind == "counter" else name
        self._heads = {openmetrics: _head(name, kind, self._metric._documentation, openmetrics) for openmetrics in (False, True)}

    def lines(self, openmetrics: bool) -> Iterable[str]:
        yield self._heads[openmetrics]
        children: list[tuple[tuple[str, ...], Any]] = [((), self._metric)]  # without labels it is its own child
        if self._metric._labelnames:
            with self._metric._lock:
                children = list(self._metric._metrics.items())
        if len(children) < len(self._series):
            self._series = {key: self._series[key] for key, _ in children if key in self._series}
        for key, child in children:
            series = self._series.get(key)
            if series is None or series.child is not child:
                series = self._series[key] = self._make(self._sample_name, _labels(self._metric._labelnames, key), child)
            yield series.text(exemplars=openmetrics)


class _ValueSeries:
    """A counter's or gauge's one line."""

    __slots__ = ("_line", "_prefix", "_value", "child")

    def __init__(self, name: str, labels: str, child: Any) -> None:
        self.child = child
        self._prefix = f"{name}{{{labels}}} " if labels else f"{name} "
        self._value: float | None = None
        self._line = ""

    def text(self, *, exemplars: bool) -> str:
        value: float = self.child._value.get()
        if value != self._value:
            self._value, self._line = value, f"{self._prefix}{floatToGoString(value)}\n"
        return self._line


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

    def text(self, *, exemplars: bool) -> str:
        counts: list[float] = [bucket.get() for bucket in self.child._buckets]
        if counts != self._counts:
            self._counts, self._texts = counts, {}
        if exemplars not in self._texts:
            self._texts[exemplars] = self._render(exemplars)
        return self._texts[exemplars]

    def _render(self, exemplars: bool) -> str:
        shown = [_exemplar(bucket.get_exemplar()) for bucket in self.child._buckets] if exemplars else [""] * len(self._counts)
        totals = list(itertools.accumulate(self._counts))
        lines = [
            f"{prefix}{floatToGoString(total)}{exemplar}\n" for prefix, total, exemplar in zip(self._prefixes, totals, shown, strict=True)
        ]
        count, total_s = self._tail
        lines.append(f"{count}{floatToGoString(totals[-1])}\n{total_s}{floatToGoString(self.child._sum.get())}\n")
        return "".join(lines)


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
