"""Dashboards and alerts at work: a real Prometheus scrapes a real appliance under a real load, and every query is run.

Grafana itself is not there (it is in no package registry): its JSON is checked by test_dashboards.py, its queries here. The command
that tries it where it can be had is in docs/observability.md.
"""

import asyncio
import re
import time
from typing import Any

import httpx
import pytest

from appliance.dashboards.board import Board, read_boards
from appliance.dashboards.prometheus import PrometheusMetrics
from appliance.dashboards.viewer import BoardAnswer, Viewer, window_of
from appliance.domain.slas.decisions import SEED_TIERS
from dashboards.page import Page, Panel, Query
from dashboards.pages import PAGES
from tests.observability.conftest import MAY_BE_EMPTY, Run
from tests.observability.monitoring import RATE_WINDOW, SCRAPE_S, Answer, finite
from tests.observability.rules import ALERTS, RECORDS, rules_of, scaling_triggers
from tests.observability.traffic import GONE, NOISY, STRICT

PANELS = [pytest.param(page, panel, id=f"{page.uid}: {panel.title}") for page in PAGES for panel in page.panels]


def choices(run: Run, page: Page, query: Query) -> list[dict[str, str]]:
    """Every combination of values of the variables that a query has, as Grafana offers them: what the labels hold, and all."""
    combined: list[dict[str, str]] = [{}]
    for variable in page.variables:
        if re.search(rf"\${variable.name}\b", query.expr):
            series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable.query).groups()  # type: ignore[union-attr]
            values = [answer.labels[label] for answer in run.monitoring.query(f"count by ({label}) ({series})")]
            assert values
            offered = values if variable.is_single else [*values, ".*"]
            combined = [{**chosen, variable.name: value} for chosen in combined for value in offered]
    return combined


def may_be_empty(run: Run, page: Page, panel: Panel, chosen: dict[str, str]) -> bool:
    """Where nobody of the tenant was served in the lane of late: a tenant without requests, the lane of those refused before they had one,
    `other` with what a tenant had in flight as it was removed."""
    where = ", ".join(f'{name}=~"{value}"' for name, value in chosen.items())
    served = run.monitoring.query(f'sum(increase(fairlane_requests_total{{outcome="completed", {where}}}[{RATE_WINDOW}])) > 0')
    return (page.uid, panel.title) in MAY_BE_EMPTY or not served


def filled(expr: str, chosen: dict[str, str]) -> str:
    """As Grafana fills an expression in."""
    for name, value in chosen.items():
        expr = expr.replace(f"${name}", value)
    return expr.replace("$__rate_interval", RATE_WINDOW)


@pytest.mark.parametrize(("page", "panel"), PANELS)
def test_a_panel_answers_for_every_choice_with_the_labels_of_its_legend(run: Run, page: Page, panel: Panel) -> None:
    for query in panel.queries:
        for chosen in choices(run, page, query):
            expr = filled(query.expr, chosen)
            if may_be_empty(run, page, panel, chosen):
                run.monitoring.query(expr)
            else:
                run.monitoring.until_right(lambda expr=expr, query=query: complaint(run, expr, panel, query))


def complaint(run: Run, expr: str, panel: Panel, query: Query) -> str:
    """What is wrong with the answer; empty where nothing is."""
    answers = run.monitoring.query(expr)
    if not finite(answers):
        return f"no data for {expr}"
    labels = re.findall(r"{{(\w+)}}", query.legend)
    if not all(answer.labels.get(label) for label in labels for answer in answers):
        return f"{query.legend} is not in {answers}"
    is_share = panel.unit == "percentunit" and "budget" not in panel.title
    return f"no shares: {answers}" if is_share and not all(-0.01 <= answer.value <= 1.5 for answer in finite(answers)) else ""


@pytest.mark.parametrize("rule", [*rules_of(RECORDS)], ids=lambda rule: rule.name)
def test_a_recording_rule_records(run: Run, rule) -> None:
    run.monitoring.until(lambda: finite(run.monitoring.query(rule.name)), what=rule.name)


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_an_alerts_expression_is_one_that_prometheus_evaluates(run: Run, rule) -> None:
    run.monitoring.query(rule.expr)


@pytest.mark.parametrize(
    "family", ["fairlane_lane_ttft_seconds", "fairlane_ttft_seconds", "fairlane_lane_inter_token_seconds", "fairlane_step_seconds"]
)
def test_quantiles_are_in_order(run: Run, family: str) -> None:
    def quantile(q: float, at_s: float) -> dict[str, Answer]:
        answers = run.monitoring.query(f"histogram_quantile({q}, sum by (le, lane, phase) (rate({family}_bucket[1m])))", at_s)
        return {str(sorted(answer.labels.items())): answer for answer in finite(answers)}

    run.monitoring.until(lambda: quantile(0.5, time.time() - SCRAPE_S), what=f"two samples of {family}")
    at_s = time.time() - SCRAPE_S  # one time for all three
    p50, p90, p99 = (quantile(q, at_s) for q in (0.5, 0.9, 0.99))
    assert p50 and p50.keys() == p90.keys() == p99.keys()
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


def test_what_a_tenant_holds_and_may_hold_is_shown(run: Run) -> None:
    for held in (f'fairlane_tenant_kv_pages{{tenant="{NOISY}"}}', f'fairlane_limit_use_ratio{{tenant="{NOISY}", limit="max_concurrency"}}'):
        run.monitoring.until(lambda held=held: run.monitoring.query(f"max_over_time({held}[{RATE_WINDOW}]) > 0"), what=held)
    limits = run.monitoring.query(f'fairlane_tenant_kv_limit_ratio{{tenant="{STRICT}"}}')
    tier = SEED_TIERS["interactive"]
    assert {each.labels["limit"]: each.value for each in limits} == {"reserve": tier.kv_reserve, "cap": tier.kv_cap}


def test_steps_say_whose_pages_were_evicted_for_whom(run: Run) -> None:
    def told() -> set[str]:
        page = httpx.get(f"{run.appliance.base_url}/debug/steps", headers=run.appliance.admin_headers).raise_for_status().json()
        return {row[page["columns"].index("evicted")] for row in page["rows"]} - {""}

    run.monitoring.until(told, what="an eviction within the newest steps")
    assert all(re.fullmatch(r"\d+ of \S+ for \S+(, \d+ of \S+ for \S+)*", text) for text in told())


def test_a_removed_tenant_has_no_series_any_more(run: Run) -> None:
    assert run.monitoring.query(f'count({{tenant="{NOISY}"}})')
    run.monitoring.until(lambda: not run.monitoring.query(f'count({{tenant="{GONE}", __name__!~"ALERTS.*|fairlane:.*"}})'))


@pytest.mark.parametrize("board", read_boards().values(), ids=lambda board: board.uid)
def test_every_panel_is_answered_by_a_prometheus(run: Run, board: Board) -> None:
    async def asked() -> BoardAnswer:
        viewer = Viewer(PrometheusMetrics(run.monitoring.prometheus_url, {}))
        return await viewer.answer(board, await viewer.choices(board, {"tenant": [NOISY]}), window_of(300, viewer.metrics.reach))

    titles = {panel.panel_id: panel.title for panel in board.panels}
    wanted = {title: "empty" if (board.uid, title) in MAY_BE_EMPTY else "answered" for title in titles.values()}

    def complaint() -> object:
        found = {titles[panel.id]: panel.error or ("answered" if panel.lines else "empty") for panel in asyncio.run(asked()).panels}
        return {title: said for title, said in found.items() if said != wanted[title]}

    run.monitoring.until_right(complaint)


# ---- the last tests: the load ends here


@pytest.fixture(scope="module")
def ended(run: Run) -> Run:
    run.traffic.stop()
    return run


def answer_of(run: Run, path: str) -> Any:
    """JSON of the admin API."""
    return httpx.get(f"{run.appliance.base_url}/api/v1{path}", headers=run.appliance.admin_headers).raise_for_status().json()


def test_objectives_are_the_same_in_the_api_and_in_the_metrics_and_a_budget_that_nobody_could_keep_is_overspent(ended: Run) -> None:
    def told() -> dict[tuple[str, ...], float]:
        views = answer_of(ended, f"/slo?tenant={STRICT}")["slos"]
        return {(view["lane"], view["slo"], outcome): view[outcome] for view in views for outcome in ("good", "bad")}

    def counted() -> dict[tuple[str, ...], float]:
        found = ended.monitoring.query(f'fairlane_slo_requests_total{{tenant="{STRICT}"}}')
        return {(each.labels["lane"], each.labels["slo"], each.labels["outcome"]): each.value for each in found}

    ended.monitoring.until_right(lambda: (told(), counted()) if told() != counted() else "", timeout_s=30)
    statuses = ended.traffic.sent.statuses
    assert sum(number for (_, slo, _), number in told().items() if slo == "ttft") == statuses[STRICT, 200] + statuses[STRICT, 503]
    views = answer_of(ended, f"/slo?tenant={STRICT}")["slos"]

    def shown(name: str) -> dict[tuple[str, str], float]:
        found = ended.monitoring.query(f'fairlane_slo_{name}_ratio{{tenant="{STRICT}"}}')
        return {(each.labels["lane"], each.labels["slo"]): each.value for each in found}

    for name in ("attainment", "budget_left"):  # looked at every 5 s
        wanted = pytest.approx({(view["lane"], view["slo"]): view[name] for view in views if view[name] is not None})
        ended.monitoring.until_right(lambda name=name, wanted=wanted: "" if shown(name) == wanted else (shown(name), wanted), timeout_s=30)
    judged = {view["lane"]: view for view in views if view["slo"] == "ttft" and view["attainment"] is not None}
    assert {"fast", "slow"} <= judged.keys()
    assert all(view["bad"] and view["budget_left"] < 0 and view["burn"]["5m"] > 1 for view in judged.values())


def test_who_cost_whom_time_and_what_tails_are_made_of_are_the_same_in_the_api_and_in_the_metrics(ended: Run) -> None:
    def told() -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
        tail = answer_of(ended, "/tail")
        parts = {(view["lane"], view["slo"], part["part"]): part["seconds"] for view in tail["tails"] for part in view["parts"]}
        return {(each["victim"], each["culprit"]): each["seconds"] for each in tail["interference"]}, parts

    def shown(name: str, *labels: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(each.labels[label] for label in labels): each.value for each in ended.monitoring.query(f"fairlane_{name}_seconds_total")
        }

    def difference() -> object:
        costs, parts = told()
        pairs = (costs, shown("interference", "victim", "culprit")), (parts, shown("tail", "lane", "slo", "part"))
        return [pair for pair in pairs if pair[0] != pytest.approx(pair[1], abs=1e-5)]

    ended.monitoring.until_right(difference, timeout_s=30)
    costs, _ = told()
    assert costs[STRICT, NOISY] > 0 and costs[STRICT, NOISY] == max(seconds for (victim, _), seconds in costs.items() if victim == STRICT)


def test_totals_are_those_that_the_clients_counted(ended: Run) -> None:
    run, sent = ended, ended.traffic.sent

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

    def difference() -> object:
        """The last scrape may be older than the last answer."""
        tenants = [(counted(tenant), seen(tenant)) for tenant in (NOISY, STRICT, "limited")]
        tokens = [
            (total("fairlane_tokens_total", tenant=STRICT, direction=direction), tokens[STRICT])
            for direction, tokens in (("prompt", sent.prompt_tokens), ("generated", sent.generated_tokens))
        ]
        return [pair for pair in (*tenants, *tokens) if pair[0] != pair[1]]

    run.monitoring.until_right(difference, timeout_s=30)
