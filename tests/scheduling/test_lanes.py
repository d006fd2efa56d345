"""What a lane's rule bounds, and who decides which lane a sequence is in."""

import msgspec

from engine.scheduling.lanes import LaneRule, LaneShares, rules_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.wire import EngineConfig, FinishReason, Sampling, SequenceEvent, Submit, TenantPolicy
from tests.scheduling.driver import Driver, make_limits

MS = 1_000_000
PATIENT = TenantPolicy(tenant_id="patient", ttft_s={"fast": 0.1, "slow": 0.2})
HURRIED = TenantPolicy(tenant_id="hurried", ttft_s={"fast": 0.1, "slow": 0.2}, queue_ttl_s=60.0)
SHADOWED = TenantPolicy(tenant_id="shadowed", ttft_s={"fast": 0.1}, queue_ttl_s=60.0, shadow_mode=True)


def make_scheduler(**changes) -> Scheduler:
    values = {"scheduling_policy": "vtc", "max_num_seqs": 8, "max_prefill_rows": 8, "fast_prompt_tokens": 16, "num_pages": 128}
    scheduler = Scheduler(make_limits(**(values | changes)))
    scheduler.set_policies((PATIENT, HURRIED, SHADOWED))
    return scheduler


def make_submit(
    number: int, tokens: int, lane: str = "slow", tenant: str = "patient", *, by_length: bool = False, same: bool = False
) -> Submit:
    prompt = tuple(2 + (i if same else number * 7 + i * i) % 38 for i in range(tokens))
    return Submit(number, "r", tenant, lane, tenant, prompt, Sampling(max_tokens=2, ignore_eos=True), 0, lane_by_length=by_length)


def make_runner() -> SimulatedRunner:
    return SimulatedRunner(num_pages=128, page_size=4, num_slots=8, vocab_size=40)


def run(scheduler: Scheduler, runner: SimulatedRunner, now_ns: int = 1) -> list[SequenceEvent]:
    """To the end."""
    events: list[SequenceEvent] = []
    while (plan := scheduler.plan(now_ns)) is not None:
        events += scheduler.commit(plan, runner.collect(runner.dispatch(plan)), now_ns)
    return [*events, *scheduler.take_events()]


def prompts_of_first_step(scheduler: Scheduler) -> list[int]:
    plan = scheduler.plan(1)
    assert plan is not None
    return [chunk.sequence_id for chunk in plan.prefills]


def test_a_long_prompt_goes_fast_once_its_pages_are_cached() -> None:
    scheduler, runner, lanes = make_scheduler(), make_runner(), []
    for number in range(2):
        scheduler.submit(make_submit(number, 40, by_length=True, same=True))
        lanes += [event.lane for event in run(scheduler, runner) if event.lane]
    assert lanes == ["slow", "fast"]


def test_the_lane_that_was_named_stays_whatever_the_cache_holds() -> None:
    scheduler, runner = make_scheduler(), make_runner()
    for number in range(2):
        scheduler.submit(make_submit(number, 40, same=True))
        assert [event.lane for event in run(scheduler, runner) if event.lane] == ["slow"]


def test_the_target_follows_the_final_lane() -> None:
    scheduler = make_scheduler()
    scheduler.submit(make_submit(1, 8, "slow", by_length=True))
    assert scheduler._sequences[1].submit.ttft_deadline_ns == 100 * MS


def test_a_step_holds_no_more_prompts_of_a_lane_than_its_rule_and_fills_up_with_other_lanes() -> None:
    scheduler = make_scheduler(lanes={"fast": LaneRule(prefill_rows=2)})
    for number in range(5):
        scheduler.submit(make_submit(number, 3, "fast" if number < 4 else "slow"))
    assert prompts_of_first_step(scheduler) == [0, 1, 4]


def test_first_come_first_served_knows_no_lanes() -> None:
    scheduler = make_scheduler(lanes={"fast": LaneRule(prefill_rows=1, open_prefills=1)}, scheduling_policy="fcfs")
    for number in range(3):
        scheduler.submit(make_submit(number, 3, "fast"))
    assert prompts_of_first_step(scheduler) == [0, 1, 2]


def test_a_lane_with_its_open_prompts_begins_no_more_but_the_first_of_another_tenant() -> None:
    scheduler = make_scheduler(lanes={"slow": LaneRule(open_prefills=2)}, max_num_batched_tokens=128, max_model_len=256)
    for number in range(4):
        scheduler.submit(make_submit(number, 200))
    runner = make_runner()
    seen: set[int] = set()
    for number in range(4):
        if number == 1:
            scheduler.submit(make_submit(9, 200, tenant="hurried"))
        plan = scheduler.plan(1)
        assert plan is not None
        seen.update(chunk.sequence_id for chunk in plan.prefills)
        scheduler.commit(plan, runner.collect(runner.dispatch(plan)), 1)
        begun = [s for s in scheduler._roster.running if s.uncomputed_tokens]
        assert len([s for s in begun if s.submit.tenant_id == "patient"]) <= 2
    assert 9 in seen


def test_whoever_waited_longer_than_its_lane_allows_ends_unserved() -> None:
    rules = {"fast": LaneRule(max_wait_targets=0.8), "slow": LaneRule(max_wait_targets=1.0)}
    scheduler = make_scheduler(lanes=rules)
    for number, (lane, tenant) in enumerate([("fast", "hurried"), ("slow", "hurried"), ("fast", "patient"), ("fast", "shadowed")]):
        scheduler.submit(make_submit(number, 3, lane, tenant))
    scheduler.submit(msgspec.structs.replace(make_submit(4, 3, "fast", "hurried"), is_promised=True))
    events = run(scheduler, make_runner(), 81 * MS)
    assert [event.sequence_id for event in events if event.finish is FinishReason.EXPIRED] == [0]
    assert {event.sequence_id for event in events if event.token_ids} == {1, 2, 3, 4}
    assert scheduler.is_idle


def test_the_last_moment_is_not_too_late_and_what_was_begun_goes_on() -> None:
    scheduler = make_scheduler(lanes={"fast": LaneRule(max_wait_targets=0.8)})
    scheduler.submit(make_submit(1, 3, "fast", "hurried"))
    assert scheduler.plan(80 * MS) is not None
    scheduler.plan(200 * MS)
    assert not scheduler.take_events()


def test_shares_are_those_of_the_configuration() -> None:
    rules = rules_of(EngineConfig(slow_share=0.5, batch_share=0.0))
    shares = LaneShares(rules)
    shares.note_step({"fast": 128}, ("fast", "slow", "batch"))
    assert shares.order(("fast", "slow", "batch")) == ["slow", "fast", "batch"]
    shares = LaneShares(rules_of(EngineConfig(slow_share=0.1, batch_share=0.5)))
    shares.note_step({"fast": 128}, ("fast", "slow", "batch"))
    assert shares.order(("fast", "slow", "batch")) == ["batch", "fast", "slow"]


def test_a_tenants_own_fast_work_does_not_starve_its_slow_work_of_pages_while_others_take_the_slow_lanes_share() -> None:
    """Closed loops: `a` is always beyond its share of 40 pages (of 4 tokens), two of its sequences fill them, and `b` has small work in
    the slow lane, whose share of the prefill tokens is thus used."""
    driver = Driver(make_limits(num_pages=40, max_num_seqs=8, scheduling_policy="vtc"))
    driver.scheduler.set_policies((TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b")))
    clients = [("a", "fast", 56, 8), ("a", "fast", 56, 8), ("a", "slow", 56, 8), ("a", "slow", 56, 8), ("b", "slow", 12, 4)]
    ended, newest = dict.fromkeys(range(len(clients)), 0), dict.fromkeys(range(len(clients)), -1)
    for step in range(1500):
        for number, (tenant, lane, prompt_tokens, output_tokens) in enumerate(clients):
            outcome = driver.outcomes.get(newest[number])
            if outcome is None or outcome.finish is not None:
                ended[number] += outcome is not None
                newest[number] = step * len(clients) + number
                prompt = tuple(2 + (newest[number] * 7 + i * i) % 38 for i in range(prompt_tokens))
                sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
                driver.submit(Submit(newest[number], "r", tenant, lane, tenant, prompt, sampling, received_ns=step))
        driver.start_step()
        driver.finish_step()
    fast, slow = ended[0] + ended[1], ended[2] + ended[3]
    assert slow >= fast / 8, ended
