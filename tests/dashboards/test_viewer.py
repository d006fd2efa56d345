"""The built-in viewer: the dashboards' own JSON read, choices filled in safely, answers as a browser draws them."""

import math

import pytest

from appliance.dashboards.board import Board, Query, Variable, read_boards, read_rules
from appliance.dashboards.metrics import Reach
from appliance.dashboards.own import OwnMetrics
from appliance.dashboards.viewer import ALL, Choice, Line, Viewer, Window, buckets_of, filled, lines_of, window_of
from appliance.promql.evaluator import evaluate
from appliance.promql.grid import Grid
from appliance.promql.source import Samples
from appliance.promql.values import Series
from appliance.telemetry.exposition import Series as Family
from appliance.telemetry.history import History
from dashboards.pages import PAGES
from tests.promql.samples import FIRST_MS, Kept

OWN = Reach("us", 3600, 3600, 15, 60, is_own=True)
REMOTE = Reach("a Prometheus", 2_592_000, 2_592_000, 15, 240, is_own=False)
MINUTE = Window(900, 15, 60)
TENANT = Variable("tenant", "Tenant", "m", "tenant", is_single=True)


def test_a_board_has_what_its_page_has() -> None:
    boards = read_boards()
    assert set(boards) == {page.uid for page in PAGES} and next(iter(boards)) == "fairlane-overview"
    for page in PAGES:
        board = boards[page.uid]
        assert [row.title for row in board.rows] == [row.title for row in page.rows]
        for panel, wanted in zip(board.panels, page.panels, strict=True):
            facts = (panel.title, panel.description, panel.kind, panel.width, panel.height, panel.is_stacked, panel.max_value)
            assert facts == (
                wanted.title, wanted.description, wanted.kind, wanted.width, wanted.height, wanted.stacked, wanted.max_value,
            )  # fmt: skip
            assert [(query.expr, query.legend) for query in panel.queries] == [(query.expr, query.legend) for query in wanted.queries]
        assert [(each.name, each.is_single) for each in board.variables] == [(each.name, each.is_single) for each in page.variables]


@pytest.mark.parametrize("board", read_boards().values(), ids=lambda board: board.uid)
def test_no_query_of_ours_is_beyond_the_evaluator(board: Board) -> None:
    choices = [Choice(variable, (), ("acme", "b.c")) for variable in board.variables]
    for panel in board.panels:
        for query in panel.queries:
            evaluate(filled(query.expr, choices, MINUTE), Kept((), {}), Grid(FIRST_MS), read_rules())


@pytest.mark.parametrize("name", ["a.b", 'x"} or vector(1) #', r"back\slash", "tenant-1", "(", "$lane", "ä b"])
def test_a_chosen_value_is_taken_as_it_is_and_can_not_leave_its_matcher(name: str) -> None:
    samples = Kept((0,), {"m": [Samples({"tenant": each}, [1.0]) for each in (name, "axb", "other", "tenant01")]})
    expr = filled('m{tenant=~"$tenant"}', [Choice(TENANT, (), (name,))], MINUTE)
    assert [series.labels["tenant"] for series in evaluate(expr, samples, Grid(1), {})] == [name]


def test_several_values_are_joined_as_grafana_joins_them_and_each_is_taken_as_it_is() -> None:
    names = ("a.b", "c|d", 'e"f', "(")
    samples = Kept((0,), {"m": [Samples({"tenant": each}, [1.0]) for each in (*names, "axb", "c", "d", "a.bc|d")]})
    expr = filled('m{tenant=~"$tenant"}', [Choice(TENANT, (), names)], MINUTE)
    assert sorted(series.labels["tenant"] for series in evaluate(expr, samples, Grid(1), {})) == sorted(names)
    assert Choice(TENANT, (), ("fast", "slow")).pattern == "(fast|slow)"


def test_all_values_are_a_pattern_and_a_rate_has_the_windows_length() -> None:
    assert filled('m{tenant=~"$tenant"}[$__rate_interval]', [Choice(TENANT, (), (ALL,))], MINUTE) == 'm{tenant=~".*"}[60000ms]'


@pytest.mark.parametrize(
    ("range_s", "reach", "step_s", "rate_s"),
    [(300, OWN, 15, 60), (900, OWN, 15, 60), (3600, OWN, 60, 75), (3600, REMOTE, 15, 60), (86_400, REMOTE, 600, 615)],
)
def test_steps_are_as_fine_as_samples_and_points_allow(range_s: float, reach: Reach, step_s: float, rate_s: float) -> None:
    window = window_of(range_s, reach)
    assert (window.step_s, window.rate_s) == (step_s, rate_s)
    assert window.grid(reach, FIRST_MS).count - 1 == range_s / step_s <= reach.max_points


def test_lines_are_named_by_their_legends_and_what_is_no_number_is_no_point() -> None:
    query = Query("e", "{{lane}} P99")
    found = lines_of(
        query,
        [
            Series({"lane": "slow", "__name__": "m"}, [1.0, None, math.nan]),
            Series({"lane": "fast"}, [None, 2.0, math.inf]),
            Series({"lane": "batch"}, [math.nan, None, None]),
        ],
    )
    assert found == [
        Line("fast P99", {"lane": "fast"}, [None, 2.0, None]),
        Line("slow P99", {"lane": "slow"}, [1.0, None, None]),
    ]


def test_buckets_of_a_heatmap_hold_what_lies_between_two_bounds() -> None:
    lines = [Line(le, {"le": le}, values) for le, values in (("+Inf", [9.0, 3.0]), ("0.5", [2.0, None]), ("1.0", [5.0, 3.0]))]
    assert [(line.name, line.values) for line in buckets_of(lines)] == [("0.5", [2.0, None]), ("1.0", [3.0, 3.0]), ("+Inf", [4.0, 0.0])]


def history_of(*samples: dict[str, float]) -> History:
    """A counter by tenant, sampled every 15 s."""
    history = History(15.0)
    for number, sample in enumerate(samples):
        history.note(
            Family(
                "fairlane_requests",
                "counter",
                "",
                ("tenant", "lane", "model"),
                [((name, "fast", "m"), value) for name, value in sample.items()],
            )
        )
        history.seal(FIRST_MS + number * 15_000)
    return history


async def test_choices_come_from_the_series_and_one_that_has_none_just_now_is_kept() -> None:
    board, viewer = read_boards()["fairlane-tenant"], Viewer(OwnMetrics(history_of({"b": 1, "a": 1}), {}, 15.0))
    first = {choice.variable.name: (choice.values, choice.chosen) for choice in await viewer.choices(board, {})}
    assert first == {"tenant": (("a", "b"), ("a",)), "lane": (("fast",), (ALL,)), "model": (("m",), (ALL,))}
    asked = await viewer.choices(board, {"tenant": ["gone", "b"], "lane": [ALL, "slow", "fast", "slow", ""], "model": [ALL]})
    assert [(choice.values, choice.chosen) for choice in asked] == [
        (("a", "b", "gone"), ("gone",)), (("fast", "slow"), ("slow", "fast")), (("m",), (ALL,)),
    ]  # fmt: skip
    empty = await Viewer(OwnMetrics(History(15.0), {}, 15.0)).choices(board, {"tenant": [ALL]})
    assert [(choice.values, choice.chosen, choice.shown) for choice in empty][:2] == [((), ("none",), "none"), ((), (ALL,), "all")]


async def test_an_own_answer_holds_until_the_next_sample() -> None:
    history = history_of({"a": 0}, {"a": 15})
    metrics = OwnMetrics(history, {}, 15.0)
    window = window_of(60, metrics.reach)

    async def rate() -> list[float | None]:
        [series] = await metrics.series("sum(rate(fairlane_requests_total[1m]))", window.grid(metrics.reach, metrics.end_ms()))
        return list(series.values)

    before = await rate()
    assert before[-1] == pytest.approx(15 / 60) and await rate() == before
    history.note(Family("fairlane_requests", "counter", "", ("tenant", "lane", "model"), [(("a", "fast", "m"), 60.0)]))
    history.seal(FIRST_MS + 30_000)
    assert (await rate())[-1] == pytest.approx(1.0)


async def test_a_query_that_can_not_be_answered_is_its_panels_error() -> None:
    board, metrics = (
        read_boards()["fairlane-overview"],
        OwnMetrics(history_of({"a": 1}), {"fairlane:slo_bad:ratio_rate1h": "nothing("}, 15.0),
    )
    answer = await Viewer(metrics).answer(board, [], window_of(300, metrics.reach))
    errors = {panel.id: panel.error for panel in answer.panels if panel.error}
    burners = next(panel for panel in board.panels if panel.title.startswith("Top burners"))
    assert "can not be answered without a Prometheus" in errors[burners.panel_id]
    assert len(errors) < len(board.panels)
