"""A dashboard with its numbers: the choices filled in, every query asked, the answers as a browser draws them."""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from appliance.dashboards.board import Board, Panel, Query, Variable
from appliance.dashboards.metrics import Metrics, NoAnswer, Reach
from appliance.promql.grid import Grid
from appliance.promql.values import NAME, Labels, Series

RANGES_S: Mapping[str, float] = {"5m": 300, "15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
ALL = ".*"
MAX_LINES = 60
"""Of one panel: more can not be told apart."""
STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600)


class Line(msgspec.Struct, frozen=True):
    """A series of a panel: a value for each time, or one where the panel shows the present. Null: none, or not a number."""

    name: str
    labels: dict[str, str]
    values: list[float | None]


class PanelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: why there are no lines, where a query could not be answered."""

    id: int
    lines: list[Line]
    error: str = ""
    left_out: int = 0
    """Lines beyond the first `MAX_LINES`."""


class BoardAnswer(msgspec.Struct, frozen=True):
    """`times` in seconds of the Unix epoch, those of lines with more than one value."""

    times: list[float]
    panels: list[PanelAnswer]

    @classmethod
    def failed(cls, board: Board, error: str) -> "BoardAnswer":
        """The same error for every panel."""
        return cls([], [PanelAnswer(id=panel.panel_id, lines=[], error=error) for panel in board.panels])


@dataclass(frozen=True, slots=True)
class Window:
    """What time is shown, and how finely."""

    range_s: float
    step_s: float
    rate_s: float
    """The window of rates: Grafana's `$__rate_interval`."""

    def grid(self, reach: Reach, end_ms: int) -> Grid:
        """The times. Asked of a Prometheus they are whole steps, so that a line does not wobble; our own end at the newest sample."""
        step_ms = round(self.step_s * 1000)
        return Grid(end_ms if reach.is_own else end_ms // step_ms * step_ms, step_ms, round(self.range_s / self.step_s) + 1)


def window_of(range_s: float, reach: Reach) -> Window:
    """The finest step that the samples allow with at most so many points as can be asked for."""
    least_s = max(reach.scrape_s, range_s / reach.max_points)
    step_s = next((step for step in STEPS_S if step >= least_s), least_s)
    return Window(range_s, step_s, max(4 * reach.scrape_s, step_s + reach.scrape_s))


@dataclass(frozen=True, slots=True)
class Choice:
    """A variable with its values and those that are chosen: one, several, or `ALL` alone."""

    variable: Variable
    values: tuple[str, ...]
    chosen: tuple[str, ...]

    @property
    def shown(self) -> str:
        """In words."""
        return "all" if self.chosen == (ALL,) else ", ".join(self.chosen)

    @property
    def pattern(self) -> str:
        """As it is filled in between the quotes of a matcher: several values as Grafana joins them."""
        if self.chosen == (ALL,):
            return ALL
        values = [re.escape(value).replace("\\", "\\\\").replace('"', '\\"') for value in self.chosen]
        return values[0] if len(values) == 1 else f"({'|'.join(values)})"


class Viewer:
    """Asks what a dashboard asks."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    async def choices(self, board: Board, asked: Mapping[str, Sequence[str]]) -> list[Choice]:
        """The variables; a value that is asked for is kept though it has no series just now. Raises `NoAnswer`."""
        return [await self._choice(variable, asked.get(variable.name, ())) for variable in board.variables]

    async def _choice(self, variable: Variable, asked: Sequence[str]) -> Choice:
        wanted = tuple(value for value in dict.fromkeys(asked) if value not in ("", ALL))
        values = tuple(sorted({*await self.metrics.label_values(variable.metric, variable.label), *wanted}))
        if variable.is_single:
            return Choice(variable, values, (wanted or values or ("none",))[:1])
        return Choice(variable, values, wanted or (ALL,))

    async def answer(self, board: Board, choices: Sequence[Choice], window: Window) -> BoardAnswer:
        """All panels. A query without an answer is an error of its panel."""
        grid = window.grid(self.metrics.reach, self.metrics.end_ms())
        panels = await asyncio.gather(*(self._panel(panel, choices, window, grid) for panel in board.panels))
        return BoardAnswer([time_ms / 1000 for time_ms in grid.times_ms], list(panels))

    async def _panel(self, panel: Panel, choices: Sequence[Choice], window: Window, grid: Grid) -> PanelAnswer:
        grid = Grid(grid.end_ms) if panel.shows_now else grid
        try:
            found = await asyncio.gather(*(self.metrics.series(filled(query.expr, choices, window), grid) for query in panel.queries))
        except NoAnswer as error:
            return PanelAnswer(id=panel.panel_id, lines=[], error=str(error))
        lines = [line for query, series in zip(panel.queries, found, strict=True) for line in lines_of(query, series)]
        if panel.kind == "heatmap":
            lines = buckets_of(lines)
        return PanelAnswer(id=panel.panel_id, lines=lines[:MAX_LINES], left_out=max(0, len(lines) - MAX_LINES))


def filled(expr: str, choices: Sequence[Choice], window: Window) -> str:
    """An expression as it is asked."""
    values = {choice.variable.name: choice.pattern for choice in choices} | {"__rate_interval": f"{round(window.rate_s * 1000)}ms"}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), expr)


def lines_of(query: Query, series: Sequence[Series]) -> list[Line]:
    """Named by their legend; in the order of the names, so that colours stay."""
    lines = [
        Line(named(query.legend, each.labels), {name: text for name, text in each.labels.items() if name != NAME}, _plain(each.values))
        for each in series
    ]
    return sorted((line for line in lines if any(value is not None for value in line.values)), key=lambda line: line.name)


def named(legend: str, labels: Labels) -> str:
    """The legend with the labels' values."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend).strip() or "value"


def _plain(values: Sequence[float | None]) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def buckets_of(lines: Sequence[Line]) -> list[Line]:
    """Cumulated buckets (named by their upper bound) as what lies between two bounds, the lowest first."""
    bounds = sorted(((float(line.labels["le"]), line) for line in lines if line.labels.get("le")), key=lambda each: each[0])
    found: list[Line] = []
    below: Sequence[float | None] = []
    for _, line in bounds:
        own = [
            None if value is None else max(0.0, value - (before or 0.0))
            for value, before in zip(line.values, below or [0.0] * len(line.values), strict=True)
        ]
        found.append(Line(line.name, line.labels, own))
        below = line.values
    return found
