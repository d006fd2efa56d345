"""What fits into a step: by the step limit, by the tightest token deadline, and never nothing."""

from dataclasses import replace

import pytest

from engine.scheduling.budget import StepBudget, TokenLimit, suggest_fast_prompt_tokens
from engine.scheduling.lanes import rules_of
from engine.scheduling.request import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import NO_WORK, StepModel, StepTimes, Work
from engine.wire import EngineConfig, Sampling, Submit, TenantPolicy
from tests.scheduling.driver import make_limits, make_submit
from tests.scheduling.test_scheduler import draw, plan_of, text_of

MS = 1_000_000


def make_budget(max_step_ms: int = 14, **changes) -> StepBudget:
    """10 ms a step and 0.1 ms a prefill row: 16, 32 and 48 rows take 11.6, 13.2 and 14.8 ms."""
    limits = make_limits(**({"max_step_ms": max_step_ms, "max_num_seqs": 16} | changes))
    return StepBudget(limits, StepModel(times_of(limits)))


def times_of(limits) -> StepTimes:
    return StepTimes({bucket: 0.010 + 1e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()}, decode_context_s=1e-5)


def due_in(seconds: float) -> TokenLimit:
    return TokenLimit(seconds, seconds)


def due_s(limit: TokenLimit | None) -> float:
    assert limit is not None
    return limit.mean_s


def decode(
    number: int, lane: str = "fast", *, context: int = 10, tpot_ms: int = 0, last_token_ms: int = 0, first_token_ms: int | None = None
) -> Sequence:
    """Of nine tokens so far, all of which came at once if it is not said when the first one came."""
    sequence = Sequence(Submit(number, "r", "a", lane, "s", (5,), Sampling(), 1), number, [5] * context, context - 9)
    sequence.planned_tokens, sequence.tpot_ns, sequence.last_token_ns = context, tpot_ms * MS, last_token_ms * MS
    sequence.first_token_ns = last_token_ms * MS if first_token_ms is None else first_token_ms * MS
    return sequence


def test_the_prefill_is_the_largest_compiled_size_within_the_step_limit() -> None:
    assert [make_budget(limit).prefill_rows(None, NO_WORK, 0) for limit in (100, 5)] == [48, 32]
    assert make_budget(0).prefill_rows(None, NO_WORK, 0) is None


def test_the_step_limit_binds_nobody_who_is_alone_but_token_deadlines_do() -> None:
    assert make_budget(5).prefill_rows(None, NO_WORK, 0, is_shared=False) is None
    assert make_budget(5).prefill_rows(None, NO_WORK, 0, is_shared=True) == 32


def test_where_every_step_is_longer_than_the_limit_decodes_go_on_beside_fast_work_that_can_not_start() -> None:
    """No decode is within the limit then, and none was planned until it was due: on a slow machine the device stood still."""
    limits = make_limits(scheduling_policy="vtc", max_step_ms=5, num_pages=8)
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.set_policies([TenantPolicy(tenant_id="a", tpot_s={"slow": 10.0}), TenantPolicy(tenant_id="b")])
    scheduler.submit(make_submit(1, (5,) * 20, salt="a", lane="slow", max_tokens=8))
    draw(scheduler, plan_of(scheduler), 7)
    scheduler.submit(make_submit(2, (6,) * 20, salt="b", lane="fast", max_tokens=8))
    assert text_of(plan_of(scheduler)) == "1"


def test_a_step_is_longer_than_its_limit_as_far_as_it_has_to_be_worth_its_fixed_costs() -> None:
    """32 rows in 13.2 ms are 0.75 times as fast as 48 in 14.8; 2.5 times 6 ms are longer than those, 2.5 times 5 are not."""
    assert [make_budget(limit).prefill_rows(None, NO_WORK, 0) for limit in (14, 6, 5)] == [48, 48, 32]
    assert make_budget(14).prefill_rows(due_in(0.014), NO_WORK, 0) == 32, "a token is due"
    limits = make_limits(max_step_ms=33, max_num_seqs=16)
    steep = StepTimes({bucket: 0.001 + 1e-3 * bucket.prefill_tokens for bucket in limits.buckets.all()})
    assert StepBudget(limits, StepModel(steep)).prefill_rows(None, NO_WORK, 0) == 32, "as fast as with 48, and within the limit"


def test_a_step_that_can_not_be_cut_short_for_a_newcomer_is_no_longer_than_the_newcomers_own() -> None:
    """96 rows take 19.6 ms, 32 take 13.2; nine tenths of the newcomer's 16.4 are 14.8, and 48 rows take more."""
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=128, max_step_ms=12)
    model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1.001e-4))
    budget = StepBudget(limits, model)
    assert [budget.prefill_rows(due, NO_WORK, 0) for due in (None, due_in(0.02), due_in(0.014))] == [96, 96, 32]
    assert budget.prefill_rows(None, NO_WORK, 0, has_fast=True) == 32, "nobody cuts it short, and what is in it is waited for"
    assert StepBudget(replace(limits, enable_step_interrupts=False), model).prefill_rows(None, NO_WORK, 0) == 32


def test_a_step_of_the_fast_lane_is_filled_in_part_as_far_as_it_pays() -> None:
    """256 rows in 35.6 ms are 0.86 times as fast as 512 in 61.2; 400 would be within its 50 ms."""
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=512, max_model_len=512, max_step_ms=25)
    limits = replace(limits, buckets=replace(limits.buckets, prefill_tokens=(16, 512)))
    budget = StepBudget(limits, StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4)))
    assert budget.prefill_rows(None, NO_WORK, 0, is_fast=True) == 256
    assert budget.prefill_rows(due_in(0.03), NO_WORK, 0, is_fast=True) == 192, "a token is due"


def test_a_fast_prompt_may_take_two_step_limits_and_what_comes_behind_it_only_one() -> None:
    assert make_budget(8).prefill_rows(None, NO_WORK, 0, is_fast=True) == 48
    limits = make_limits(scheduling_policy="vtc", max_step_ms=8)
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.submit(make_submit(1, (5,) * 60, salt="a", lane="slow", max_tokens=4))
    scheduler.submit(make_submit(2, (6,) * 40, salt="b", lane="fast", max_tokens=4))
    assert text_of(plan_of(scheduler)) == "2:0-39!"
    assert text_of(plan_of(scheduler)) == "2 1:0-31"


def test_where_nothing_fits_a_small_chunk_runs_all_the_same() -> None:
    assert make_budget(1).prefill_rows(None, NO_WORK, 0) == 32  # at most a quarter more than the smallest


def test_a_token_that_is_due_leaves_less_room_than_the_step_limit() -> None:
    running = [decode(1, tpot_ms=40, last_token_ms=100)]  # the next token is due 60 ms after the last
    work = Work(decode_rows=1, decode_context=11)
    budget = make_budget(1000)
    assert due_s(budget.token_limit(running, 100 * MS)) == 0.06
    assert budget.prefill_rows(due_in(0.06), work, 0) == 32  # mixed programs end there
    assert make_budget(0).prefill_rows(due_in(0.001), work, 0) == 32
    slow = StepBudget(
        make_limits(max_num_seqs=16),
        StepModel(StepTimes({b: 1e-3 * (1 + b.prefill_tokens) for b in make_limits(max_num_seqs=16).buckets.all()})),
    )
    assert [slow.prefill_rows(slow.token_limit(running, at * MS), work, 0) for at in (100, 130)] == [32, 16]


def test_one_gap_may_be_longer_than_the_target_only_where_the_mean_with_it_is_not() -> None:
    """Of ten tokens, nine gaps: 360 ms from the first one on they may take at 40 ms each."""
    budget = make_budget()
    for first_token_ms, due_ms in ((1_000 - 300, 60), (1_000 - 310, 50), (1_000 - 320, 40), (1_000 - 900, 40)):
        running = decode(1, tpot_ms=40, last_token_ms=1_000, first_token_ms=first_token_ms)
        assert due_s(budget.token_limit([running], 1_000 * MS)) == due_ms / 1e3


def test_a_lane_that_is_owed_shares_its_step_with_the_fast_lane() -> None:
    """A step of its own would cost the fast lane almost as much as one with both."""
    limits = make_limits(
        scheduling_policy="vtc",
        max_step_ms=8,
        max_model_len=200,
        num_pages=200,
        enable_prefix_caching=False,
        lanes=rules_of(EngineConfig()),
    )
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")])
    scheduler.submit(make_submit(1, (5,) * 150, salt="a", lane="slow", max_tokens=1))
    said = []
    for number in range(2, 10):
        scheduler.submit(make_submit(number, (6,) * 48, salt="b", lane="fast", max_tokens=1))
        said.append(text_of(plan := plan_of(scheduler)))
        draw(scheduler, plan, 7)
    with_slow = [text for text in said if "1:" in text]
    assert with_slow and all(len(text.split()) > 1 for text in with_slow), said


def test_a_decode_whose_token_is_on_its_way_counts_from_there_and_not_from_the_token_before() -> None:
    budget, running = make_budget(), decode(1, tpot_ms=40, last_token_ms=100)
    assert due_s(budget.token_limit([running], 130 * MS)) == 0.03
    running.in_flight_samples = 1  # the step in flight ends at 130 ms and draws it
    assert due_s(budget.token_limit([running], 130 * MS)) == 0.06


def test_decodes_of_other_lanes_stay_out_of_a_step_that_they_would_make_too_long_until_they_are_due() -> None:
    long = [decode(n, "slow", context=300, tpot_ms=100, last_token_ms=n) for n in (1, 2, 3)]
    every = [decode(0), *long]
    budget = make_budget(14)
    now_ns = 20 * MS
    assert [s.sequence_id for s in budget.choose_decodes(every, now_ns, is_urgent=True)] == [0, 1]  # 10 + 0.1 + 3 + 3 ms is too long
    assert budget.choose_decodes(every, now_ns, is_urgent=False) == every
    assert budget.choose_decodes(every, 130 * MS, is_urgent=True) == every  # due within two steps


def test_a_quiet_tenants_short_prompt_goes_before_the_rest_of_anothers_long_one_at_the_next_step() -> None:
    limits = make_limits(scheduling_policy="vtc", max_step_ms=12, max_model_len=200)
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")])
    scheduler.submit(make_submit(1, (5,) * 150, salt="a", lane="slow"))
    plan = plan_of(scheduler)
    assert text_of(plan) == "1:0-47"
    draw(scheduler, plan, 7)
    scheduler.submit(make_submit(2, (6,) * 8, salt="b", lane="fast"))
    assert text_of(plan_of(scheduler)) == "2:0-7! 1:48-63"


def test_behind_a_long_step_the_next_is_planned_only_shortly_before_its_end_while_others_may_come() -> None:
    limits = make_limits(scheduling_policy="vtc", max_step_ms=12)
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.submit(make_submit(1, (5,) * 20, salt="a"))
    plan_of(scheduler)  # 13.2 ms
    assert scheduler.ahead_from_ns(100 * MS) == 100 * MS
    scheduler.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")])
    assert scheduler.ahead_from_ns(100 * MS) == 109_200_000  # 4 ms before


def test_behind_a_short_step_the_next_is_planned_at_once() -> None:
    limits = make_limits(scheduling_policy="vtc", max_step_ms=30)
    scheduler = Scheduler(limits, model=StepModel(times_of(limits)))
    scheduler.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")])
    scheduler.submit(make_submit(1, (5,) * 20, salt="a"))
    plan_of(scheduler)
    assert scheduler.ahead_from_ns(100 * MS) == 100 * MS


def test_a_program_that_computes_no_padding_is_filled_in_part() -> None:
    """16 rows take 11.6 ms and each 16 more take 1.6 in whichever program (there are those of 16, 32 and 128)."""
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=128, enable_step_interrupts=False)
    rows_cost = StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4)
    programs_cost = StepTimes({bucket: 0.01 + 1e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()})
    for max_step_ms, filled, padded in ((15, 48, 32), (16.9, 64, 32), (40, 128, 128)):
        limits = replace(limits, max_step_ms=max_step_ms)
        assert StepBudget(limits, StepModel(rows_cost)).prefill_rows(None, NO_WORK, 0) == filled
        assert StepBudget(limits, StepModel(programs_cost)).prefill_rows(None, NO_WORK, 0) == padded
    assert StepBudget(limits, StepModel(rows_cost)).prefill_rows(due_in(0.0181), NO_WORK, 0) == 80  # by a token that is due, likewise


def test_a_prompt_of_the_fast_lane_is_not_cut_where_the_rest_would_take_longer() -> None:
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=128)
    times = StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4)
    budget = StepBudget(replace(limits, max_step_ms=8), StepModel(times))  # twice as much for the fast lane: 64 rows take 16.4 ms
    assert budget.prefill_rows(None, NO_WORK, 0, wanted_tokens=60, is_fast=True) == 96  # 19.6 ms: room for another one's tokens
    assert budget.prefill_rows(due_in(0.017), NO_WORK, 0, wanted_tokens=60, is_fast=True) == 64
    assert budget.prefill_rows(due_in(0.016), NO_WORK, 0, wanted_tokens=60, is_fast=True) == 48
    assert (
        budget.prefill_rows(None, NO_WORK, 0, wanted_tokens=128, is_fast=True) == 128
    )  # 22.8 ms: less than 14.8 and 11.6 for one more step
    assert budget.prefill_rows(None, NO_WORK, 0, wanted_tokens=128) == 96


@pytest.mark.parametrize(("costs", "planned"), [("rows", 48), ("programs", 32)])
def test_a_chunk_is_not_cut_back_to_a_smaller_program_where_padding_costs_nothing(costs: str, planned: int) -> None:
    """48 rows of 128 leave more padding than a step that computes it may have."""
    limits = make_limits(
        max_num_batched_tokens=128, max_model_len=128, max_step_ms=15, scheduling_policy="vtc", enable_step_interrupts=False
    )
    if costs == "rows":
        times = StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4)
    else:
        times = StepTimes({bucket: 0.01 + 1e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()})
    scheduler = Scheduler(limits, model=StepModel(times))
    scheduler.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")])
    scheduler.submit(make_submit(1, (5,) * 100, lane="slow", max_tokens=4))
    assert len(plan_of(scheduler).prefills[0].tokens) == planned


def test_for_the_end_of_a_prompt_it_is_enough_that_due_tokens_are_likely_in_time() -> None:
    """64 rows take 16.4 ms; one step in a hundred takes 10 ms more."""
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=128)
    model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4), delay_s=0.01)
    budget = StepBudget(replace(limits, max_step_ms=8), model)
    assert budget.prefill_rows(due_in(0.017), NO_WORK, 0, wanted_tokens=60, is_fast=True) == 64
    assert budget.prefill_rows(due_in(0.017), NO_WORK, 0, wanted_tokens=128, is_fast=True) == 32


def test_a_gap_is_surely_not_too_long_and_their_mean_likely_not() -> None:
    """64 rows take 16.4 ms, 48 take 14.8; one step in a hundred takes 10 ms more."""
    limits = make_limits(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=128, max_step_ms=100)
    model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4), delay_s=0.01)
    limited = [
        StepBudget(limits, model).prefill_rows(TokenLimit(*due), NO_WORK, 0) for due in ((0.017, 0.027), (0.017, 0.026), (0.016, 1.0))
    ]
    assert limited == [64, 48, 48]


def test_a_decode_of_a_tenant_outside_its_contract_is_as_patient_as_another_lanes() -> None:
    every = [decode(n, context=300, tpot_ms=100, last_token_ms=n) for n in range(4)]
    assert make_budget(14).choose_decodes(every, 20 * MS, is_urgent=True) == every
    chosen = make_budget(14).choose_decodes(every, 20 * MS, is_urgent=True, outside_contract=["a"])
    assert len(chosen) < len(every)
    assert make_budget(14).choose_decodes(every, 130 * MS, is_urgent=True, outside_contract=["a"]) == every


def test_a_fixed_chunk_takes_no_account_of_time() -> None:
    limits = make_limits(max_step_ms=1, max_num_seqs=16, fixed_chunk_tokens=40)
    budget = StepBudget(limits, StepModel(times_of(limits)))
    assert budget.prefill_rows(due_in(0.001), NO_WORK, 0) == budget.prefill_rows(None, NO_WORK, 0) == 32
    coarse = replace(limits, buckets=replace(limits.buckets, prefill_tokens=(64,), mixed_prefill_tokens=(64,)))
    assert StepBudget(coarse, StepModel(times_of(limits))).prefill_rows(None, NO_WORK, 0) == 32  # no program is so small
    scheduler = Scheduler(make_limits(fixed_chunk_tokens=16))
    scheduler.submit(make_submit(1, (5,) * 40, max_tokens=4))
    assert [text_of(plan_of(scheduler)) for _ in range(3)] == ["1:0-15", "1:16-31", "1:32-39!"]


def test_the_suggested_threshold_is_where_a_prompt_takes_longer_to_compute_than_to_wait() -> None:
    limits = make_limits(max_num_batched_tokens=128, max_step_ms=3)
    times = StepTimes(dict.fromkeys(limits.buckets.all(), 0.01), prefill_token_s=1e-4)
    assert suggest_fast_prompt_tokens(times, limits) == 128  # 22.8 ms against a wait of 13 and a step's own 10
    assert suggest_fast_prompt_tokens(times, replace(limits, max_step_ms=2)) == 32
    assert suggest_fast_prompt_tokens(StepTimes(times.base_s, prefill_token_s=1e-2), limits) == 0


def test_the_step_limit_counts_the_likely_time_and_a_token_deadline_the_almost_certain_one() -> None:
    limits = make_limits(max_step_ms=16, max_num_seqs=16)
    model = StepModel(times_of(limits))
    for step in range(200):
        model.observe(limits.buckets.choose(2, 0), NO_WORK, 0.010 if step % 20 else 0.030)
    budget = StepBudget(limits, model)
    assert budget.prefill_rows(None, NO_WORK, 0) == 48
    assert budget.prefill_rows(due_in(0.016), NO_WORK, 0) == 32  # in no time, but almost as quick as the smallest
