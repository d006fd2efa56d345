"""Under a virtual clock: what one tenant gets whatever the others do, and what every step keeps to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduling.budget import GAP_TARGETS
from engine.scheduling.scheduler import Scheduler
from engine.wire import Submit, TenantPolicy
from tests.scheduling.bench import (
    FAST_TPOT_S,
    FLOOD,
    LONG_ANSWERS,
    MIXED_FLOOD,
    MS,
    SLOW_TPOT_S,
    Bench,
    attack_of,
    attacks,
    many,
    quiet_requests,
    submit,
)

MAX_WAIT_STEPS = 6
"""The one that runs, the prompt's own, and turns of other lanes and of the tie between equals."""


def check_isolation(bench: Bench) -> None:
    for served in bench.simulator.served.values():
        if served.submit.tenant_id == "quiet":
            assert served.ttft_ns <= MAX_WAIT_STEPS * bench.longest_step_ns, f"{served.submit.sequence_id} waited {served.ttft_ns / MS} ms"


ANY_ATTACK = {
    "attack": attacks,
    "repeats": st.sampled_from((1, 1, 3)),
    "fills_rows": st.booleans(),
    "num_pages": st.sampled_from((32, 48, 96)),
}


@many
@given(**ANY_ATTACK)
def test_a_conformant_tenants_first_token_is_a_few_steps_away_whatever_another_does(
    attack, repeats: int, fills_rows: bool, num_pages: int, scheduler_type: type[Scheduler]
) -> None:
    if fills_rows:  # with long answers, and rows are all that is short
        num_pages = 192
        attack = [(lane, gap_ms, min(prompt_tokens, 12), 50, hurries) for lane, gap_ms, prompt_tokens, _, hurries in attack]
    check_isolation(Bench(scheduler_type, prefill_row_s=6e-4, num_pages=num_pages).run([*quiet_requests(), *attack_of(attack * repeats)]))


@pytest.mark.parametrize("attack", [FLOOD, LONG_ANSWERS, MIXED_FLOOD])
@pytest.mark.parametrize("num_pages", [32, 96])
def test_neither_does_a_flood_delay_it(attack, num_pages: int) -> None:
    check_isolation(Bench(num_pages=num_pages).run([*quiet_requests(), *attack_of(attack)]))


ANY_DECODES = {"attack": attacks, "interrupts": st.booleans()}


@many
@given(**ANY_DECODES)
def test_a_running_decode_never_stalls(attack, interrupts: bool, scheduler_type: type[Scheduler]) -> None:
    """Of the fast lane it is in every step; where steps are cut short for newcomers, its next token still comes before it is due."""
    bench = Bench(scheduler_type, enable_step_interrupts=interrupts).run([*quiet_requests(), *attack_of(attack)])
    if bench.scheduler.load(0).preemptions["memory"]:
        return  # who lost its pages starts over
    targets_s = {"fast": FAST_TPOT_S if interrupts else 0.0, "slow": SLOW_TPOT_S}
    for served in bench.simulator.served.values():
        target_s = targets_s.get(served.submit.lane)
        target_ns = 1000 * MS if target_s is None else round(target_s * GAP_TARGETS * 1e9)
        assert served.worst_gap_ns <= max(target_ns, bench.longest_step_ns), f"{served.submit.lane}: {served.worst_gap_ns / MS} ms"


backlogs = st.lists(
    st.tuples(st.just("slow"), st.integers(0, 12), st.integers(1, 48), st.integers(1, 14), st.booleans()), min_size=1, max_size=40
)
TWO_BACKLOGS = {"first": backlogs, "second": backlogs, "repeats": st.sampled_from((1, 5, 15)), "pause_ms": st.integers(0, 2000)}
"""Long enough that whoever was away could make up for it, if it were owed that."""


@settings(many, max_examples=30)
@given(**TWO_BACKLOGS)
def test_two_backlogged_tenants_are_served_alike_whoever_was_away(
    first, second, repeats: int, pause_ms: int, scheduler_type: type[Scheduler]
) -> None:
    first = first * repeats
    late = [(lane, gap + (pause_ms if not n else 0), *rest) for n, (lane, gap, *rest) in enumerate(second * repeats)]
    moved = [Submit(s.sequence_id + 5000, *(getattr(s, f) for f in s.__struct_fields__[1:])) for s in attack_of(late, "quiet")]
    bench = Bench(scheduler_type).run([*attack_of(first), *moved])
    assert bench.worst_gap <= bench.gap_bound


MAX_PLACE = 60


def place_behind_short_prompts(bench: Bench, attack) -> int:
    """How many end before the quiet tenant's one long prompt, of a hundred short ones and an attack."""
    flood = [submit(n, "noisy", "slow", 0, 1 + n % 5, 2) for n in range(2000, 2100)]
    bench.run([submit(0, "quiet", "slow", 5, 48, 2), *flood, *attack_of(attack)])
    ended = sorted(bench.simulator.served.values(), key=lambda served: served.ended_ns)
    return [served.submit.tenant_id for served in ended].index("quiet")


ANY_PRIORITY = {"attack": attacks, "priority": st.integers(-3, 3), "weight": st.sampled_from((0.25, 1.0))}


@settings(many, max_examples=30)
@given(**ANY_PRIORITY)
def test_nobody_starves_whatever_the_others_priority_and_however_close_to_their_ends_they_are(
    attack, priority: int, weight: float, scheduler_type: type[Scheduler]
) -> None:
    """`Bench.run` sees that all end; a quiet prompt of the slow lane waits for no more than the tie that priority and closeness decide."""
    policies = (TenantPolicy(tenant_id="quiet"), TenantPolicy(tenant_id="noisy", priority=priority, weight=weight))
    bench = Bench(scheduler_type)
    bench.scheduler.set_policies(policies)
    assert place_behind_short_prompts(bench, attack) < MAX_PLACE


def test_batch_work_ends_under_a_flood_of_fast_prompts() -> None:
    flood = [submit(n, "noisy", "fast", 10 * n, 30, 4) for n in range(1, 200)]
    bench = Bench().run([submit(0, "quiet", "batch", 5, 40, 4), *flood])
    ended = sorted(bench.simulator.served.values(), key=lambda served: served.ended_ns)
    assert [served.submit.lane for served in ended].index("batch") < 150


def test_a_trace_of_a_virtual_minute_takes_the_same_steps_every_time() -> None:
    names, lanes = ("quiet", "noisy"), ("fast", "slow", "batch")
    trace = [submit(n, names[n % 2], lanes[n % 3], 137 * n, 1 + 7 * n % 40, 1 + n % 13) for n in range(440)]
    first, second = (Bench().run(trace) for _ in range(2))
    assert [step.plan for step in first.steps] == [step.plan for step in second.steps]
    assert first.simulator.now_ns > 60_000 * MS
