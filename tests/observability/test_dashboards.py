"""Dashboards: what is committed is what the pages say, and the pages keep the rules of Grafana's dashboard-linter and ours."""

import itertools
import json
import re
from typing import Any

import pytest

from appliance.telemetry.families import FAMILIES
from dashboards.__main__ import FOLDER
from dashboards.build import dashboard_json
from dashboards.page import Page, Panel
from dashboards.pages import PAGES
from tests.observability.promql import FAMILY_OF, labels_of, parsed, selectors, series_names
from tests.observability.test_alerts import RECORDED, RULES

NOT_SHOWN = dict.fromkeys(
    ("fairlane_slo_attainment_ratio", "fairlane_slo_budget_left_ratio", "fairlane_slo_burn_rate"),
    "for installations without Prometheus: the recording rules make the same from the counters",
) | {"fairlane_otlp_traces_total": "0 without a collector, which has a dashboard of its own"}
"""Families that no panel and no rule reads, and why."""
RECORDED_LABELS = frozenset({"engine", "lane", "slo", "tenant"})
"""What recorded series may have."""
PANELS = [pytest.param(page, panel, id=f"{page.uid}: {panel.title}") for page in PAGES for panel in page.panels]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_the_committed_json_is_what_the_page_makes(page: Page) -> None:
    assert (FOLDER / f"{page.uid}.json").read_text() == dashboard_json(page), "run `make dashboards`"


def test_no_dashboard_is_committed_that_no_page_makes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {page.uid for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_panels_have_unique_ids_do_not_overlap_and_name_the_chosen_datasource(page: Page) -> None:
    made: dict[str, Any] = json.loads((FOLDER / f"{page.uid}.json").read_text())
    panels = made["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    pictures = [panel for panel in panels if panel["type"] != "row"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in pictures)
    assert [variable["name"] for variable in made["templating"]["list"]] == ["datasource", *(variable.name for variable in page.variables)]
    assert made["title"].startswith("Fairlane / ") and made["uid"] == page.uid and made["schemaVersion"] >= 36


@pytest.mark.parametrize(("page", "panel"), PANELS)
def test_a_panel_says_what_it_shows_in_which_unit_and_what_to_do(page: Page, panel: Panel) -> None:
    assert panel.title and panel.unit and panel.queries
    assert len(panel.description) > 40 and panel.description.endswith(".")
    assert len({query.legend for query in panel.queries}) == len(panel.queries)
    assert (panel.warn_at is None) == (panel.bad_at is None)


@pytest.mark.parametrize(("page", "panel"), PANELS)
def test_a_panel_reads_series_that_exist_counters_under_a_rate_and_legends_by_labels_that_are_there(page: Page, panel: Panel) -> None:
    variables = {"datasource", "__rate_interval", *(variable.name for variable in page.variables)}
    for query in panel.queries:
        assert set(re.findall(r"\$(\w+)", query.expr)) <= variables
        for selector, is_range in selectors(parsed(query.expr)):
            if selector.name in RECORDED:
                continue
            assert selector.name in FAMILY_OF, f"{selector.name} is not declared"
            assert {matcher.name for matcher in selector.matchers.matchers} <= labels_of(selector.name), query.expr
            assert is_range or FAMILY_OF[selector.name].kind == "gauge", f"{selector.name} is a counter: show its rate"
        for label in re.findall(r"{{(\w+)}}", query.legend):
            read = [selector.name for selector, _ in selectors(parsed(query.expr))]
            has = {name for series in read for name in (labels_of(series) if series in FAMILY_OF else RECORDED_LABELS)}
            assert label in has, f"{query.legend}: {query.expr} has no such label"


def test_each_variable_of_a_page_is_used_and_reads_a_label_that_is_there() -> None:
    for page in PAGES:
        text = " ".join(query.expr for panel in page.panels for query in panel.queries)
        for variable in page.variables:
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.query).groups()  # type: ignore[union-attr]
            assert label in labels_of(name) and f"${variable.name}" in text, (page.uid, variable.name)


def test_every_declared_family_is_shown_or_said_not_to_be() -> None:
    expressions = [query.expr for page in PAGES for panel in page.panels for query in panel.queries] + [rule.expr for rule in RULES]
    read = {selector.name for expr in expressions for selector, _ in selectors(parsed(expr))}
    unread = {family.full_name for family in FAMILIES if not read & set(series_names(family))}
    assert unread == set(NOT_SHOWN)
