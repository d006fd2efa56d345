"""Explanations over a simulated engine: parts add up, nothing is counted twice, and the culprit is named."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from appliance.telemetry.explain.answer import ANOTHER_TENANT, Explanation, Loss, explain
from appliance.telemetry.explain.gaps import MAX_GAPS, Preempted
from appliance.telemetry.explain.pieces import PIECE_NAMES, Recorded, pieces_of
from appliance.telemetry.explain.verdict import IN_WORDS
from appliance.telemetry.requests import Outcome, RequestReport
from engine.wire import Eviction, Preemption, StepRecord, WorkShare
from tests.telemetry.simulation import MS, TENANTS, World, simulate

WORLDS = 10
REQUESTS_EACH = 100


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [simulate(seed, REQUESTS_EACH) for seed in range(WORLDS)]


def sum_of(explanation: Explanation, *names: str) -> float:
    return sum(part.seconds for part in explanation.parts if not names or part.name in names)


def test_the_parts_of_1000_random_requests_add_up_to_their_totals(worlds: list[World]) -> None:
    seen: set[str] = set()
    for world in worlds:
        for report in world.reports:
            answer = explain(report, world.recorded(report))
            assert sum_of(answer) == pytest.approx((report.ended_ns - report.received_ns) / 1e9, abs=1e-4) == answer.total_s
            seen.update(part.name for part in answer.parts)
    assert sum(len(world.reports) for world in worlds) == 1000
    # a virtual clock stands still between steps, so these are rare or never there
    assert set(PIECE_NAMES) - seen <= {"unrecorded", "between_steps", "decode_wait"}


def test_pieces_follow_each_other_and_their_causes_add_up(worlds: list[World]) -> None:
    for world in worlds:
        for report in world.reports:
            pieces = pieces_of(report, world.recorded(report))
            assert not pieces or (pieces[0].begin_ns, pieces[-1].end_ns) == (report.received_ns, report.ended_ns)
            assert all(before.end_ns == after.begin_ns for before, after in pairwise(pieces))
            assert all(sum(piece.causes.values()) == piece.end_ns - piece.begin_ns for piece in pieces)
            assert all(duration_ns >= 0 for piece in pieces for duration_ns in piece.causes.values())


def test_the_chunks_of_a_completed_request_hold_each_uncached_prompt_token_once(worlds: list[World]) -> None:
    num_checked = 0
    for world in worlds:
        lost = {each.sequence_id for record in world.records for each in record.preempted}
        for report in world.reports:
            if report.outcome is not Outcome.COMPLETED or not lost.isdisjoint(report.sequence_ids):
                continue
            shares = [share for record in world.records for share in record.shares if share.sequence_id in report.sequence_ids]
            own = sum(share.prefill_tokens for share in shares)
            decoded_beside = sum(piece.own_tokens for piece in pieces_of(report, world.recorded(report)) if piece.name == "prefill") - own
            assert own <= report.prompt_tokens * len(report.sequence_ids) and decoded_beside >= 0
            assert sum(share.decode_tokens for share in shares) + len(report.sequence_ids) == report.generated_tokens
            num_checked += 1
    assert num_checked > 300


def test_with_a_ledger_that_forgot_the_beginning_the_parts_still_add_up(worlds: list[World]) -> None:
    for world in worlds[:3]:
        middle_ns = world.records[len(world.records) // 2].planned_ns
        for report in world.reports:
            if report.submitted_ns and report.ended_ns > middle_ns:
                answer = explain(report, world.recorded(report, middle_ns))
                assert sum_of(answer) == pytest.approx(answer.total_s, abs=1e-4)
                assert (sum_of(answer, "unrecorded") > 0) == (report.submitted_ns < middle_ns)


def test_every_kind_of_piece_has_words() -> None:
    assert set(IN_WORDS) == set(PIECE_NAMES)


# ---- a story with known numbers: 100 ms behind noisy, a chunk beside its decodes, a gap, the end


def step(number: int, begin_ms: int, end_ms: int, *shares: WorkShare, **fields: Any) -> StepRecord:
    decodes, prefill = sum(share.decode_tokens for share in shares), sum(share.prefill_tokens for share in shares)
    return StepRecord(number, begin_ms * MS, begin_ms * MS, end_ms * MS, end_ms * MS, "d8p64", decodes, prefill, 0, shares, **fields)


def decode(sequence_id: int, tenant: str, *, draws: bool = True) -> WorkShare:
    return WorkShare(sequence_id, tenant, 1, 0, 0, draws)


def chunk(sequence_id: int, tenant: str, tokens: int, *, draws: bool = True) -> WorkShare:
    return WorkShare(sequence_id, tenant, 0, tokens, 0, draws)


EVICTIONS = (Eviction("quiet", "third", 1), Eviction("quiet", "noisy", 2), Eviction("third", "noisy", 4), Eviction("quiet", "quiet", 1))
STORY = (
    step(1, 0, 60, chunk(10, "noisy", 30), chunk(11, "third", 10), evictions=(Eviction("quiet", "noisy", 9),)),
    step(2, 60, 120, chunk(10, "noisy", 40)),
    step(3, 120, 150, chunk(1, "quiet", 16), chunk(10, "noisy", 48)),
    step(4, 150, 160, decode(1, "quiet")),
    step(5, 160, 360, chunk(12, "noisy", 500), evictions=EVICTIONS),
    step(6, 362, 372, decode(1, "quiet")),
)


def report_of(**fields: object) -> RequestReport:
    values: dict[str, object] = {
        "request_id": "req_1", "route": "/v1/completions", "tenant_id": "quiet", "lane": "fast",
        "outcome": Outcome.COMPLETED, "status": 200,
        "received_ns": 15 * MS, "read_ns": 16 * MS, "tokenized_ns": 18 * MS, "submitted_ns": 20 * MS, "scheduled_ns": 120 * MS,
        "first_token_ns": 151 * MS, "first_sent_ns": 151 * MS, "last_token_ns": 373 * MS, "over_ns": 373 * MS, "fed_ns": 374 * MS,
        "ended_ns": 400 * MS, "blocked_ns": ((375 * MS, 395 * MS),), "sequence_ids": (1,), "tokens_after_first": 2, "generated_tokens": 3,
        "prompt_tokens": 16, "tpot_target_s": 0.05, "ttft_target_s": 0.1,
    }  # fmt: skip
    return RequestReport(**{**values, **fields})  # pyright: ignore[reportArgumentType]


STORY_RECORDED = Recorded(STORY, floor_ns=10 * MS)


def test_each_stretch_of_a_request_goes_to_whoever_took_it() -> None:
    answer = explain(report_of(), STORY_RECORDED)
    parts = {(part.name, part.tenant): round(part.seconds * 1000, 6) for part in answer.parts}
    assert parts == {
        ("receive", None): 1, ("tokenize", None): 2, ("admission", None): 2,
        ("queue", "noisy"): 30 + 60, ("queue", "third"): 10,
        ("prefill", None): 10 + 5, ("prefill", "noisy"): 15,  # 20 ms beyond the floor, a quarter of the tokens
        ("decode", None): 10 + 10, ("decode_wait", "noisy"): 200, ("between_steps", None): 2,
        ("transfer", None): 1, ("detokenize", None): 1, ("write", None): 1 + 5, ("backpressure", None): 20,
    }  # fmt: skip
    assert answer.verdict == (
        "Took 385 ms for 3 tokens; 305 ms of it (79%) went to tenant noisy, most of that while it was waiting between two tokens;"
        " its first token came after 136 ms, 36 ms past its target; its longest wait for a token was 212 ms."
    )


def test_what_was_waited_while_the_reader_lagged_is_nobody_elses() -> None:
    answer = explain(report_of(paused_ns=((200 * MS, 361 * MS),)), STORY_RECORDED)
    parts = {(part.name, part.tenant): round(part.seconds * 1000, 6) for part in answer.parts}
    assert parts["decode_wait", "noisy"] == 40  # of the 200 ms of step 5
    assert parts["backpressure", None] == 160 + 1 + 20  # and half of what lay behind it
    assert parts["between_steps", None] == 1
    assert sum_of(answer) == pytest.approx(answer.total_s)
    assert [(gap.name, gap.tenant) for gap in answer.gaps] == [("backpressure", None)]


def test_a_slow_gap_names_the_step_and_the_tenant_behind_it() -> None:
    answer = explain(report_of(), STORY_RECORDED)
    assert [(gap.step, gap.name, gap.tenant, round(gap.seconds, 3)) for gap in answer.gaps] == [(5, "decode_wait", "noisy", 0.212)]
    assert [(each.step, each.tokens, each.seconds) for each in answer.chunks] == [(3, 16, 0.03)]
    assert explain(report_of(tpot_target_s=0.2), STORY_RECORDED).gaps == []


def test_pages_that_the_tenant_lost_meanwhile_are_told_with_for_whom_they_went() -> None:
    assert explain(report_of(), STORY_RECORDED).evicted == [Loss("noisy", 2), Loss("third", 1), Loss("quiet", 1)]
    assert explain(report_of(), STORY_RECORDED, names_tenants=False).evicted == [Loss(ANOTHER_TENANT, 3), Loss("quiet", 1)]


def test_a_tenant_reads_another_tenant_where_an_administrator_reads_names() -> None:
    answer = explain(report_of(), STORY_RECORDED, names_tenants=False)
    assert {part.tenant for part in answer.parts} == {None, ANOTHER_TENANT}
    assert "noisy" not in str(answer) and "third" not in str(answer)
    assert sum(part.seconds for part in answer.parts if part.name == "queue") == pytest.approx(0.1)
    assert "(82%) went to another tenant" in answer.verdict


def test_other_requests_of_the_own_tenant_are_called_so() -> None:
    answer = explain(report_of(tenant_id="noisy"), STORY_RECORDED, names_tenants=False)
    assert "went to other requests of its own tenant" in answer.verdict


def lost_report(**fields: object) -> RequestReport:
    """Of a request that began with `LOST`."""
    times = {"received_ns": 0, "read_ns": 1, "tokenized_ns": 1, "submitted_ns": 1, "scheduled_ns": 2, "first_token_ns": 30 * MS}
    return report_of(**{**times, "blocked_ns": (), "over_ns": 140 * MS, "fed_ns": 140 * MS, "ended_ns": 140 * MS, **fields})


LOST = (
    step(1, 0, 30, chunk(1, "quiet", 16)),
    step(2, 30, 40, decode(1, "quiet")),
    step(3, 40, 60, decode(1, "quiet", draws=False)),  # in flight when it lost its place: the token was dropped
    step(4, 60, 110, chunk(9, "noisy", 64), preempted=(Preemption(1, "memory", "noisy"),)),
    step(5, 110, 120, chunk(1, "quiet", 8, draws=False)),
    step(6, 120, 130, chunk(1, "quiet", 9)),
    step(7, 130, 140, decode(1, "quiet")),
)


def test_a_preempted_request_shows_what_it_waited_and_computed_again() -> None:
    answer = explain(lost_report(), Recorded(LOST, floor_ns=10 * MS))
    assert sum_of(answer, "preempted") == pytest.approx(0.05) and answer.preemptions == 1
    assert sum_of(answer, "recompute") == pytest.approx(0.02)


def test_a_gap_by_preemption_is_listed_with_its_cause_and_for_whom_and_told_in_the_sentence() -> None:
    """It ends with the last chunk of what is computed again, which draws the next token: no decode does."""
    answer = explain(lost_report(), Recorded(LOST, floor_ns=10 * MS))
    (gap,) = answer.gaps
    assert (gap.seconds, gap.at_s, gap.name, gap.tenant, gap.step) == (0.09, 0.13, "preempted", "noisy", 4)
    assert gap.preempted == [Preempted(4, "memory", "noisy")]
    assert answer.verdict.endswith("its longest wait for a token was 90 ms, because it was preempted and computed again for tenant noisy.")
    assert explain(lost_report(tpot_target_s=None), Recorded(LOST, floor_ns=10 * MS)).gaps == [gap]  # by its own median
    hidden = explain(lost_report(), Recorded(LOST, floor_ns=10 * MS), names_tenants=False)
    assert hidden.gaps[0].preempted == [Preempted(4, "memory", ANOTHER_TENANT)] and "noisy" not in str(hidden)


def test_a_running_request_that_waits_for_its_place_shows_the_gap_so_far() -> None:
    report = lost_report(over_ns=0, fed_ns=0, ended_ns=120 * MS)
    (gap,) = explain(report, Recorded(LOST[:4], floor_ns=10 * MS), is_running=True).gaps
    assert (gap.seconds, gap.preempted) == (0.08, [Preempted(4, "memory", "noisy")])


def test_a_simulated_engine_tells_each_long_gap_that_its_clients_saw(worlds: list[World]) -> None:
    """Whatever made the gap: of all times between two tokens those beyond the bound are listed, and with them all preemptions in them."""
    num_preempted = 0
    for world in (*worlds, *(simulate(seed, REQUESTS_EACH) for seed in range(WORLDS, WORLDS + 3))):  # preemptions are rare
        for report in world.reports:
            if report.outcome is not Outcome.COMPLETED:
                continue
            times_ns = {each: world.token_times_ns[each] for each in report.sequence_ids}
            seen = sorted((after - before) / 1e9 for times in times_ns.values() for before, after in pairwise(times))
            gaps = explain(replace(report, tpot_target_s=0.1), world.recorded(report)).gaps
            assert sorted(gap.seconds for gap in gaps) == pytest.approx([gap_s for gap_s in seen if gap_s > 0.15][-MAX_GAPS:], abs=1e-6)
            num_preempted += sum(len(gap.preempted) for gap in gaps)
            assert all(each.tenant in TENANTS for gap in gaps for each in gap.preempted)
    assert num_preempted > 3


@pytest.mark.parametrize(("sequence_id", "tenant", "blamed"), [(8, "hasty", "hasty"), (1, "quiet", None)])
def test_a_step_that_was_cut_short_cost_time_for_whom_it_was_cut(sequence_id: int, tenant: str, blamed: str | None) -> None:
    """Its own prompt's coming costs a request nobody else's time."""
    cut = msgspec.structs.replace(step(2, 30, 50), interrupted_by=sequence_id, interrupted_for=tenant, lost_tokens=5.0)
    records = (step(1, 0, 30, chunk(1, "quiet", 16)), cut, step(3, 50, 60, decode(1, "quiet")))
    times = dict.fromkeys(("received_ns", "read_ns", "tokenized_ns"), 0)
    ends = dict.fromkeys(("over_ns", "fed_ns", "ended_ns"), 60 * MS)
    report = report_of(**{**times, "read_ns": 1, "tokenized_ns": 1}, submitted_ns=1, scheduled_ns=2, first_token_ns=30 * MS, **ends)
    answer = explain(report, Recorded(records, floor_ns=10 * MS))
    waited = [part for part in answer.parts if part.name == "decode_wait"]
    assert [(part.tenant, part.seconds) for part in waited] == [(blamed, pytest.approx(0.02))]
    assert sum_of(answer) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        (
            {"outcome": Outcome.REJECTED, "submitted_ns": 0, "over_ns": 0, "message": "at its limit of 5 requests"},
            "Refused after 385 ms: at",
        ),
        ({"outcome": Outcome.CANCELLED, "cause": "disconnect", "over_ns": 0}, "Cancelled (disconnect) after 385 ms; "),
        (
            {"outcome": Outcome.FAILED, "message": "the engine closed", "over_ns": 0},
            "Failed after 385 ms (the engine closed); ",
        ),
    ],
)
def test_whatever_became_of_it_the_sentence_says_so(fields: dict[str, object], begins: str) -> None:
    answer = explain(report_of(**fields), STORY_RECORDED)
    assert answer.verdict.startswith(begins)
    assert sum_of(answer) == pytest.approx(answer.total_s, abs=1e-4)


def test_a_running_request_is_explained_until_now() -> None:
    report = report_of(over_ns=0, fed_ns=0, ended_ns=340 * MS, blocked_ns=())
    answer = explain(report, Recorded(STORY[:4], floor_ns=10 * MS), is_running=True)
    assert answer.state == "running" and answer.verdict.startswith("Running for 325 ms so far; ")
    assert sum_of(answer) == pytest.approx(0.325)
