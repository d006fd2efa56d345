"""The text that Prometheus scrapes, made from our metrics and prometheus-client's, but faster than the client makes it.

A scrape of 100 tenants has up to 70,000 series, most of which did not change since the last one. The client builds every
label set anew (7 microseconds a series, half a second a scrape of held interpreter lock, while no token goes out). Here what does
not change of a line is kept, and a line or block of lines until one of its values changes. All of them are joined once, as bytes:
that copy of some megabytes is the one part for which CPython lets go of the lock.

It reads fields of the client that have no public name (`_metrics`, `_value`), all in this file; tests/inference/test_exposition.py
compares the text with the client's own, so a new version that moves them is noticed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain, compress
from operator import ne
from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric, Timestamp
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from appliance.telemetry.histogram import Cells, Histogram

TEXT_MEDIA_TYPE = "text/plain; version=0.0.4"
"""Litestar adds the charset to text; twice it would be an error to Prometheus."""
OPENMETRICS_MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

type Client = Counter | Gauge | Histogram
"""What is read without being collected."""


def wants_openmetrics(accept: str) -> bool:
    """Whether the scraper reads OpenMetrics (Prometheus does, and only there exemplars are shown)."""
    return any(part.split(";")[0].strip() == "application/openmetrics-text" for part in accept.split(","))


class Exposition:
    """Renders collectors in the order they were added. Not for two threads at once: whoever calls it holds a lock."""

    def __init__(self) -> None:
        self.collectors: list[Client | Collector] = []
        self._parts: list[Callable[[bool], Iterable[bytes]]] = []

    def add(self, collector: Client | Collector) -> None:
        """A metric, rendered from kept lines, or any collector, rendered from what it collects."""
        self.collectors.append(collector)
        if isinstance(collector, Histogram):
            self._parts.append(_HistogramFamily(collector).blocks)
        elif isinstance(collector, Counter | Gauge):
            self._parts.append(_ValueFamily(collector).blocks)
        else:
            self._parts.append(lambda openmetrics: _collected(collector.collect(), openmetrics))

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The whole exposition."""
        blocks = chain.from_iterable(part(openmetrics) for part in self._parts)
        return b"".join([*blocks, b"# EOF\n"] if openmetrics else [*blocks])


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
    label_names: tuple[str, ...]
    values: Sequence[tuple[tuple[str, ...], float | Buckets]]
    """By label values."""

    def labels(self, values: tuple[str, ...]) -> dict[str, str]:
        """Names and values."""
        return dict(zip(self.label_names, values, strict=True))


def series_of(client: Client) -> Series:
    """What a metric holds, without its samples: these take 7 microseconds a bucket."""
    if isinstance(client, Histogram):
        found = [(key, Buckets(cells.bounds, cells.counts.copy(), cells.total)) for key, cells in client.items()]
        return Series(client.name, "histogram", client.documentation, client.label_names, found)
    metric: Any = client
    values = [(key, child._value._value) for key, child in _items(metric)]
    return Series(metric._name, metric._type, metric._documentation, tuple(metric._labelnames), values)


def _items(metric: Any) -> list[tuple[tuple[str, ...], Any]]:
    """Children by label values; without labels the metric is its own child."""
    if not metric._labelnames:
        return [((), metric)]
    with metric._lock:
        return list(metric._metrics.items())


class _ValueFamily:
    """A counter or gauge: a line a child, kept until its value changes, and all lines as one until one of them does."""

    def __init__(self, metric: Counter | Gauge) -> None:
        self._metric: Any = metric
        name, kind, documentation = self._metric._name, self._metric._type, self._metric._documentation
        self._name = f"{name}_total" if kind == "counter" else name
        self._heads = {openmetrics: _head(name, kind, documentation, openmetrics) for openmetrics in (False, True)}
        self._shown: list[Any] = []
        self._prefixes: list[bytes] = []
        self._cells: list[Any] = []
        self._values: list[float] = []
        self._lines: list[bytes] = []
        self._text = b""

    def blocks(self, openmetrics: bool) -> Iterable[bytes]:
        items = _items(self._metric)
        children = [child for _, child in items]
        if children != self._shown:
            self._show(items, children)
        values: list[float] = [cell._value for cell in self._cells]  # one field of one object: read without the client's lock
        if values != self._values:
            for place in compress(range(len(values)), map(ne, values, self._values)):
                self._lines[place] = b"%b%b\n" % (self._prefixes[place], _number(values[place]))
            self._values, self._text = values, b"".join(self._lines)
        return self._heads[openmetrics], self._text

    def _show(self, items: Sequence[tuple[tuple[str, ...], Any]], children: list[Any]) -> None:
        """Begin anew, as label sets came or went."""
        names = self._metric._labelnames
        self._shown = children
        self._prefixes = [f"{self._name}{_in_braces(_labels(names, key))} ".encode() for key, _ in items]
        self._cells = [child._value for child in children]
        self._values, self._lines, self._text = [math.nan] * len(items), [b""] * len(items), b""


class _HistogramFamily:
    """A histogram: a block of lines a label set."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._heads = {
            openmetrics: _head(histogram.name, "histogram", histogram.documentation, openmetrics) for openmetrics in (False, True)
        }
        self._blocks: dict[Cells, _Block] = {}

    def blocks(self, openmetrics: bool) -> Iterator[bytes]:
        items = self._histogram.items()
        if self._blocks.keys() != {cells for _, cells in items}:
            self._blocks = {cells: self._blocks.get(cells) or _Block(self._histogram, key, cells) for key, cells in items}
        yield self._heads[openmetrics]
        for block in self._blocks.values():
            yield block.with_exemplars() if openmetrics and block.cells.exemplars else block.text()


class _Block:
    """A label set's lines: cumulated buckets, count, sum. They are the same in both formats but for exemplars."""

    __slots__ = ("_count", "_template", "_text", "cells")

    def __init__(self, histogram: Histogram, values: Sequence[str], cells: Cells) -> None:
        self.cells = cells
        name, labels = histogram.name, _labels(histogram.label_names, values)
        inner, outer = f"{labels}," if labels else "", _in_braces(labels)
        buckets = [f'{name}_bucket{{{inner}le="{bound}"}} ' for bound in histogram.bound_texts]
        prefixes = [text.replace("%", "%%") for text in (*buckets, f"{name}_count{outer} ", f"{name}_sum{outer} ")]
        self._template = "".join([*(f"{prefix}%d\n" for prefix in prefixes[:-1]), f"{prefixes[-1]}%a\n"]).encode()
        self._count = -1
        self._text = b""

    def text(self) -> bytes:
        """Its lines, ended by newlines."""
        if self.cells.count != self._count:
            self._count = self.cells.count  # read first: a value that comes while we are here changes it again
            upto = [*accumulate(self.cells.counts)]
            self._text = self._template % (*upto, upto[-1], self.cells.total)
        return self._text

    def with_exemplars(self) -> bytes:
        lines = self.text().split(b"\n")
        for index, exemplar in tuple(self.cells.exemplars.items()):
            lines[index] += _exemplar(exemplar).encode()
        return b"\n".join(lines)


@lru_cache(maxsize=16_384)
def _number(value: float) -> bytes:
    """As the format writes it; most values are small counts that many series share."""
    return floatToGoString(value).encode()


def _collected(metrics: Iterable[Metric], openmetrics: bool) -> Iterator[bytes]:
    for metric in metrics:
        yield _head(metric.name, metric.type, metric.documentation, openmetrics)
        for sample in metric.samples:
            yield _sample_line(sample, openmetrics).encode()


def _sample_line(sample: Sample, openmetrics: bool) -> str:
    labels = _in_braces(_labels(tuple(sample.labels), tuple(sample.labels.values())))
    exemplar = _exemplar(sample.exemplar) if openmetrics else ""
    return f"{sample.name}{labels} {floatToGoString(sample.value)}{exemplar}\n"


def _head(name: str, kind: str, documentation: str, openmetrics: bool) -> bytes:
    """HELP and TYPE. The older format names a counter with its `_total`."""
    shown = f"{name}_total" if kind == "counter" and not openmetrics else name
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    if openmetrics:
        text = text.replace('"', r"\"")
    return f"# HELP {shown} {text}\n# TYPE {shown} {kind}\n".encode()


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _in_braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    labels = _labels(exemplar.labels, exemplar.labels.values())
    when = exemplar.timestamp
    shown = f" {float(when) if isinstance(when, Timestamp) else when}" if when is not None else ""
    return f" # {{{labels}}} {floatToGoString(exemplar.value)}{shown}"
