"""Decode steps that are run many at a time leave everything as it would be after planning each of them."""

import random
from dataclasses import asdict

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.scheduling.lanes import rules_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner
from engine.scheduling.simulator import Simulator
from engine.scheduling.step_model import StepModel, StepTimes
from engine.wire import EngineConfig, Sampling, Submit, TenantPolicy
from tests.scheduling.driver import make_limits

MS = 1_000_000
TENANTS = ("quiet", "noisy", "third")


def simulator_of(seed: int, *, repeats: bool, ttl_s: float | None = None, **changes) -> Simulator:
    """A small machine under traffic that leaves it idle, busy and overloaded by turns, at times short of pages."""
    limits = make_limits(**({"max_num_seqs": 8, "num_pages": 96, "max_step_ms": 12, "scheduling_policy": "vtc"} | changes))
    base_s = {bucket: 0.010 + 1e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()}
    times = StepTimes(base_s, 0.0, 1e-9, 5e-4, 2e-6)
    scheduler = Scheduler(limits, model=StepModel(times))
    policies = [
        TenantPolicy(tenant_id=name, tpot_s={"fast": 0.04}, ttft_s={"fast": 0.2}, queue_ttl_s=ttl_s, weight=weight)
        for name, weight in zip(TENANTS, (1, 4, 0.3), strict=True)
    ]
    scheduler.set_policies(policies)
    simulator = Simulator(scheduler, QuickRunner(limits.vocab_size), times, repeats=repeats)
    rng = random.Random(seed)
    now_ns = 0
    for number in range(1, 40):
        now_ns += rng.choice((0, 3, 40, 700)) * MS
        prompt = tuple((number * 7 + index) % limits.vocab_size for index in range(rng.randint(1, 24)))
        sampling = Sampling(max_tokens=rng.randint(1, 32), ignore_eos=True)
        tenant, lane = rng.choice(TENANTS), rng.choice(("fast", "fast", "slow", "batch"))
        simulator.add([Submit(number, "", tenant, lane, tenant, prompt, sampling, now_ns, rng.choice((0, now_ns + 200 * MS)))])
    return simulator


def state_of(simulator: Simulator) -> tuple:
    scheduler = simulator.scheduler
    load = msgspec.structs.asdict(scheduler.load(simulator.now_ns))
    del load["drain"]  # an estimate for the control plane, of every step; nothing is scheduled by it
    counters = {name: account.counter for name, account in scheduler.accounts._accounts.items()}
    served = {number: (asdict(entry)["token_times_ns"], entry.ended_ns) for number, entry in simulator.served.items()}
    return simulator.now_ns, simulator.num_steps, scheduler._num_steps, served, counters, load


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["vtc", "wrr", "fcfs", "priority"]),
    pages=st.sampled_from([24, 40, 96]),
    caches=st.booleans(),
    ttl_s=st.sampled_from([None, 1.0]),
    quota=st.booleans(),
    interrupts=st.booleans(),
)
@example(seed=173, policy="vtc", pages=24, caches=False, ttl_s=1.0, quota=False, interrupts=False)  # a jump by what came before
@example(seed=139, policy="vtc", pages=40, caches=True, ttl_s=None, quota=True, interrupts=False)  # one holds more pages than it needs yet
def test_many_steps_at_once_leave_the_state_of_single_steps(
    seed: int, policy: str, pages: int, caches: bool, ttl_s: float | None, quota: bool, interrupts: bool
) -> None:
    changes = {
        "scheduling_policy": policy,
        "num_pages": pages,
        "enable_prefix_caching": caches,
        "enable_kv_quota": quota,
        "enable_step_interrupts": interrupts,
        "lanes": rules_of(EngineConfig()),
    }
    quick, plain = (simulator_of(seed, repeats=repeats, ttl_s=ttl_s, **changes) for repeats in (True, False))
    quick.run()
    plain.run()
    assert state_of(quick) == state_of(plain)


@pytest.mark.parametrize("policy", ["vtc", "fcfs"])
def test_most_steps_of_traffic_that_decodes_are_not_planned_one_by_one(policy: str) -> None:
    planned = 0

    def count() -> None:
        nonlocal planned
        planned += 1

    simulator = simulator_of(3, repeats=True, scheduling_policy=policy)
    simulator._on_step = count
    simulator.run()
    assert planned < 0.6 * simulator.num_steps
