"""Dashboards and alerts at work: a real Prometheus scrapes a real appliance under a real load, and every query is run.

Grafana itself is not there (it is in no package registry): its JSON is checked by test_dashboards.py, its queries here. The command
that tries it where it can be had is in docs/observability.md.
"""

import re

import pytest

from appliance.dashboards.board import Board, read_boards
from appliance.dashboards.prometheus import PrometheusMetrics
from appliance.dashboards.viewer import Viewer, window_of
from dashboards.page import Page, Panel, Query
from dashboards.pages import PAGES
from tests.observability.conftest import MAY_BE_EMPTY, Run
from tests.observability.monitoring import RATE_WINDOW, Answer, finite
from tests.observability.rules import ALERTS, RECORDS, rules_of, scaling_triggers
from tests.observability.traffic import GONE, NOISY, STRICT

PANELS = [pytest.param(page, panel, id=f"{page.uid}: {panel.title}") for page in PAGES for panel in page.panels]


def choices(query: Query) -> list[dict[str, str]]:
    """Every combination of values of the variables that a query has."""
    combined: list[dict[str, str]] = [{}]
    for name in sorted(set(re.findall(r"\$(tenant|lane|model)\b", query.expr))):
        values = {"tenant": [NOISY, STRICT], "lane": ["fast", "slow", ".*"], "model": [".*"]}[name]
        combined = [{**chosen, name: value} for chosen in combined for value in values]
    return combined


def filled(expr: str, chosen: dict[str, str]) -> str:
    """As Grafana fills an expression in."""
    for name, value in chosen.items():
        expr = expr.replace(f"${name}", value)
    return expr.replace("$__rate_interval", RATE_WINDOW)


@pytest.mark.parametrize(("page", "panel"), PANELS)
def test_a_panel_answers_for_every_choice_with_the_labels_of_its_legend(run: Run, page: Page, panel: Panel) -> None:
    for query in panel.queries:
        for chosen in choices(query):
            expr = filled(query.expr, chosen)
            if (page.uid, panel.title) in MAY_BE_EMPTY:
                run.monitoring.query(expr)
                continue
            # the load goes on: on a busy machine a lane may have nothing in its newest minute
            run.monitoring.until(lambda expr=expr: finite(run.monitoring.query(expr)), what=f"data for {expr}")
            answers = run.monitoring.query(expr)
            for label in re.findall(r"{{(\w+)}}", query.legend):
                assert all(answer.labels.get(label) for answer in answers), f"{query.legend}: {answers}"
            if panel.unit == "percentunit":
                assert all(-0.01 <= answer.value <= 1.5 or "budget" in panel.title for answer in finite(answers)), answers


@pytest.mark.parametrize("rule", [*rules_of(RECORDS)], ids=lambda rule: rule.name)
def test_a_recording_rule_records(run: Run, rule) -> None:
    run.monitoring.until(lambda: finite(run.monitoring.query(rule.name)), timeout_s=30)


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_an_alerts_expression_is_one_that_prometheus_evaluates(run: Run, rule) -> None:
    run.monitoring.query(rule.expr)


@pytest.mark.parametrize(
    "family", ["fairlane_lane_ttft_seconds", "fairlane_ttft_seconds", "fairlane_lane_inter_token_seconds", "fairlane_step_seconds"]
)
def test_quantiles_are_in_order(run: Run, family: str) -> None:
    def quantile(q: float) -> dict[str, Answer]:
        answers = run.monitoring.query(f"histogram_quantile({q}, sum by (le, lane, phase) (rate({family}_bucket[1m])))")
        return {str(sorted(answer.labels.items())): answer for answer in finite(answers)}

    p50, p90, p99 = quantile(0.5), quantile(0.9), quantile(0.99)
    assert p50 and p50.keys() == p99.keys()
    assert all(p50[key].value <= p90[key].value <= p99[key].value for key in p50)


@pytest.mark.parametrize("card", ["cpu", "a card that nobody has"])
@pytest.mark.parametrize(("scaler", "trigger"), scaling_triggers())
def test_an_autoscalers_query_has_exactly_one_answer_also_where_nothing_is_scraped(
    run: Run, scaler: str, trigger: dict[str, str], card: str
) -> None:
    expr = re.sub(r'gpu_type="[^"]+"', f'gpu_type="{card}"', trigger["query"])
    assert expr != trigger["query"], "it is to count one GPU type"
    (answer,) = run.monitoring.query(expr)
    assert answer.labels == {} and answer.value >= 0
    if card != "cpu":
        assert answer.value == 0


def test_a_budget_that_burns_reaches_the_pager_through_alertmanager(run: Run) -> None:
    def paged() -> bool:
        alerts = run.monitoring.webhook.alerts("pager", "firing")
        return any(alert["alertname"] == "FairlaneSLOBurnFast" and alert["tenant"] == STRICT for alert in alerts)

    run.monitoring.until(paged)
    assert all(alert["severity"] == "critical" for alert in run.monitoring.webhook.alerts("pager", "firing"))


def test_a_removed_tenant_has_no_series_any_more(run: Run) -> None:
    assert run.monitoring.query(f'count({{tenant="{NOISY}"}})')
    run.monitoring.until(lambda: not run.monitoring.query(f'count({{tenant="{GONE}", __name__!~"ALERTS.*|fairlane:.*"}})'), timeout_s=30)


@pytest.mark.parametrize("board", read_boards().values(), ids=lambda board: board.uid)
async def test_every_panel_is_answered_by_a_prometheus(run: Run, board: Board) -> None:
    viewer = Viewer(PrometheusMetrics(run.monitoring.prometheus_url, {}))
    choices = await viewer.choices(board, {"tenant": NOISY})
    answer = await viewer.answer(board, choices, window_of(300, viewer.metrics.reach))
    titles = {panel.panel_id: panel.title for panel in board.panels}
    found = {titles[panel.id]: panel.error or ("answered" if panel.lines else "empty") for panel in answer.panels}
    assert found == {title: "empty" if (board.uid, title) in MAY_BE_EMPTY else "answered" for title in titles.values()}


def test_totals_are_those_that_the_clients_counted(run: Run) -> None:
    """The last test: the load ends here."""
    run.traffic.stop()
    sent = run.traffic.sent

    def total(name: str, **labels: str) -> float:
        where = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        return sum(answer.value for answer in run.monitoring.query(f"{name}{{{where}}}"))

    def counted(tenant: str) -> dict[str, float]:
        outcomes = ("completed", "rejected", "expired", "cancelled", "failed")
        found = {each: total("fairlane_requests_total", tenant=tenant, outcome=each) for each in outcomes}
        return {
            "completed": found["completed"],
            "refused": found["rejected"] + found["expired"],
            "cancelled": found["cancelled"],
            "failed": found["failed"],
        }

    def seen(tenant: str) -> dict[str, float]:
        statuses = sent.statuses
        refused = statuses[tenant, 429] + statuses[tenant, 503]
        return {"completed": statuses[tenant, 200], "refused": refused, "cancelled": sent.cancelled[tenant], "failed": 0}

    for tenant in (NOISY, STRICT, "limited"):
        run.monitoring.until(lambda tenant=tenant: counted(tenant) == seen(tenant), timeout_s=10)
    for direction, tokens in (("prompt", sent.prompt_tokens), ("generated", sent.generated_tokens)):
        assert total("fairlane_tokens_total", tenant=STRICT, direction=direction) == tokens[STRICT]
