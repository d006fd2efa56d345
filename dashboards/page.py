"""What a dashboard is, apart from Grafana: rows of panels with queries, a unit and a word of advice each."""

from dataclasses import dataclass, field
from typing import Literal

type Kind = Literal["timeseries", "stat", "gauge", "bargauge", "heatmap", "table"]
type Unit = Literal["s", "percentunit", "short", "reqps", "bytes", "tokens/s", "rows", "bool", "currency"]

GRAFANA_UNITS: dict[str, str] = {
    "tokens/s": "suffix: tok/s",
    "rows": "short",
    "bool": "bool_yes_no",
    "currency": "none",
}
"""Where Grafana calls a unit otherwise."""


NO_COST = "No price is set (--device-hour-price), or nothing was computed in the last hour."


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression. `legend` names its series, with label values in double braces."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    description: str
    """What it shows and what to do when it looks wrong."""
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 12
    """Of 24 columns."""
    height: int = 8
    stacked: bool = False
    warn_at: float | None = None
    """Amber from here on."""
    bad_at: float | None = None
    """Red from here on; below, where it is smaller than `warn_at`."""
    max_value: float | None = None
    no_value: str = ""
    """What is said where there is nothing to draw; empty: that there is no data."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of the page: the values of a label, all of them at first."""

    name: str
    query: str
    """As `label_values(metric, label)`."""
    label: str
    is_single: bool = False
    """One value at a time, and never all."""


LANE = Variable(name="lane", query="label_values(fairlane_requests_total, lane)", label="Lane")
TENANT = Variable(name="tenant", query="label_values(fairlane_requests_total, tenant)", label="Tenant")
ONE_TENANT = Variable(name="tenant", query="label_values(fairlane_requests_total, tenant)", label="Tenant", is_single=True)
MODEL = Variable(name="model", query="label_values(fairlane_requests_total, model)", label="Model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    refresh: str = "10s"
    hours: int = 1
    tags: tuple[str, ...] = field(default=("fairlane",))

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
