"""Decodes that are left out of a step so that first tokens are in time: whose, for whom, and never longer than their own tokens allow."""

import msgspec
import pytest
from hypothesis import given

from engine.scheduling import hurry
from engine.scheduling.budget import GAP_TARGETS
from engine.scheduling.hurry import Choice
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.request import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import StepModel, StepTimes
from engine.wire import TenantPolicy
from tests.scheduling.bench import FAST_TPOT_S, MS, Bench, attack_of, attacks, many, quiet_requests
from tests.scheduling.driver import make_limits, make_submit
from tests.scheduling.test_scheduler import text_of

DECODES = 12
NOW_MS = 10
TPOT_S = 0.1


def commit(scheduler: Scheduler, plan: StepPlan, at_ms: int) -> None:
    tokens = (*(7 for _ in plan.decodes), *(7 if chunk.samples else -1 for chunk in plan.prefills))
    scheduler.commit(plan, StepResult(tokens, (None,) * len(tokens)), now_ns=at_ms * MS)


def scheduler_of(*, low: int = 0, high: int = 10, **changes) -> Scheduler:
    """Twelve answers of tenant `low` run, whose last tokens came at `NOW_MS`. A step takes 4 ms, 1 a decode row and 0.25 a prefill row:
    with all of them 28 ms for 32 prompt tokens, without any 16 for 48."""
    values = {"scheduling_policy": "vtc", "max_step_ms": 20, "max_num_seqs": 16, "max_model_len": 200, "num_pages": 400}
    limits = make_limits(**(values | changes))
    times = StepTimes({bucket: 0.004 + 1e-3 * bucket.decode_rows + 2.5e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()})
    scheduler = Scheduler(limits, model=StepModel(times))
    policies = [
        TenantPolicy(tenant_id=name, priority=priority, tpot_s={"fast": TPOT_S}) for name, priority in (("low", low), ("high", high))
    ]
    scheduler.set_policies(policies)
    for number in range(1, DECODES + 1):
        scheduler.submit(make_submit(number, (number,), salt="low", max_tokens=50))
    while scheduler.load(0).queued:
        plan = scheduler.plan(NOW_MS * MS)
        assert plan is not None
        commit(scheduler, plan, NOW_MS)
    return scheduler


def prompt_comes(scheduler: Scheduler, *, due_ms: int, tenant: str = "high", lane: str = "fast", now_ms: int = NOW_MS) -> str:
    """Whose 90 tokens take 79 ms with all decodes and 30 without; the step that is planned then."""
    submit = make_submit(100, (9,) * 90, salt=tenant, lane=lane, max_tokens=1)
    scheduler.submit(msgspec.structs.replace(submit, received_ns=now_ms * MS, ttft_deadline_ns=due_ms * MS))
    plan = scheduler.plan(now_ms * MS)
    assert plan is not None
    return text_of(plan)


def test_decodes_whose_tokens_are_not_due_are_left_to_the_next_step_where_a_first_token_would_be_late() -> None:
    scheduler = scheduler_of()
    assert prompt_comes(scheduler, due_ms=NOW_MS + 60) == "100:0-47"
    every = " ".join(str(number) for number in range(1, DECODES + 1))
    in_time = scheduler_of()
    assert prompt_comes(in_time, due_ms=NOW_MS + 200) == f"{every} 100:0-31"


def test_nobody_waits_who_would_get_the_next_token_too_late() -> None:
    """It is due 100 ms after the last one; the next step with all takes 24 ms, a quarter more is left to it, and this one 16 for 48 tokens,
    8 for 16."""
    said = {at_ms: prompt_comes(scheduler_of(), due_ms=at_ms + 60, now_ms=at_ms).split()[0] for at_ms in range(NOW_MS, NOW_MS + 100, 10)}
    assert [at_ms for at_ms, first in said.items() if first == "100:0-47"] == [10, 20, 30, 40, 50, 60]
    assert said[70] == "100:0-15" and said[80] == said[90] == said[100] == "1"


@pytest.mark.parametrize(
    ("low", "high", "tenant", "waits"), [(0, 0, "high", True), (5, 0, "high", False), (5, 0, "low", True), (0, 5, "high", True)]
)
def test_decodes_wait_for_their_own_tenants_prompts_and_for_no_lower_priority(low: int, high: int, tenant: str, waits: bool) -> None:
    said = prompt_comes(scheduler_of(low=low, high=high), due_ms=NOW_MS + 60, tenant=tenant)
    assert (said == "100:0-47") == waits


def test_a_tenant_beyond_its_contract_hurries_nobody_of_its_own_priority() -> None:
    scheduler = scheduler_of(high=0)
    beyond = TenantPolicy(tenant_id="high", tpot_s={"fast": TPOT_S}, committed_tpm=1)
    scheduler.set_policies([TenantPolicy(tenant_id="low", tpot_s={"fast": TPOT_S}), beyond])
    assert prompt_comes(scheduler, due_ms=NOW_MS + 60) != "100:0-47"


@pytest.mark.parametrize("changes", [{"enable_deadline_order": False}, {"scheduling_policy": "fcfs"}, {"fixed_chunk_tokens": 32}])
def test_without_deadlines_or_times_every_decode_is_in_every_step(changes: dict) -> None:
    assert prompt_comes(scheduler_of(**changes), due_ms=NOW_MS + 60).startswith("1 2 3")


def test_batch_work_and_what_is_late_or_lost_already_hurry_nobody() -> None:
    """At best 90 tokens take 30 ms."""
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 60, lane="batch").startswith("1 2 3")
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS - 1).startswith("1 2 3")
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 19).startswith("1 2 3")
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 21) == "100:0-47"


class Crowd(Bench):
    """Where decodes are dear: 3 ms a row."""

    def __init__(self, num_pages: int = 96) -> None:
        super().__init__(decode_row_s=3e-3, enable_step_interrupts=False, num_pages=num_pages)
        self.num_left_out = 0
        choose = self.scheduler._planner._hurry.choose

        def counted(decodes: list[Sequence], start_ns: int, now_ns: int) -> Choice:
            choice = choose(decodes, start_ns, now_ns)
            self.num_left_out += len(choice.left_out)
            return choice

        self.scheduler._planner._hurry.choose = counted

    @property
    def worst_gap_ns(self) -> int:
        """Of the fast lane."""
        return max((served.worst_gap_ns for served in self.simulator.served.values() if served.submit.lane == "fast"), default=0)

    @property
    def longest_gap_ns(self) -> int:
        """That the fast lane may have."""
        return max(round(FAST_TPOT_S * GAP_TARGETS * 1e9), self.longest_step_ns)


@many
@given(attack=attacks)
def test_whoever_is_left_out_gets_the_next_token_before_it_is_due(attack) -> None:
    bench = Crowd().run([*quiet_requests(), *attack_of(attack)])
    if not bench.scheduler.load(0).preemptions["memory"]:
        assert bench.worst_gap_ns <= bench.longest_gap_ns


HURRIED = [("fast", 3, 48, 14, True)] * 30


def test_the_gaps_see_decodes_that_are_left_out_beyond_that(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Crowd(600).run(attack_of(HURRIED))
    assert bench.num_left_out > 0 and bench.worst_gap_ns <= bench.longest_gap_ns
    monkeypatch.setattr(hurry, "due_ns", lambda sequence, start_ns: start_ns + 1000 * MS)
    faulty = Crowd(600).run(attack_of(HURRIED))
    assert faulty.worst_gap_ns > faulty.longest_gap_ns
