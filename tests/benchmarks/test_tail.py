"""The tail benchmarks' own arithmetic, and their traffic against a small server."""

from pathlib import Path

import msgspec
import pytest

from appliance.domain.slas.decisions import SEED_TIERS
from benchmarks.load import Outcome
from benchmarks.tail import machine_room
from benchmarks.tail.ablations import PARTS, Play
from benchmarks.tail.case import Case, Figure, Flight, Setup, Stream, every
from benchmarks.tail.flags import ABLATIONS
from benchmarks.tail.plots import draw
from benchmarks.tail.replays import in_time_alone
from benchmarks.tail.report import TIER_TARGETS, CaseReport, Sent, tenant_report
from benchmarks.tail.scenarios import flooder, noisy_neighbour, overload, replay
from benchmarks.tail.simulated import engine_flags, sweep_point
from benchmarks.tail.store import Store
from benchmarks.tail.text import case_table, figure_table
from benchmarks.tail.traffic import Traffic, read_slowly
from engine.scheduling.plan import Bucket
from engine.scheduling.step_model import StepTimes
from engine.simulation.trace import TraceRow
from tests.benchmarks.test_load import REFUSED, completion_server


def outcome(ttft_s: float, tpot_s: float = 0.01, error: str = "", prompt_tokens: int = 60) -> Outcome:
    times = [ttft_s, ttft_s + tpot_s, ttft_s + 2 * tpot_s]
    return Outcome(0.0, 0.0, [] if error else times, times[-1], prompt_tokens, 0 if error else 3, error)


def report_of(*sent: Sent, tier: str = "interactive"):
    return tenant_report("a", tier, sent, 0.0, 10.0)


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [
        (1.1, True, "aim"),
        (1.4, True, "bar"),
        (1.6, True, "misses"),
        (None, True, ""),
        (1.6, False, "aim"),
        (1.3, False, "bar"),
        (1.1, False, "misses"),
    ],
)
def test_a_figure_is_judged_by_bar_and_aim(value: float | None, at_most: bool, verdict: str):
    bar, aim = (1.5, 1.2) if at_most else (1.2, 1.5)
    assert Figure("x", value, "", bar, aim, at_most).verdict == verdict
    assert Figure("x", value, "").verdict == ""


def test_attainment_is_over_all_offered_but_those_who_left():
    found = report_of(
        Sent("a", outcome(0.1)),
        Sent("a", outcome(0.6)),
        Sent("a", outcome(0.1, tpot_s=0.06)),
        Sent("a", outcome(0, error="HTTP/1.1 503 Service Unavailable: {}")),
        Sent("a", outcome(0, error="HTTP/1.1 429 Too Many Requests: {}")),
        Sent("a", outcome(0, error="the connection broke")),
        Sent("a", outcome(0.1), left=True),
    )
    assert (found.offered, found.answered, found.left) == (7, 3, 1)
    assert (found.refused_503, found.refused_429, found.failed) == (1, 1, 1)
    assert found.attainment == pytest.approx(1 / 6)
    assert found.ttft_ms["p99"] == pytest.approx(600)
    assert found.worst_gap_ms == pytest.approx(60)


def test_a_long_prompt_is_judged_by_the_slow_lanes_targets():
    assert report_of(Sent("a", outcome(2.9, prompt_tokens=1500))).attainment == 1
    assert report_of(Sent("a", outcome(2.9, prompt_tokens=500))).attainment == 0


def test_targets_are_those_of_the_seeded_tiers():
    for name, targets in TIER_TARGETS.items():
        sla = SEED_TIERS[name]
        assert isinstance(sla.ttft_ms, dict) and isinstance(sla.tpot_ms, dict)
        assert (1e3 * targets.fast_ttft_s, 1e3 * targets.slow_ttft_s) == (sla.ttft_ms["fast"], sla.ttft_ms["slow"])
        assert (1e3 * targets.fast_tpot_s, 1e3 * targets.slow_tpot_s) == (sla.tpot_ms["fast"], sla.tpot_ms["slow"])


def test_a_replay_offers_so_much_of_capacity_and_its_twin_stands_in_for_a_trace_that_is_not_there(tmp_path: Path):
    scenario = replay.scenario_of(replay.ARENA27)
    cases = scenario.cases(Setup(capacity_rps=3.0, trace_dir=tmp_path))
    for case, load in zip(cases, replay.LOADS, strict=True):
        arrivals = [arrival for source in case.sources if isinstance(source, Stream) for arrival in source.arrivals]
        assert len(arrivals) / case.duration_s == pytest.approx(3.0 * load, rel=0.25)
        assert {source.tier for source in case.sources} == {"interactive", "standard"}


def test_capacity_is_how_fast_a_backlog_of_the_mix_is_worked_off():
    case = machine_room.backlog_of(((10, 20), (30, 40)), 10)
    streams = [source for source in case.sources if isinstance(source, Stream)]
    sizes = [(arrival.prompt_tokens, arrival.output_tokens) for stream in streams for arrival in stream.arrivals]
    assert sorted(sizes) == [(10, 20)] * 5 + [(30, 40)] * 5 and {arrival.at_s for stream in streams for arrival in stream.arrivals} == {0.0}
    outcomes = [Outcome(0.0, 0.0, ended_s=float(second), token_times_s=[float(second)]) for second in range(1, 101)]
    tenant = tenant_report("t", "standard", [Sent("t", outcome) for outcome in outcomes], 0.0, 1.0)
    report = CaseReport(name="", flags=[], duration_s=1, tenants={"t": tenant}, lag_p99_ms=0, generator_cpu_share=0, server={})
    assert machine_room.rate_of_backlog(report) == pytest.approx(1.0, rel=0.02)
    lost = tenant_report("t", "standard", [Sent("t", outcomes[0]), Sent("t", Outcome(0.0, 0.0, error="refused"))], 0.0, 1.0)
    with pytest.raises(SystemExit, match="1 of 2 requests were not answered"):
        machine_room.rate_of_backlog(msgspec.structs.replace(report, tenants={"t": lost}))


def test_tokens_count_when_they_come_and_a_prompt_with_its_first():
    """Requests that began before the window or end behind it count with the part of their work that was done in it."""
    before, across, behind = ([start + number for number in range(4)] for start in (-2.0, 8.0, 20.0))
    sent = [Sent("a", Outcome(0.0, 0.0, times, times[-1], 100, 40), is_open=False) for times in (before, across, behind)]
    found = tenant_report("a", "standard", sent, 0.0, 9.5)
    assert found.prompt_tokens_per_s == pytest.approx(100 / 9.5)
    assert found.output_tokens_per_s == pytest.approx((20 + 20) / 9.5)


def test_the_busiest_tenants_of_a_replay_are_the_standard_ones():
    rows = [TraceRow(0, "busy", 1, 1)] * 6 + [TraceRow(0, "calm", 1, 1)] * 3 + [TraceRow(0, "rare", 1, 1)]
    assert replay.tiers_of(rows) == {"busy": "standard", "calm": "interactive", "rare": "interactive"}


def test_scenarios_name_their_cases_once_and_scale_with_capacity():
    for scenario in (noisy_neighbour.SCENARIO, flooder.SCENARIO, overload.SCENARIO):
        names = [case.name for case in scenario.cases(Setup(capacity_rps=10.0))]
        assert len(names) == len(set(names))
    slow, fast = (overload.SCENARIO.cases(Setup(capacity_rps=rps))[2].sources[1] for rps in (5.0, 10.0))
    assert isinstance(slow, Stream) and isinstance(fast, Stream)
    assert len(fast.arrivals) == pytest.approx(2 * len(slow.arrivals), rel=0.2)


async def test_traffic_keeps_its_schedule_and_counts_who_left():
    streams = tuple(
        Stream(tenant=tenant, tier="standard", arrivals=every(0.02, 0.4, 8, 3), leaves=leaves, leave_within_s=0.0)
        for tenant, leaves in (("stays", 0.0), ("goes", 1.0))
    )
    flight = Flight(tenant="busy", tier="standard", in_flight=2, sizes=((8, 3), (8, 5)))
    async with completion_server() as endpoint:
        case = Case(name="c", sources=(*streams, flight), duration_s=0.4)
        traffic = Traffic(case, dict.fromkeys(("stays", "goes", "busy"), endpoint))
        await traffic.run()
    stays = [each for each in traffic.sent if each.tenant == "stays"]
    assert [each.outcome.error for each in stays] == [""] * 20
    assert max(each.outcome.scheduled_s for each in stays) - traffic.begin_s == pytest.approx(0.38)
    assert all(each.left for each in traffic.sent if each.tenant == "goes")
    assert not any(each.left for each in stays)
    assert {each.outcome.completion_tokens for each in traffic.sent if each.tenant == "busy"} == {3, 5}


async def test_a_slow_reader_takes_its_time_and_knows_a_broken_stream():
    async with completion_server() as endpoint:
        traffic = Traffic(Case(name="c", sources=(), duration_s=0), {})
        assert await read_slowly(endpoint, traffic._request(8, 20), 50_000)
        assert not await read_slowly(endpoint, type(traffic._request(8, 1))(REFUSED, 1), 50_000)


def test_flags_become_fields_of_the_engines_configuration():
    flags = ("--scheduling-policy", "fcfs", "--max-step-ms", "0", "--no-enable-kv-quota", "--enable-chunked-prefill")
    assert engine_flags(flags) == {
        "scheduling_policy": "fcfs",
        "max_step_ms": "0",
        "enable_kv_quota": False,
        "enable_chunked_prefill": True,
    }


def test_every_switch_has_a_stage_on_which_it_matters():
    """Shown by one number of whoever is looked at: a tenth better with the part than without it."""
    assert {part.off for part in PARTS} == ABLATIONS.keys() - {"everything on"}
    played: dict[tuple[str, str], dict[str, float]] = {}
    for part in PARTS:
        for off in ("everything on", part.off):
            if (part.stage.name, off) not in played:
                played[part.stage.name, off] = Play(part.stage, ABLATIONS[off], 40.0).run()
        with_it, without = (played[part.stage.name, off][part.figure] for off in ("everything on", part.off))
        is_better = with_it < 0.9 * without if part.figure.endswith("_ms") else with_it > 1.1 * without
        assert is_better, (part.off, part.figure, with_it, without)


def test_results_are_kept_case_by_case_and_drawn(tmp_path: Path):
    store = Store(tmp_path, {"cpu": "c", "cores": 2, "commit": "abc"}, quick=True)
    results = store.load("flooder", "About it.")
    tenant = report_of(Sent("a", outcome(0.1)), Sent("a", outcome(0, error="HTTP/1.1 503 x: {}")))
    numbers = {"lag_p99_ms": 1.0, "generator_cpu_share": 0.1, "server": {}}
    for name in ("alone", "flooded"):
        results.cases[name] = CaseReport(name=name, flags=[], duration_s=1.0, tenants={"quiet": tenant, "a": tenant}, **numbers)
    store.save(results)
    again = Store(tmp_path, {}, quick=True).load("flooder", "")
    assert again.cases == results.cases
    draw(again, tmp_path / "flooder.png")
    assert (tmp_path / "flooder.png").read_bytes().startswith(b"\x89PNG")
    assert "503" in case_table(results.cases["alone"])
    assert "1:32 flooder: quiet requests refused" in figure_table(flooder.SCENARIO.figures(again.cases))
    store.forget("flooder")
    assert store.load("flooder", "").cases == {}


def test_the_sweep_says_how_many_users_fit():
    few, many = (sweep_point(users, 512, 30.0).numbers["attainment"] for users in (4, 64))
    assert few == 1
    assert many < 0.5


def test_first_tokens_that_could_be_in_time_are_those_that_one_machine_can_compute_one_after_another():
    """Ten milliseconds a token: a prompt of 30 takes 0.3 s of the 0.5 that it has."""
    times = StepTimes({Bucket(0, 16): 0.16})
    for gap_s, in_time in ((0.0, 1), (0.15, 2), (0.35, 3)):
        rows = [TraceRow(number * gap_s, "a", 30, 1) for number in range(3)]
        assert in_time_alone(rows, 1.0, times) == in_time, gap_s
        assert in_time_alone(rows, 1000.0, times) == 1
