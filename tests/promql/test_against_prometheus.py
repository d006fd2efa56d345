"""The evaluator's answers are those of a real Prometheus that has the same samples: for every query of ours, and for made-up ones."""

import itertools
import math
import re
from collections.abc import Iterator

import httpx
import pytest

from appliance.promql.errors import Ambiguous, Unparsable, Unsupported
from appliance.promql.evaluator import evaluate
from appliance.promql.grid import Grid
from appliance.promql.source import Samples
from appliance.promql.values import NAME
from dashboards.page import Query
from dashboards.pages import PAGES
from tests.observability.rules import RECORDS, rules_of
from tests.promql.samples import LAST_MS, Kept, made_up, prometheus_with

GRID = Grid(LAST_MS + 7_000, 60_000, 50)
"""Whole seconds: no sample lies on the border of a window, where Prometheus 2 took those on the left and Prometheus 3 does not."""
RULES = {rule.name: rule.expr for rule in rules_of(RECORDS)}
QUERIES = [
    pytest.param(query, id=f"{page.uid}: {panel.title}: {query.legend}")
    for page in PAGES
    for panel in page.panels
    for query in panel.queries
]

type Answer = dict[frozenset[tuple[str, str]], list[float | None]]


@pytest.fixture(scope="module")
def kept() -> Kept:
    return made_up()


@pytest.fixture(scope="module")
def prometheus(kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with prometheus_with(kept, tmp_path_factory.mktemp("prometheus")) as url, httpx.Client(base_url=url) as client:
        yield client


def ours(kept: Kept, expr: str, rules: dict[str, str], grid: Grid = GRID) -> Answer:
    """A recorded series without its name, which the rule's own expression does not have."""
    recorded = {(NAME, name) for name in rules}
    return {frozenset(series.labels.items()) - recorded: list(series.values) for series in evaluate(expr, kept, grid, rules)}


def theirs(prometheus: httpx.Client, expr: str, grid: Grid = GRID) -> Answer:
    times_ms = grid.times_ms
    query = {"query": expr, "start": times_ms[0] / 1000, "end": times_ms[-1] / 1000, "step": grid.step_ms / 1000}
    answer = prometheus.get("/api/v1/query_range", params={key: str(value) for key, value in query.items()}).json()
    assert answer["status"] == "success", f"{expr}: {answer}"
    found: Answer = {}
    for series in answer["data"]["result"]:
        column: list[float | None] = [None] * grid.count
        for time_s, value in series["values"]:
            column[times_ms.index(round(time_s * 1000))] = float(value)
        found[frozenset(series["metric"].items())] = column
    return found


def same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


def assert_same(mine: Answer, real: Answer, expr: str) -> None:
    assert mine.keys() == real.keys(), expr
    for labels, column in real.items():
        wrong = [(at, a, b) for at, (a, b) in enumerate(zip(mine[labels], column, strict=True)) if not same(a, b)]
        assert not wrong, f"{expr}: {dict(labels)} (place, ours, theirs): {wrong[:5]}"


def filled(expr: str, tenant: str) -> str:
    return re.sub(r"\$(lane|model)\b", ".*", expr).replace("$tenant", tenant).replace("$__rate_interval", "1m")


def spelled_out(expr: str) -> str:
    """Without names of recorded series."""
    name = re.compile(r"fairlane:\w+:\w+(\{[^}]*=~\"\.\*\"\})?")
    while name.search(expr):
        expr = name.sub(lambda found: f"({RULES[found[0].partition('{')[0]]})", expr)
    return expr


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_a_dashboard_has_the_answer_that_prometheus_gives(kept: Kept, prometheus: httpx.Client, query: Query) -> None:
    tenants = (".*",) if "fairlane:" in query.expr else (".*", "acme")
    for expr in dict.fromkeys(filled(query.expr, tenant) for tenant in tenants):
        real = theirs(prometheus, spelled_out(expr))
        assert real, f"no data for {expr}"
        assert_same(ours(kept, expr, RULES), real, expr)


@pytest.mark.parametrize("name", RULES)
def test_a_recorded_series_is_its_rule(kept: Kept, prometheus: httpx.Client, name: str) -> None:
    assert_same(ours(kept, name, RULES), theirs(prometheus, spelled_out(RULES[name])), name)


SELECTORS = (
    "fairlane_kv_pages", 'fairlane_queue_depth{lane!="fast"}', 'fairlane_running_requests{lane=~"fa.*", engine!~"y|z"}',
    'fairlane_queue_depth{lane=""}', 'fairlane_slo_target_seconds{slo="ttft"}',
)  # fmt: skip
RATES = (
    "rate(fairlane_requests_total[1m])", "increase(fairlane_requests_total[17m])", "rate(fairlane_tokens_total[50s])",
    "increase(fairlane_slo_requests_total[1d])", "rate(fairlane_busy_seconds_total[20s])",
)  # fmt: skip
OPERATORS = ("+", "-", "*", "/", ">", "<", ">=", "<=", "==", "!=", "> bool", "== bool")
AGGREGATIONS = ("sum", "avg", "min", "max", "count")


def made_up_expressions() -> Iterator[str]:
    """Each part of the language with each kind of operand."""
    vectors = (*SELECTORS, *RATES)
    yield from vectors
    for aggregation, vector, group in itertools.product(AGGREGATIONS, vectors, ("", "by (lane)", "without (lane, model)", "by (nothing)")):
        yield f"{aggregation} {group} ({vector})"
    for operator, vector in itertools.product(OPERATORS, vectors):
        yield f"{vector} {operator} 1.5"
        yield f"1.5 {operator} {vector}"
        yield f"{vector} {operator} -0.5"
        yield f"{vector} {operator} {vector}"
        yield f"{vector} {operator} on () group_left () vector(2)"
        yield f"sum by (lane) ({vector}) {operator} on (lane) avg by (lane, tenant) (fairlane_queue_depth)"
        yield f"sum by (lane, model) ({vector}) {operator} ignoring (model) max by (lane) (fairlane_queue_depth)"
    for sets, left, right in itertools.product(("and", "or", "unless"), vectors[::2], vectors[1::2]):
        yield f"({left} > 2) {sets} {right}"
        yield f"{left} {sets} on (lane) ({right} > 1)"
        yield f"{left} {sets} ignoring (phase, state) {right}"
    for rank, vector in itertools.product(("topk(2, {})", "bottomk(1, {})", "topk by (lane) (1, {})", "topk(0, {})"), vectors):
        yield rank.format(f"{vector} > 0")
    for quantile in (-1, 0, 0.001, 0.5, 0.99, 1, 2):
        yield f"histogram_quantile({quantile}, rate(fairlane_ttft_seconds_bucket[2m]))"
        yield f"histogram_quantile({quantile}, sum by (le) (increase(fairlane_step_seconds_bucket[10m])))"
        yield f'histogram_quantile({quantile}, rate(fairlane_ttft_seconds_bucket{{le!="+Inf"}}[2m]))'
    for vector in vectors:
        yield f"scalar({vector})"
        yield f"scalar(sum({vector}))"
        yield f"clamp_max({vector}, 2)"
        yield f'label_replace({vector}, "lane", "in $1", "lane", "(f).*")'
        yield f'label_replace(sum by (lane) ({vector}), "lane", "", "lane", "fast")'
    yield from ("1 + 2 * 3", "vector(1) / 0", "-0.5 / vector(0)", "vector(0) / 0", "scalar(vector(3)) > bool 2")


def test_what_is_understood_of_the_language_means_the_same_as_in_prometheus(kept: Kept, prometheus: httpx.Client) -> None:
    compared = 0
    for expr in made_up_expressions():
        real = theirs(prometheus, expr)
        assert_same(ours(kept, expr, {}), real, expr)
        compared += bool(real)
    assert compared > 500, "most expressions have an answer"


@pytest.mark.parametrize(
    ("expr", "error"),
    [
        ("sum(", Unparsable),
        ("rate(fairlane_requests_total)", Unparsable),
        ("fairlane_ready offset 5m", Unsupported),
        ("fairlane_ready @ 5", Unsupported),
        ('{lane="fast"}', Unsupported),
        ("max_over_time(fairlane_ready[5m])", Unsupported),
        ("stddev(fairlane_ready)", Unsupported),
        ("fairlane_ready ^ 2", Unsupported),
        ("a * on (x) group_left (y) b", Unsupported),
        ("rate(fairlane:kv_used:ratio[5m])", Unsupported),
        ('fairlane_ready{lane=~"("}', Unparsable),
        (r'fairlane_ready{lane=~"\\pN"}', Unsupported),
        ("max_over_time(rate(a[1m])[5m:1m])", Unsupported),
        ("-fairlane_ready", Unsupported),
    ],
)
def test_what_is_not_understood_is_refused_whatever_the_data(expr: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        evaluate(expr, Kept((), {}), GRID, RULES)


@pytest.mark.parametrize(
    "expr",
    [
        "fairlane_queue_depth + on (model) fairlane_queue_depth",
        "sum(fairlane_queue_depth) * on () fairlane_queue_depth",
        'label_replace(fairlane_queue_depth, "lane", "all", "", "")',
    ],
)
def test_what_prometheus_refuses_for_the_data_is_refused(kept: Kept, prometheus: httpx.Client, expr: str) -> None:
    assert prometheus.get("/api/v1/query", params={"query": expr, "time": LAST_MS / 1000}).json()["errorType"] == "execution"
    with pytest.raises(Ambiguous):
        evaluate(expr, kept, GRID, {})


def test_after_the_last_sample_it_holds_for_five_minutes(kept: Kept, prometheus: httpx.Client) -> None:
    grid = Grid(LAST_MS + 400_000, 20_000, 21)
    for expr in ("fairlane_kv_pages", "rate(fairlane_requests_total[3m])"):
        real = theirs(prometheus, expr, grid)
        assert any(None in column and column[-8] is not None for column in real.values()) or "rate" in expr
        assert_same(ours(kept, expr, {}, grid), real, expr)


def test_a_series_that_has_gone_is_stale_at_once() -> None:
    gone = Kept(range(0, 60_000, 15_000), {"a": [Samples({}, [1.0, 2.0, None, None])], "b": [Samples({}, [1.0, None, None, 4.0])]})
    grid = Grid(end_ms=50_000, step_ms=15_000, count=4)  # 5, 20, 35, 50 s
    assert evaluate("a", gone, grid, {})[0].values == [1.0, 2.0, None, None]
    assert evaluate("b", gone, grid, {})[0].values == [1.0, None, None, 4.0]


def test_a_window_is_open_to_the_left() -> None:
    kept = Kept((0, 15_000, 30_000), {"a": [Samples({}, [0.0, 100.0, 101.0])]})
    assert evaluate("increase(a[30s])", kept, Grid(end_ms=30_000), {})[0].values == [pytest.approx(2.0)]  # 1 in 15 s, and the 15 s before
