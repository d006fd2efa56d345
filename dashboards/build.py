"""Grafana's JSON of a page, with Grafana's own builders (classic schema, as Grafana 11 and 12 read it)."""

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, gauge, heatmap, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus as query
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.page import GRAFANA_UNITS, Page, Panel, Variable

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
BUILDERS: dict[str, Any] = {
    "timeseries": timeseries.Panel, "stat": stat.Panel, "gauge": gauge.Panel, "bargauge": bargauge.Panel, "heatmap": heatmap.Panel,
    "table": table.Panel,
}  # fmt: skip
NOW_KINDS = frozenset({"stat", "gauge", "bargauge", "table"})
"""They show the last value, so they ask for one."""
COLUMNS, ROW_HEIGHT = 24, 1
GREEN, AMBER, RED = "green", "orange", "red"


def dashboard_json(page: Page) -> str:
    """The file's content; the same page gives the same text."""
    made = (
        build.Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags(list(page.tags))
        .refresh(page.refresh)
        .time(f"now-{page.hours}h", "now")
        .timezone("browser")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .link(build.DashboardLink("Fairlane").type(model.DashboardLinkType.DASHBOARDS).tags(["fairlane"]).as_dropdown(True).keep_time(True))
    )
    for variable in page.variables:
        made = made.with_variable(_variable(variable))
    built = made.build()
    built.panels = list(_placed(page))
    return json.dumps(json.loads(json.dumps(built, cls=JSONEncoder)), indent=1, sort_keys=True) + "\n"


def _variable(variable: Variable) -> build.QueryVariable:
    made = (
        build.QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.query)
        .datasource(DATASOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.is_single:
        return made
    everything = model.VariableOption(text="All", value="$__all", selected=True)
    return made.include_all(True).multi(True).all_value(".*").current(everything)


def _placed(page: Page) -> Iterator[model.RowPanel | model.Panel]:
    """Rows and panels from left to right; panels are numbered by us, so a moved panel keeps no stranger's links."""
    number, top = 1, 0
    for row in page.rows:
        heading = build.Row(row.title).id(number).build()
        heading.grid_pos = model.GridPos(h=ROW_HEIGHT, w=COLUMNS, x=0, y=top)
        yield heading
        number, top, left, line_height = number + 1, top + ROW_HEIGHT, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, line_height = 0, top + line_height, 0
            yield _panel(panel, number, model.GridPos(h=panel.height, w=panel.width, x=left, y=top))
            number, left, line_height = number + 1, left + panel.width, max(line_height, panel.height)
        top += line_height


def _panel(panel: Panel, number: int, place: model.GridPos) -> model.Panel:
    made = (
        BUILDERS[panel.kind]()
        .id(number)
        .title(panel.title)
        .description(panel.description)
        .unit(GRAFANA_UNITS.get(panel.unit, panel.unit))
        .datasource(DATASOURCE)
        .grid_pos(place)
        .thresholds(_thresholds(panel))
    )
    if panel.max_value is not None:
        made = made.max(panel.max_value)
    if panel.no_value:
        made = made.no_value(panel.no_value)
    if panel.kind not in {"heatmap", "table"}:
        made = made.min(0)
    for index, each in enumerate(panel.queries):
        made = made.with_target(_target(panel, each.expr, each.legend, chr(ord("A") + index)))
    return _styled(made, panel).build()


def _target(panel: Panel, expr: str, legend: str, name: str) -> query.Dataquery:
    made = query.Dataquery().expr(expr).legend_format(legend).ref_id(name)
    made = made.instant() if panel.kind in NOW_KINDS else made.range()
    if panel.kind == "table":
        return made.format(PromQueryFormat.TABLE)
    if panel.kind == "heatmap":
        return made.format(PromQueryFormat.HEATMAP)
    return made.exemplar(panel.kind == "timeseries")


def _styled(made: Any, panel: Panel) -> Any:
    match panel.kind:
        case "timeseries":
            legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.TABLE).placement(shapes.LegendPlacement.BOTTOM)
            made = made.legend(legend.calcs(["mean", "max", "lastNotNull"]).show_legend(True))
            made = made.tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
            made = made.line_width(1).fill_opacity(35 if panel.stacked else 5).show_points(shapes.VisibilityMode.NEVER)
            return made.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL)) if panel.stacked else made
        case "stat":
            return made.graph_mode(shapes.BigValueGraphMode.AREA).color_mode(shapes.BigValueColorMode.VALUE)
        case "bargauge":
            return made.orientation(shapes.VizOrientation.HORIZONTAL).display_mode(shapes.BarGaugeDisplayMode.GRADIENT)
        case _:
            return made


def _thresholds(panel: Panel) -> build.ThresholdsConfig:
    warn, bad = panel.warn_at, panel.bad_at
    if warn is None or bad is None:
        steps = [model.Threshold(value=None, color=GREEN)]
    elif bad > warn:
        steps = [model.Threshold(None, GREEN), model.Threshold(warn, AMBER), model.Threshold(bad, RED)]
    else:
        steps = [model.Threshold(None, RED), model.Threshold(bad, AMBER), model.Threshold(warn, GREEN)]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)
