"""A dashboard, read from the JSON that Grafana gets."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from appliance.packed import project_path

Kind = Literal["timeseries", "stat", "gauge", "bargauge", "heatmap", "table"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FIRST = "fairlane-overview"
_LABEL_VALUES = re.compile(r"label_values\((\w+), (\w+)\)")


@dataclass(frozen=True, slots=True)
class Query:
    """One expression. `legend` names its series, with label values in double braces."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on (None: from below) it has this colour."""

    value: float | None
    color: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture. `width` of 24 columns, `height` in rows of Grafana's grid."""

    panel_id: int
    title: str
    description: str
    kind: Kind
    unit: str
    width: int
    height: int
    is_stacked: bool
    max_value: float | None
    no_value: str
    """What is said where there is nothing to draw; empty: that there is no data."""
    thresholds: tuple[Threshold, ...]
    queries: tuple[Query, ...]

    @property
    def shows_now(self) -> bool:
        """It shows one value a series, and not its course."""
        return self.kind not in ("timeseries", "heatmap")


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice: the values of a label. `is_single`: one at a time, and never all."""

    name: str
    title: str
    metric: str
    label: str
    is_single: bool


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


def read_boards(folder: Path | None = None) -> dict[str, Board]:
    """All dashboards by uid: the overview, then the others in the order of their titles."""
    found = [board_of(json.loads(path.read_text())) for path in sorted((folder or project_path("dashboards/json")).glob("*.json"))]
    return {board.uid: board for board in sorted(found, key=lambda board: (board.uid != FIRST, board.title))}


def read_rules(path: Path | None = None) -> dict[str, str]:
    """Expressions of the recording rules, by the name they record."""
    groups = yaml.safe_load((path or project_path("alerts/recording.yaml")).read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def board_of(made: Mapping[str, Any]) -> Board:
    """Of Grafana's classic schema, as far as our own builder (`dashboards/build.py`) uses it."""
    rows: list[tuple[str, list[Panel]]] = []
    for each in made["panels"]:
        if each["type"] == "row":
            rows.append((each["title"], []))
        else:
            rows[-1][1].append(_panel(each))
    return Board(
        uid=made["uid"],
        title=made["title"].partition(" / ")[2] or made["title"],
        description=made.get("description", ""),
        variables=tuple(_variable(each) for each in made["templating"]["list"] if each["type"] == "query"),
        rows=tuple(Row(title, tuple(panels)) for title, panels in rows),
    )


def _panel(made: Mapping[str, Any]) -> Panel:
    defaults, custom = made["fieldConfig"]["defaults"], made["fieldConfig"]["defaults"].get("custom", {})
    assert made["type"] in KINDS, f"panels of the kind {made['type']!r} are not drawn here"
    steps: Sequence[Mapping[str, Any]] = defaults.get("thresholds", {}).get("steps", ())
    return Panel(
        panel_id=made["id"],
        title=made["title"],
        description=made.get("description", ""),
        kind=made["type"],
        unit=defaults.get("unit", "short"),
        width=made["gridPos"]["w"],
        height=made["gridPos"]["h"],
        is_stacked=custom.get("stacking", {}).get("mode") == "normal",
        max_value=defaults.get("max"),
        no_value=defaults.get("noValue", ""),
        thresholds=tuple(Threshold(step.get("value"), step["color"]) for step in steps),
        queries=tuple(Query(target["expr"], target.get("legendFormat", "")) for target in made["targets"]),
    )


def _variable(made: Mapping[str, Any]) -> Variable:
    query = made["query"]
    found = _LABEL_VALUES.fullmatch(query if isinstance(query, str) else query["query"])
    assert found is not None, f"variable {made['name']} is no label_values(metric, label)"
    return Variable(made["name"], made.get("label") or made["name"], found[1], found[2], is_single=not made.get("includeAll", False))
