"""What the scheduler does, fact by fact; sizes as in `driver.make_limits` unless said."""

from engine.scheduling.buckets import buckets_of
from engine.scheduling.limits import Limits, limits_of
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.wire import EngineConfig, Eviction, FinishReason, SequenceEvent, Submit
from tests.scheduling.driver import VOCAB_SIZE, Driver, make_limits, make_submit


def draw(scheduler: Scheduler, plan: StepPlan, token: int) -> list[SequenceEvent]:
    """Commit as if the device had drawn `token` for every row."""
    samples = [*(True for _ in plan.decodes), *(chunk.samples for chunk in plan.prefills)]
    tokens = tuple(token if drawn else -1 for drawn in samples)
    return scheduler.commit(plan, StepResult(tokens, (None,) * len(tokens)), now_ns=0)


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan(now_ns=77)
    assert plan is not None
    return plan


def text_of(plan: StepPlan) -> str:
    """`2 3:0-15 4:0-7!`: decodes' ids, then chunks with first and last position; `!`: it samples."""
    chunks = (
        f"{chunk.sequence_id}:{chunk.start}-{chunk.start + len(chunk.tokens) - 1}{'!' if chunk.samples else ''}" for chunk in plan.prefills
    )
    return " ".join([*(str(row.sequence_id) for row in plan.decodes), *chunks])


def real_limits(**changes) -> Limits:
    """Default configuration: pages of 16, 32 rows, 512 tokens a step."""
    config = EngineConfig(**changes)
    return limits_of(config, vocab_size=VOCAB_SIZE, eos_token_ids=(0, 1), max_model_len=4096, num_pages=600, cache_version="v")


def run_one(driver: Driver, submit: Submit) -> SequenceEvent:
    """Run it to its end; its first event."""
    assert driver.submit(submit)
    driver.run(overlap=True)
    return driver.outcomes[submit.sequence_id].events[0]


# ---- order and budget -----------------------------------------------------------------------------------------------


def test_prompts_are_taken_in_order_of_arrival_and_a_prompt_is_cut_to_the_budget() -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id, length in ((1, 20), (2, 30), (3, 4)):
        scheduler.submit(make_submit(sequence_id, (1 + sequence_id,) * length))
    assert text_of(plan_of(scheduler)) == "1:0-19! 2:0-15"
    assert text_of(plan_of(scheduler)) == "1 2:16-29! 3:0-3!"
    assert text_of(plan_of(scheduler)) == "1 2 3"


def test_no_more_prompts_than_max_prefill_rows_share_a_step() -> None:
    scheduler = Scheduler(make_limits(max_prefill_rows=2))
    for sequence_id in (1, 2, 3):
        scheduler.submit(make_submit(sequence_id, (1 + sequence_id,) * 4))
    assert text_of(plan_of(scheduler)) == "1:0-3! 2:0-3!"


def test_beside_decodes_a_chunk_shrinks_to_the_largest_mixed_bucket() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,)))
    plan_of(scheduler)
    scheduler.submit(make_submit(2, (6,) * 40))
    plan = plan_of(scheduler)
    assert text_of(plan) == "1 2:0-31"
    assert str(plan.bucket) == "d4p32"


def test_a_chunk_is_cut_where_its_bucket_would_be_mostly_padding() -> None:
    driver = Driver(real_limits())
    run_one(driver, make_submit(1, (5,) * 300, max_tokens=2, ignore_eos=True))
    assert [(text_of(plan), str(plan.bucket)) for plan in driver.plans] == [("1:0-255", "p256"), ("1:256-299!", "p48"), ("1", "d2")]


def test_without_chunked_prefill_a_prompt_waits_until_it_fits_whole() -> None:
    scheduler = Scheduler(make_limits(enable_chunked_prefill=False))
    for sequence_id, length in ((1, 20), (2, 30)):
        scheduler.submit(make_submit(sequence_id, (1 + sequence_id,) * length))
    assert text_of(plan_of(scheduler)) == "1:0-19!"
    assert text_of(plan_of(scheduler)) == "1 2:0-29!"


def test_without_chunked_prefill_a_prompt_longer_than_every_bucket_is_chunked_all_the_same() -> None:
    scheduler = Scheduler(make_limits(enable_chunked_prefill=False))
    scheduler.submit(make_submit(1, (5,) * 60, max_tokens=4))
    assert [text_of(plan_of(scheduler)) for _ in range(2)] == ["1:0-47", "1:48-59!"]


def test_whoever_lacks_memory_at_the_head_of_the_queue_is_not_overtaken() -> None:
    scheduler = Scheduler(make_limits(num_pages=16, enable_prefix_caching=False))
    scheduler.submit(make_submit(1, (5,) * 30, max_tokens=20))
    plan_of(scheduler)
    scheduler.submit(make_submit(2, (6,) * 40, max_tokens=4))
    scheduler.submit(make_submit(3, (7,) * 4, max_tokens=4))
    assert text_of(plan_of(scheduler)) == "1"


# ---- overlap --------------------------------------------------------------------------------------------------------


def test_nothing_is_planned_past_max_tokens_while_tokens_are_in_flight() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,) * 4, max_tokens=2))
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert scheduler.plan(0) is None
    assert draw(scheduler, first, 7)[0].finish is None
    assert scheduler.plan(0) is None
    assert draw(scheduler, second, 8)[0].finish is FinishReason.LENGTH
    assert scheduler.is_idle


def test_a_token_planned_before_the_stop_was_known_is_dropped() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,) * 4))
    first, second = plan_of(scheduler), plan_of(scheduler)
    (event,) = draw(scheduler, first, 1)
    assert (event.token_ids, event.finish, event.stop_token_id) == ((1,), FinishReason.STOP, 1)
    assert scheduler.load(0).pages_used == 0
    assert scheduler.has_work  # the second step's result is awaited
    assert draw(scheduler, second, 9) == []
    assert scheduler.is_idle


def test_a_slot_given_to_the_next_sequence_does_not_take_its_predecessors_late_token() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=1))
    scheduler.submit(make_submit(1, (5,) * 4))
    scheduler.submit(make_submit(2, (6,) * 4))
    first, late = plan_of(scheduler), plan_of(scheduler)
    draw(scheduler, first, 1)
    successor = plan_of(scheduler)
    assert text_of(successor) == "2:0-3!"
    assert successor.admitted[0].slot == late.decodes[0].slot
    assert draw(scheduler, late, 9) == []
    assert [(event.sequence_id, event.token_ids) for event in draw(scheduler, successor, 8)] == [(2, (8,))]


def test_the_page_of_a_late_token_is_never_found_in_the_prefix_cache() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,) * 7))
    first, late = plan_of(scheduler), plan_of(scheduler)
    draw(scheduler, first, 1)  # position 7, the last of page 1, is written by the late row alone
    draw(scheduler, late, 9)
    scheduler.submit(make_submit(2, (5, 5, 5, 5, 5, 5, 5, 1, 6)))
    assert text_of(plan_of(scheduler)) == "2:4-8!"


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_eos_and_stop_ids_count_only_from_min_tokens_on() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,), max_tokens=5, min_tokens=3, stop_token_ids=(9,)))
    finishes = [draw(scheduler, plan_of(scheduler), token)[0].finish for token in (1, 9, 9)]
    assert finishes == [None, None, FinishReason.STOP]


def test_ignore_eos_ignores_the_models_eos_and_not_the_requests_stop_ids() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,), ignore_eos=True, stop_token_ids=(9,)))
    events = [draw(scheduler, plan_of(scheduler), token)[0] for token in (1, 9)]
    assert [(event.finish, event.stop_token_id) for event in events] == [(None, None), (FinishReason.STOP, 9)]


def test_an_eos_as_the_last_allowed_token_is_a_stop() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,), max_tokens=1))
    assert draw(scheduler, plan_of(scheduler), 0)[0].finish is FinishReason.STOP


def test_scheduler_gives_every_page_back_after_abort_in_mid_prefill() -> None:
    driver = Driver(make_limits())
    driver.submit(make_submit(1, (5,) * 60, max_tokens=4))
    driver.start_step()
    driver.abort(1)
    assert driver.scheduler.load(0).pages_used == 0
    driver.finish_step()
    assert driver.scheduler.load(0).pages_free == 64
    assert [event.finish for event in driver.outcomes[1].events] == [FinishReason.ABORT]


def test_an_abort_in_the_queue_says_that_it_was_never_scheduled() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,)))
    scheduler.abort(1)
    (event,) = scheduler.take_events()
    assert (event.finish, event.cached_tokens, event.scheduled_ns) == (FinishReason.ABORT, -1, 0)
    assert scheduler.is_idle


def test_aborting_whoever_ended_already_is_no_event() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,), max_tokens=1))
    draw(scheduler, plan_of(scheduler), 7)
    scheduler.abort(1)
    scheduler.abort(99)
    assert scheduler.take_events() == []


def test_only_the_first_event_tells_when_it_was_scheduled_and_what_was_cached() -> None:
    driver = Driver(make_limits())
    run_one(driver, make_submit(1, (5,) * 9, max_tokens=3, ignore_eos=True))
    assert [(event.scheduled_ns, event.cached_tokens) for event in driver.outcomes[1].events] == [(1000, 0), (0, -1), (0, -1)]


# ---- prefix cache ---------------------------------------------------------------------------------------------------


def test_a_wholly_cached_prompt_recomputes_exactly_its_last_page() -> None:
    driver = Driver(make_limits())
    run_one(driver, make_submit(1, (5,) * 32, max_tokens=1))
    first = run_one(driver, make_submit(2, (5,) * 32, max_tokens=1))
    assert first.cached_tokens == 28
    assert text_of(driver.plans[-1]) == "2:28-31!"


def test_another_salt_finds_nothing() -> None:
    driver = Driver(make_limits())
    run_one(driver, make_submit(1, (5,) * 32, max_tokens=1))
    assert run_one(driver, make_submit(2, (5,) * 32, max_tokens=1, salt="b")).cached_tokens == 0


def test_of_a_cached_prefix_the_tail_is_evicted_before_the_head() -> None:
    driver = Driver(make_limits(num_pages=16))
    run_one(driver, make_submit(1, (5,) * 40, max_tokens=1))
    run_one(driver, make_submit(2, (6,) * 36, max_tokens=1))  # takes the 6 free pages and 3 cached ones
    assert driver.scheduler.load(0).evicted_pages == 3
    assert [each for record in driver.records for each in record.evictions] == [Eviction("a", "a", 3)]
    assert run_one(driver, make_submit(3, (5,) * 40, max_tokens=1)).cached_tokens == 28


def test_without_prefix_caching_nothing_is_kept() -> None:
    driver = Driver(make_limits(enable_prefix_caching=False))
    run_one(driver, make_submit(1, (5,) * 32, max_tokens=1))
    assert run_one(driver, make_submit(2, (5,) * 32, max_tokens=1)).cached_tokens == 0
    load = driver.scheduler.load(0)
    assert (load.pages_free, load.prefix_query_tokens) == (64, 0)


def test_the_next_turn_of_a_conversation_finds_the_answer_too() -> None:
    driver = Driver(make_limits())
    run_one(driver, make_submit(1, (5,) * 10, max_tokens=12, ignore_eos=True))
    prompt = driver.next_turn(1, (7, 7))
    assert run_one(driver, make_submit(2, prompt, max_tokens=1)).cached_tokens == 20  # 21 of 22 tokens were computed: 5 pages


def test_a_prompt_waits_for_the_pages_that_another_is_computing_and_lets_others_pass() -> None:
    scheduler = Scheduler(make_limits(max_prefill_rows=4))
    scheduler.submit(make_submit(1, (5,) * 56, max_tokens=4))
    scheduler.submit(make_submit(2, (5,) * 56, max_tokens=4))
    scheduler.submit(make_submit(3, (6,) * 4, max_tokens=4))
    plan = plan_of(scheduler)
    assert text_of(plan) == "1:0-47"
    draw(scheduler, plan, 7)
    plan = plan_of(scheduler)
    assert text_of(plan) == "1:48-55! 3:0-3!"
    draw(scheduler, plan, 7)
    assert text_of(plan_of(scheduler)) == "1 3 2:52-55!"


def test_who_waited_for_an_aborted_prefill_goes_on_with_what_was_committed() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,) * 60, max_tokens=4))
    scheduler.submit(make_submit(2, (5,) * 60, max_tokens=4))
    plan = plan_of(scheduler)
    draw(scheduler, plan, 7)
    scheduler.abort(1)
    assert text_of(plan_of(scheduler)) == "2:48-59!"


def test_a_hundred_requests_of_two_tenants_of_one_group_share_one_set_of_125_pages() -> None:
    driver = Driver(real_limits())
    common = tuple(2 + i * i % 37 for i in range(2000))
    for index in range(100):
        own = (2 + index % 38, 2 + index // 38, 3)
        submit = make_submit(index + 1, common + own, salt="group", max_tokens=2, ignore_eos=True)
        driver.scheduler.submit(Submit(submit.sequence_id, "r", f"tenant{index % 2}", "fast", "group", submit.prompt, submit.sampling, 1))
    shared: set[tuple[int, ...]] = set()
    computed = 0
    while driver.scheduler.has_work:
        plan = plan_of(driver.scheduler)
        computed += sum(len(chunk.tokens) for chunk in plan.prefills)
        driver.scheduler.commit(plan, driver.runner.collect(driver.runner.dispatch(plan)), 0)
        shared |= {tuple(s.pages[:125]) for s in driver.scheduler._roster.running if len(s.pages) >= 125}
    assert len(shared) == 1
    assert computed == 2000 + 100 * 3
    assert driver.scheduler.load(0).prefix_hit_tokens == 99 * 2000


# ---- several outputs of one prompt ----------------------------------------------------------------------------------


def siblings(count: int, prompt: tuple[int, ...], **sampling) -> list[Submit]:
    return [make_submit(n, prompt, sibling_of=1 if n > 1 else None, seed=n, ignore_eos=True, **sampling) for n in range(1, count + 1)]


def test_four_outputs_compute_their_prompt_once_and_share_its_pages_but_the_last() -> None:
    driver = Driver(make_limits(max_prefill_rows=4, max_num_batched_tokens=128))
    for submit in siblings(4, (5,) * 18, max_tokens=3):
        driver.submit(submit)
    driver.run(overlap=True)
    assert [text_of(plan) for plan in driver.plans[:2]] == ["1:0-17!", "1 2:17-17! 3:17-17! 4:17-17!"]
    copies = driver.plans[1].moves.copied
    assert len(copies) == 3 and {source for source, _ in copies} == {driver.plans[0].prefills[0].new_pages[4]}
    assert [driver.outcomes[n].events[0].cached_tokens for n in (1, 2, 3, 4)] == [0, 17, 17, 17]
    assert len({tuple(outcome.tokens) for outcome in driver.outcomes.values()}) == 4


def test_outputs_share_their_prompt_without_a_prefix_cache_too() -> None:
    driver = Driver(make_limits(enable_prefix_caching=False))
    for submit in siblings(3, (5,) * 18, max_tokens=3):
        driver.submit(submit)
    driver.run(overlap=False)
    assert sum(len(chunk.tokens) for plan in driver.plans for chunk in plan.prefills) == 18 + 2


def test_a_prompt_that_ends_behind_a_full_page_is_shared_without_a_copy() -> None:
    driver = Driver(make_limits())
    for submit in siblings(2, (5,) * 17, max_tokens=3):
        driver.submit(submit)
    driver.run(overlap=True)
    assert not any(plan.moves.copied for plan in driver.plans)
    assert driver.outcomes[2].events[0].cached_tokens == 16


def test_an_output_whose_first_one_was_aborted_computes_the_prompt_itself() -> None:
    driver = Driver(make_limits(enable_prefix_caching=False))
    for submit in siblings(2, (5,) * 60, max_tokens=3):
        driver.submit(submit)
    driver.start_step()
    driver.abort(1)
    driver.finish_step()
    driver.run(overlap=True)
    assert driver.outcomes[2].events[0].cached_tokens == 0


def test_a_sibling_with_another_prompt_or_salt_is_refused() -> None:
    driver = Driver(make_limits())
    driver.submit(make_submit(1, (5,) * 8))
    assert not driver.submit(make_submit(2, (6,) * 8, sibling_of=1))
    assert not driver.submit(make_submit(3, (5,) * 8, salt="b", sibling_of=1))


# ---- pinned prefixes ------------------------------------------------------------------------------------------------


def pinned_driver(num_pages: int) -> Driver:
    driver = Driver(make_limits(num_pages=num_pages))
    run_one(driver, make_submit(1, (5,) * 32, max_tokens=1))
    assert driver.scheduler.pin_prefix("a", (5,) * 33) == 8
    return driver


def test_pinned_pages_survive_a_flood_and_do_not_count_as_lost() -> None:
    driver = pinned_driver(num_pages=24)
    for sequence_id in range(2, 12):
        run_one(driver, make_submit(sequence_id, (sequence_id,) * 40, max_tokens=8))
    driver.scheduler.check_integrity()
    assert driver.scheduler.load(0).pages_used == 8
    assert run_one(driver, make_submit(50, (*(5,) * 32, 6), max_tokens=1)).cached_tokens == 32


def test_pinning_twice_or_an_overlapping_prefix_pins_each_page_once() -> None:
    driver = pinned_driver(num_pages=24)
    assert driver.scheduler.pin_prefix("a", (5,) * 16) == 4
    driver.check()
    assert driver.scheduler.load(0).pages_used == 8


def test_what_was_not_computed_is_not_pinned() -> None:
    driver = pinned_driver(num_pages=24)
    assert driver.scheduler.pin_prefix("b", (5,) * 16) == 0
    assert driver.scheduler.pin_prefix("a", (*(5,) * 8, *(6,) * 8)) == 2


def test_pinned_pages_are_missing_for_others_and_not_for_who_shares_them() -> None:
    driver = pinned_driver(num_pages=16)
    assert not driver.submit(make_submit(2, (6,) * 32, max_tokens=8))  # 10 pages, 8 are left
    assert run_one(driver, make_submit(3, (*(5,) * 32, 6), max_tokens=8)).cached_tokens == 32


# ---- preemption -----------------------------------------------------------------------------------------------------


def test_when_pages_run_out_the_youngest_is_preempted_and_the_oldest_goes_on() -> None:
    driver = Driver(make_limits(num_pages=16, enable_prefix_caching=False))
    for sequence_id in (1, 2):
        driver.submit(make_submit(sequence_id, (4 + sequence_id,) * 16, max_tokens=28, ignore_eos=True))
    driver.run(overlap=True)
    assert [each.sequence_id for record in driver.records for each in record.preempted] == [2]
    finished = [share.sequence_id for record in driver.records for share in record.shares if share.decode_tokens]
    assert finished.count(1) == 27  # not one of its steps was repeated
    load = driver.scheduler.load(0)
    assert load.preemptions == {"memory": 1, "swap": 0, "forced": 0, "slow_reader": 0}
    assert load.recomputed_tokens > 16


def test_nobody_is_preempted_more_than_twice_however_often_it_is_forced() -> None:
    driver = Driver(make_limits(preempt_every_steps=1))
    for sequence_id in (1, 2, 3):
        driver.submit(make_submit(sequence_id, (4 + sequence_id,) * 9, max_tokens=9, ignore_eos=True))
    driver.run(overlap=True)
    preempted = [each.sequence_id for record in driver.records for each in record.preempted]
    assert {sequence_id: preempted.count(sequence_id) for sequence_id in (1, 2, 3)} == {1: 2, 2: 2, 3: 2}


def test_after_its_last_preemption_a_sequence_takes_all_its_pages_at_once() -> None:
    driver = Driver(make_limits(preempt_every_steps=1))
    driver.submit(make_submit(1, (5,) * 9, max_tokens=30, ignore_eos=True))
    driver.run(overlap=False)
    last = [chunk.new_pages for plan in driver.plans for chunk in plan.prefills][-1]
    assert len(last) == 10  # 38 tokens
    assert not any(row.new_pages for row in driver.plans[-1].decodes)


def test_a_preempted_sequences_token_in_flight_is_dropped_and_drawn_again() -> None:
    scheduler = Scheduler(make_limits(preempt_every_steps=2, enable_prefix_caching=False))
    scheduler.submit(make_submit(1, (5,) * 4))
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert draw(scheduler, first, 7)[0].token_ids == (7,)
    third = plan_of(scheduler)  # preempts while the second step is in flight
    assert text_of(third) == "1:0-4!"
    assert third.admitted[0].tokens == (5, 5, 5, 5, 7)
    assert draw(scheduler, second, 8) == []
    assert draw(scheduler, third, 8)[0].token_ids == (8,)


# ---- prompt log-probabilities ---------------------------------------------------------------------------------------


def test_prompt_logprobs_come_with_the_first_event_from_lone_chunks_of_16_that_alternate_with_decodes() -> None:
    driver = Driver(make_limits())
    driver.submit(make_submit(1, (5,) * 4, max_tokens=12, ignore_eos=True))
    driver.start_step()
    driver.submit(make_submit(2, (6,) * 40, max_tokens=2, prompt_logprobs=0, ignore_eos=True))
    driver.run(overlap=True)
    assert [text_of(plan) for plan in driver.plans[:8]] == ["1:0-3!", "2:0-15", "1", "2:16-31", "1", "2:32-39!", "1 2", "1"]
    assert [len(event.prompt_logprobs) for event in driver.outcomes[2].events] == [39, 0]


def test_the_pages_of_a_lone_chunk_that_waits_for_its_turn_are_left_for_it() -> None:
    scheduler = Scheduler(make_limits(num_pages=16))
    scheduler.submit(make_submit(1, (5,) * 16, max_tokens=1, prompt_logprobs=0))
    scheduler.submit(make_submit(2, (6,) * 40, max_tokens=4, prompt_logprobs=0))
    scheduler.submit(make_submit(3, (7,) * 40, max_tokens=4))
    assert text_of(plan_of(scheduler)) == "1:0-15!"
    assert text_of(plan_of(scheduler)) == "2:0-15"


def test_prompt_logprobs_are_computed_for_cached_pages_too() -> None:
    driver = Driver(make_limits())
    run_one(driver, make_submit(1, (5,) * 32, max_tokens=1))
    first = run_one(driver, make_submit(2, (5,) * 32, max_tokens=1, prompt_logprobs=3))
    assert (first.cached_tokens, len(first.prompt_logprobs)) == (0, 31)


# ---- reports --------------------------------------------------------------------------------------------------------


def test_load_counts_rows_and_tokens_by_tenant_and_lane() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=1))
    scheduler.submit(make_submit(4, (5,) * 60, max_tokens=4, salt="a"))
    scheduler.submit(make_submit(5, (5,) * 7, salt="b", lane="batch"))
    scheduler.submit(make_submit(6, (5,) * 8, salt="b", lane="batch"))
    plan_of(scheduler)
    load = scheduler.load(123, compiles_after_ready=2)
    assert (load.time_ns, load.last_sequence_id, load.compiles_after_ready, load.oldest_queued_ns) == (123, 6, 2, 5)
    assert (load.running, load.queued) == ({"fast": 1}, {"batch": 2})
    tenants = [(t.tenant_id, t.lane, t.running_rows, t.queued_rows, t.queued_tokens) for t in load.tenants]
    assert tenants == [("a", "fast", 1, 0, 12), ("b", "batch", 0, 2, 15)]


def test_load_knows_how_full_the_pages_are() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (5,) * 9))
    plan_of(scheduler)
    load = scheduler.load(0)
    assert (load.pages_used, load.kv_slots_used) == (3, 9)


def test_the_record_says_whose_work_a_step_did() -> None:
    driver = Driver(make_limits())
    driver.submit(make_submit(1, (5,) * 9, salt="a", ignore_eos=True, max_tokens=3))
    driver.start_step()
    driver.finish_step()
    driver.submit(make_submit(2, (6,) * 20, salt="b"))
    driver.start_step()
    driver.finish_step()
    record = driver.records[1]
    assert (record.step, record.bucket, record.decode_rows, record.prefill_tokens, record.pad_tokens) == (1, "d4p32", 1, 20, 15)
    shares = [(s.sequence_id, s.tenant_id, s.decode_tokens, s.prefill_tokens, s.context_tokens) for s in record.shares]
    assert shares == [(1, "a", 1, 0, 10), (2, "b", 0, 20, 20)]


def test_limits_come_from_the_configuration_and_the_resolved_numbers() -> None:
    config = EngineConfig(
        block_size=32, max_num_seqs=8, max_prefill_rows=2, enable_chunked_prefill=False, preempt_every_steps=7, max_step_ms=9
    )
    limits = limits_of(config, vocab_size=9, eos_token_ids=(2, 3), max_model_len=100, num_pages=10, cache_version="v")
    assert (limits.page_size, limits.max_num_seqs, limits.max_prefill_rows, limits.preempt_every_steps) == (32, 8, 2, 7)
    assert (limits.scheduling_policy, limits.max_step_ms) == ("vtc", 9)
    assert (limits.enable_chunked_prefill, limits.buckets, limits.pages_for(33)) == (False, buckets_of(config), 2)
