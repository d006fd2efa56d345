"""Histograms with labels: the client library's are a lock and a walk over the bounds a value, and there is one value a token."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString


class Cells:
    """One label set. One thread observes; others may read meanwhile, and see `count` never ahead of `counts`."""

    __slots__ = ("bounds", "count", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a value equal to one lies below it."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Values by bucket, not cumulated; the last one is what lies beyond all bounds."""
        self.total = 0.0
        """Sum of all values."""
        self.count = 0
        self.exemplars: dict[int, Exemplar] = {}
        """By bucket."""

    def observe(self, value: float, exemplar: Exemplar | None = None) -> int:
        """Count a value; the index of its bucket."""
        index = bisect_left(self.bounds, value)
        if exemplar is not None:
            self.exemplars[index] = exemplar
        self.counts[index] += 1
        self.total += value
        self.count += 1
        return index


class Histogram(Collector):
    """A family: its label sets in the order they came."""

    def __init__(self, name: str, documentation: str, label_names: Sequence[str], bounds: Sequence[float]) -> None:
        self.name = name
        self.documentation = documentation
        self.label_names = tuple(label_names)
        self.bounds = tuple(bounds)
        self.bound_texts = tuple(floatToGoString(bound) for bound in (*self.bounds, float("inf")))
        """As the label `le` has them."""
        self._cells: dict[tuple[str, ...], Cells] = {}
        if not self.label_names:
            self.labels()

    def labels(self, *values: str) -> Cells:
        """The cells of a label set; they exist at 0 from here on."""
        assert len(values) == len(self.label_names), f"{self.name} has the labels {self.label_names}"
        found = self._cells.get(values)
        if found is None:
            found = self._cells[values] = Cells(self.bounds)
        return found

    def items(self) -> list[tuple[tuple[str, ...], Cells]]:
        """Label values and cells, as they are now."""
        return list(self._cells.items())

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """Forget the label sets that have these values."""
        wanted = [(self.label_names.index(name), value) for name, value in labels.items()]
        for values in [values for values in self._cells if all(values[place] == value for place, value in wanted)]:
            del self._cells[values]

    def describe(self) -> list[Metric]:
        """Its name alone: the registry would collect to find it."""
        return [HistogramMetricFamily(self.name, self.documentation)]

    def collect(self) -> Iterator[Metric]:
        """As the client library has it, for whoever reads a registry."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.label_names)
        for values, cells in self.items():
            upto = [(bound, float(count)) for bound, count in zip(self.bound_texts, accumulate(cells.counts), strict=True)]
            seen = cells.exemplars
            family.add_metric(values, [(*each, seen[index]) if index in seen else each for index, each in enumerate(upto)], cells.total)
        yield family
