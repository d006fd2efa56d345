"""Steps that are jumped over decide nothing: a trace has the same outcomes as when each of its steps is planned."""

from itertools import islice

import pytest

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner
from engine.scheduling.simulator import Served, Simulator
from engine.scheduling.step_model import StepModel
from engine.simulation.machine import DEFAULT_MACHINE, read_machine
from engine.simulation.study import Study
from engine.simulation.synthetic import TWINS, synthetic_rows
from engine.simulation.workload import Shape, policies_of, shaped, submits, tenants_of
from engine.wire import EngineConfig, TenantPolicy

POLICY = TenantPolicy(tenant_id="", queue_ttl_s=10.0, ttft_s={"fast": 0.5, "slow": 3.0}, tpot_s={"fast": 0.05, "slow": 0.1})
QUOTAS = TenantPolicy(tenant_id="", ttft_s={"fast": 0.5}, committed_tpm=2000, kv_reserve_ratio=0.02, kv_cap_ratio=0.3)
REQUESTS = 120

type Outcome = tuple[int, str, list[int], int]
"""Sequence, lane, times of its tokens, its end."""


def outcomes(study: Study, shape: Shape, *, repeats: bool) -> tuple[list[Outcome], int, int, int]:
    """In the order they ended; also how many steps there were, of which planned, and the clock at the end."""
    limits, ended, planned = study.limits(), list[Outcome](), 0
    rows = list(shaped(study.rows, shape, limits.max_model_len))
    policies = policies_of(tenants_of(rows), study.base_policy)
    scheduler = Scheduler(limits, model=StepModel(study.machine.times))
    scheduler.set_policies(policies.values())

    def on_end(served: Served) -> None:
        ended.append((served.submit.sequence_id, served.lane, served.token_times_ns, served.ended_ns))

    def on_step() -> None:
        nonlocal planned
        planned += 1

    runner = QuickRunner(limits.vocab_size)
    simulator = Simulator(scheduler, runner, study.machine.times, on_end=on_end, on_step=on_step, repeats=repeats)
    simulator.follow(submits(rows, shape, policies, limits.vocab_size))
    simulator.run()
    return ended, simulator.num_steps, planned, simulator.now_ns


@pytest.mark.parametrize(
    ("twin", "shape", "policy", "config"),
    [
        ("arena27", Shape(speed=1.2), POLICY, {}),
        ("arena27", Shape(speed=2.0), QUOTAS, {"num_gpu_blocks_override": 600}),
        ("azure", Shape(speed=0.5, num_tenants=8, length_divisor=4), POLICY, {"eviction_policy": "decayed-lfu"}),
        ("azure", Shape(speed=0.5, num_tenants=8, length_divisor=4), POLICY, {"scheduling_policy": "fcfs", "max_step_ms": 0}),
    ],
)
def test_a_trace_has_the_outcomes_of_planning_each_of_its_steps(twin: str, shape: Shape, policy: TenantPolicy, config: dict) -> None:
    rows = list(islice(synthetic_rows(TWINS[twin], REQUESTS, 5), REQUESTS))
    study = Study(rows, read_machine(DEFAULT_MACHINE), EngineConfig(**config), policy)
    quick, num_steps, planned, end_ns = outcomes(study, shape, repeats=True)
    plain, plain_steps, all_planned, plain_end_ns = outcomes(study, shape, repeats=False)
    assert len(quick) == REQUESTS
    assert quick == plain
    assert (num_steps, end_ns) == (plain_steps, plain_end_ns)
    assert planned < all_planned == num_steps
