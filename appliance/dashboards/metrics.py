"""Who answers the queries of a dashboard: a Prometheus, or this process itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.promql.grid import Grid
from appliance.promql.values import Series


class NoAnswer(Exception):
    """A query has no answer; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What can be asked for."""

    source: str
    """As pages name it."""
    longest_s: float
    """How far back it goes at most."""
    held_s: float
    """How far back it goes now."""
    scrape_s: float
    """Between two samples."""
    max_points: int
    """Most times a line is asked for."""
    is_own: bool


class Metrics(Protocol):
    """Answers PromQL."""

    @property
    def reach(self) -> Reach: ...

    def end_ms(self) -> int:
        """The newest time worth asking for, milliseconds of the Unix epoch."""
        ...

    async def series(self, expr: str, grid: Grid) -> Sequence[Series]:
        """An expression at the times of a grid. Raises `NoAnswer`."""
        ...

    async def label_values(self, metric: str, label: str) -> list[str]:
        """All values of a label, in order. Raises `NoAnswer`."""
        ...
