"""Slow requests are explained behind the requests: log, tails, who costs whom time."""

import asyncio
from dataclasses import replace

import pytest

from appliance.telemetry.explain.answer import Explanation
from appliance.telemetry.explain.review import FIRST_REQUESTS, KEPT_SLOW, MAX_WAITING, Reviewer
from appliance.telemetry.requests import Outcome, RequestReport
from tests.telemetry.test_explain import STORY_RECORDED, report_of

MS = 1_000_000


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer(lambda report: STORY_RECORDED, lambda tenant: tenant if tenant in ("quiet", "noisy") else "other", lambda: 0.0)


async def settle(reviewer: Reviewer) -> None:
    while reviewer._waiting:
        await reviewer.explain_next()


def test_a_request_that_missed_its_target_is_in_the_slow_log_with_its_sentence(reviewer: Reviewer) -> None:
    reviewer.note(report_of(), ["ttft"])
    reviewer.note(report_of(request_id="req_2", outcome=Outcome.FAILED), [])
    reviewer.note(report_of(request_id="req_3"), [])
    reviewer.note(report_of(request_id="req_4", outcome=Outcome.REJECTED), ["ttft"])
    asyncio.run(settle(reviewer))
    assert [(each.id, each.why) for each in reviewer.slow(None, 10)] == [("req_2", ["failed"]), ("req_1", ["ttft"])]
    assert "went to tenant noisy" in reviewer.slow("quiet", 1)[0].verdict
    assert reviewer.slow("noisy", 10) == []


def test_one_long_gap_brings_a_request_into_the_slow_log_however_good_its_mean_is(reviewer: Reviewer) -> None:
    """With a target from 1.5 of them on; without one, when it is among the longest hundredth of its lane."""
    reviewer.note(report_of(request_id="req_1", worst_gap_s=0.075), [])
    reviewer.note(report_of(request_id="req_2", worst_gap_s=0.076), [])
    for _ in range(FIRST_REQUESTS):
        reviewer.note(report_of(lane="batch", tpot_target_s=None, worst_gap_s=5.0), [])
    reviewer.note(report_of(request_id="req_3", lane="batch", tpot_target_s=None, worst_gap_s=5.1), [])
    asyncio.run(settle(reviewer))
    found = [(each.id, each.why, each.worst_gap_s) for each in reviewer.slow(None, 10)]
    assert found == [("req_3", ["gap"], 5.1), ("req_2", ["gap"], 0.076)]


def test_the_matrix_says_who_cost_whom_how_much(reviewer: Reviewer) -> None:
    reviewer.note(report_of(), ["ttft"])
    asyncio.run(settle(reviewer))
    assert [(each.victim, each.culprit, each.seconds) for each in reviewer.interference()] == [
        ("quiet", "noisy", pytest.approx(0.305)),
        ("quiet", "other", pytest.approx(0.01)),
    ]
    reviewer.forget(["noisy"])
    assert [each.culprit for each in reviewer.interference()] == ["other"]


def test_a_lane_s_tail_is_its_slowest_hundredth_and_made_of_what_came_before_the_first_token(reviewer: Reviewer) -> None:
    quick = replace(report_of(), first_sent_ns=20 * MS, last_token_ns=151 * MS)
    for _ in range(FIRST_REQUESTS):
        reviewer.note(quick, [])
    reviewer.note(report_of(tokens_after_first=0), [])
    asyncio.run(settle(reviewer))
    tails = {view.slo: view for view in reviewer.tails()}
    parts = {part.part: round(part.seconds, 6) for part in tails["ttft"].parts}
    assert tails["ttft"].requests == 1 and sum(parts.values()) == pytest.approx(0.136)  # the first token came after 136 ms
    assert parts == {"receive": 0.001, "tokenize": 0.002, "admission": 0.002, "queue": 0.1, "prefill": 0.03, "decode": 0.001}
    assert {view.of_requests for view in tails.values()} == {FIRST_REQUESTS, FIRST_REQUESTS + 1}
    assert tails["tpot"].requests == 0 and tails["ttft"].from_s == pytest.approx(0.005)


def test_more_slow_requests_than_can_be_explained_are_counted_and_not_kept(reviewer: Reviewer) -> None:
    for number in range(MAX_WAITING + 3):
        reviewer.note(report_of(request_id=f"req_{number}"), ["ttft"])
    assert reviewer.num_skipped == 3
    asyncio.run(settle(reviewer))
    assert len(reviewer.slow(None, KEPT_SLOW)) == MAX_WAITING


def test_one_tenants_slow_requests_push_none_of_another_out_of_the_queue_or_the_log(reviewer: Reviewer) -> None:
    skipped: list[str] = []
    reviewer.on_skipped = lambda report: skipped.append(report.request_id)
    for number in range(MAX_WAITING):
        reviewer.note(report_of(request_id=f"flood_{number}", tenant_id="noisy"), ["ttft"])
    assert reviewer.note(report_of(request_id="req_quiet"), ["ttft"])
    assert skipped == ["flood_0"] and reviewer.num_skipped == 1
    asyncio.run(settle(reviewer))
    for round_ in range(2):
        for number in range(MAX_WAITING):
            reviewer.note(report_of(request_id=f"flood_{round_}_{number}", tenant_id="noisy"), ["ttft"])
        asyncio.run(settle(reviewer))
    assert [each.id for each in reviewer.slow("quiet", 10)] == ["req_quiet"]
    assert len(reviewer.slow(None, 10 * KEPT_SLOW)) == KEPT_SLOW


def test_it_explains_by_itself(reviewer: Reviewer) -> None:
    explained: list[str] = []

    async def live() -> None:
        done = asyncio.Event()

        def note(report: RequestReport, explanation: Explanation) -> None:
            explained.append(explanation.id)
            done.set()

        reviewer.on_explained = note
        task = asyncio.create_task(reviewer.run())
        reviewer.note(report_of(), ["ttft"])
        async with asyncio.timeout(10):
            await done.wait()
        task.cancel()

    asyncio.run(live())
    assert explained == ["req_1"]
