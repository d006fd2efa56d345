"""Streams that give time to late first tokens: whose, for whom, and no more than they make up for."""

import msgspec
import pytest
from hypothesis import given

from engine.scheduling import hurry
from engine.scheduling.budget import GAP_TARGETS
from engine.scheduling.hurry import BURST_TOKENS, MAKES_UP_PART, behind_ns
from engine.scheduling.output_lengths import FEWEST_OUTPUTS
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.request import Sequence
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import StepModel, StepTimes
from engine.wire import TenantPolicy
from tests.scheduling.bench import FAST_TPOT_S, MS, Bench, attack_of, attacks, many, quiet_requests
from tests.scheduling.driver import make_limits, make_submit
from tests.scheduling.test_scheduler import text_of

DECODES = 12
LAST_MS = 10
"""When their first tokens came,"""
NOW_MS = 60
"""and when the next step is planned: their next tokens are due 50 ms later, and 90 where they give time."""
TPOT_S = 0.1
SHORT, WHOLE = "100:0-31", "100:0-89!"
"""What the step does for the prompt: in 28 ms, and in 52."""


def commit(scheduler: Scheduler, plan: StepPlan, at_ms: int) -> None:
    tokens = (*(7 for _ in plan.decodes), *(7 if chunk.samples else -1 for chunk in plan.prefills))
    scheduler.commit(plan, StepResult(tokens, (None,) * len(tokens)), now_ns=at_ms * MS)


def scheduler_of(*, low: int = 0, high: int = 10, **changes) -> Scheduler:
    """Twelve answers of tenant `low` run. A step takes 4 ms, 1 a decode row and 0.25 a prefill row of its program."""
    values = {"scheduling_policy": "vtc", "max_step_ms": 30, "max_num_seqs": 16, "max_model_len": 200}
    limits = make_limits(num_pages=400, max_num_batched_tokens=128, **(values | changes))
    times = StepTimes({bucket: 0.004 + 1e-3 * bucket.decode_rows + 2.5e-4 * bucket.prefill_tokens for bucket in limits.buckets.all()})
    scheduler = Scheduler(limits, model=StepModel(times))
    policies = [
        TenantPolicy(tenant_id=name, priority=priority, tpot_s={"fast": TPOT_S}) for name, priority in (("low", low), ("high", high))
    ]
    scheduler.set_policies(policies)
    know_outputs(scheduler, "low", 50)
    for number in range(1, DECODES + 1):
        scheduler.submit(make_submit(number, (number,), salt="low", max_tokens=50))
    while scheduler.load(0).queued:
        plan = scheduler.plan(LAST_MS * MS)
        assert plan is not None
        commit(scheduler, plan, LAST_MS)
    return scheduler


def know_outputs(scheduler: Scheduler, tenant: str, tokens: int) -> None:
    """So long were the tenant's last ones."""
    for _ in range(FEWEST_OUTPUTS):
        scheduler._roster.outputs.note(tenant, tokens)


def prompt_comes(scheduler: Scheduler, *, due_ms: int, tenant: str = "high", lane: str = "fast", now_ms: int = NOW_MS) -> str:
    """It has 90 tokens. What the step does for it that is planned then."""
    submit = make_submit(100, (9,) * 90, salt=tenant, lane=lane, max_tokens=1)
    scheduler.submit(msgspec.structs.replace(submit, received_ns=now_ms * MS, ttft_deadline_ns=due_ms * MS))
    plan = scheduler.plan(now_ms * MS)
    assert plan is not None and len(plan.decodes) == DECODES
    return text_of(plan).split()[-1]


def test_a_step_takes_what_streams_make_up_for_where_a_first_token_would_be_late() -> None:
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 60) == WHOLE
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 200) == SHORT


def test_no_gap_gets_longer_than_a_gap_may_be() -> None:
    """One and a half targets after the last token, 52 ms are left until then."""
    said = {at_ms: prompt_comes(scheduler_of(), due_ms=at_ms + 60, now_ms=at_ms) for at_ms in range(NOW_MS, LAST_MS + 150, 10)}
    assert [at_ms for at_ms, chunk in said.items() if chunk == WHOLE] == [60, 70, 80, 90, 100]


def test_a_stream_may_fall_behind_by_a_part_of_the_tokens_that_it_has_to_come() -> None:
    stream = Sequence(make_submit(1, (1,), max_tokens=50), 0, [1] * 11, 1, expected_tokens=31, tpot_ns=100)
    assert behind_ns(stream) == round(MAKES_UP_PART * (20 - BURST_TOKENS) * 100)
    stream.expected_tokens = 91
    assert behind_ns(stream) == round(MAKES_UP_PART * (40 - BURST_TOKENS) * 100)  # it ends at max_tokens
    stream.expected_tokens = 11 + BURST_TOKENS
    assert behind_ns(stream) == 0


@pytest.mark.parametrize(
    ("low", "high", "tenant", "gives"), [(0, 0, "high", True), (5, 0, "high", False), (5, 0, "low", True), (0, 5, "high", True)]
)
def test_streams_give_time_to_their_own_tenants_prompts_and_to_no_lower_priority(low: int, high: int, tenant: str, gives: bool) -> None:
    said = prompt_comes(scheduler_of(low=low, high=high), due_ms=NOW_MS + 60, tenant=tenant)
    assert said == (WHOLE if gives else SHORT)


def test_a_tenant_beyond_its_contract_hurries_nobody_of_its_own_priority() -> None:
    scheduler = scheduler_of(high=0)
    beyond = TenantPolicy(tenant_id="high", tpot_s={"fast": TPOT_S}, committed_tpm=1)
    scheduler.set_policies([TenantPolicy(tenant_id="low", tpot_s={"fast": TPOT_S}), beyond])
    assert prompt_comes(scheduler, due_ms=NOW_MS + 60) == SHORT


def test_without_deadline_order_nobody_is_hurried() -> None:
    assert prompt_comes(scheduler_of(enable_deadline_order=False), due_ms=NOW_MS + 60) == SHORT


def test_batch_work_and_what_is_late_or_lost_already_hurry_nobody() -> None:
    """At best 90 tokens take 36 ms; who has less than a third of that is lost."""
    batch = prompt_comes(scheduler_of(), due_ms=NOW_MS + 60, lane="batch")
    assert batch != WHOLE
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS - 1) == SHORT
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 11) == SHORT
    assert prompt_comes(scheduler_of(), due_ms=NOW_MS + 13) == WHOLE


LONGEST_GAP_NS = round(FAST_TPOT_S * GAP_TARGETS * 1e9)
"""Of the fast lane."""


class Crowd(Bench):
    """Where decodes are dear, 3 ms a row, and token deadlines bound steps sooner than their limit does."""

    def __init__(self, num_pages: int = 96) -> None:
        super().__init__(decode_row_s=3e-3, prefill_row_s=1.2e-3, max_step_ms=60, enable_step_interrupts=False, num_pages=num_pages)
        self.num_longer = 0
        know_outputs(self.scheduler, "noisy", 14)
        token_limit_s = self.scheduler._planner._hurry.token_limit_s

        def counted(decodes: list[Sequence], limit_s: float | None, start_ns: int, now_ns: int) -> float | None:
            found_s = token_limit_s(decodes, limit_s, start_ns, now_ns)
            self.num_longer += found_s != limit_s
            return found_s

        self.scheduler._planner._hurry.token_limit_s = counted

    @property
    def worst_gap_ns(self) -> int:
        """Of the fast lane."""
        return max((served.worst_gap_ns for served in self.simulator.served.values() if served.submit.lane == "fast"), default=0)


@many
@given(attack=attacks)
def test_whoever_gives_time_gets_the_next_token_before_a_gap_is_too_long(attack) -> None:
    bench = Crowd().run([*quiet_requests(), *attack_of(attack)])
    if not bench.scheduler.load(0).preemptions["memory"]:
        assert bench.worst_gap_ns <= max(LONGEST_GAP_NS, bench.longest_step_ns)


HURRIED = [("fast", 60, 48, 14, True)] * 30


def test_the_gaps_see_streams_that_give_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Crowd(600).run(attack_of(HURRIED))
    assert bench.num_longer > 0 and bench.worst_gap_ns <= LONGEST_GAP_NS
    monkeypatch.setattr(hurry, "due_ns", lambda sequence, start_ns, behind_ns: start_ns + 1000 * MS)
    faulty = Crowd(600).run(attack_of(HURRIED))
    assert faulty.worst_gap_ns > LONGEST_GAP_NS
