"""A small machine under a virtual clock, a quiet tenant, and attacks on it."""

from typing import Self

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from engine.scheduling.budget import LONGER_STEP_RATIO, PROGRESS_RATIO
from engine.scheduling.plan import QUERY_BLOCK_TOKENS
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.scheduling.simulator import SimulatedStep, Simulator
from engine.scheduling.step_model import NO_WORK, StepModel, StepTimes, work_of
from engine.scheduling.tenants import KV_READS_PER_TOKEN
from engine.wire import Sampling, Submit, TenantPolicy
from tests.scheduling.driver import make_limits

MS = 1_000_000
MAX_STEP_MS = 14
FAST_TPOT_S, SLOW_TPOT_S = 0.04, 0.08
POLICIES = tuple(
    TenantPolicy(tenant_id=name, tpot_s={"fast": FAST_TPOT_S, "slow": SLOW_TPOT_S}, ttft_s={"fast": 0.5}) for name in ("quiet", "noisy")
)


class Bench:
    """A simulator of 8 rows and 96 pages of 4 tokens; an almost empty step takes 10 ms, a prefill row 0.1, a decode row 0.5."""

    def __init__(
        self, scheduler_type: type[Scheduler] = Scheduler, *, prefill_row_s: float = 1e-4, decode_row_s: float = 5e-4, **changes
    ) -> None:
        values = {"max_num_seqs": 8, "num_pages": 96, "scheduling_policy": "vtc", "max_step_ms": MAX_STEP_MS}
        self.limits = make_limits(**(values | changes))
        bucket_s = {b: 0.010 + prefill_row_s * b.prefill_tokens for b in self.limits.buckets.all()}
        self.times = StepTimes(bucket_s, 0.0, 1e-9, decode_row_s, 2e-6)
        self.scheduler = scheduler_type(self.limits, model=StepModel(self.times))
        self.scheduler.set_policies(POLICIES)
        runner = SimulatedRunner(num_pages=self.limits.num_pages, page_size=4, num_slots=8, vocab_size=self.limits.vocab_size)
        self.simulator = Simulator(self.scheduler, runner, self.times, self.watch)
        self.steps: list[SimulatedStep] = []
        self.since: dict[str, float] = {}
        self.worst_gap = 0.0

    def watch(self, step: SimulatedStep) -> None:
        self.steps.append(step)
        self.check_budget(step)
        if not step.plan.prefills:
            begun = [s for s in self.scheduler._roster.running if s.uncomputed_tokens]
            assert not begun, "a step without prefill although a prompt was begun"
        self.check_gap()

    def check_gap(self) -> None:
        """Since both have had prompts waiting, neither was served more than the bound more than the other."""
        counters = {name: account.counter for name, account in self.scheduler.accounts.active() if account.waiting}
        if len(counters) < 2:
            self.since = {}
            return
        self.since = self.since or counters
        served = [counter - self.since[name] for name, counter in counters.items()]
        self.worst_gap = max(self.worst_gap, max(served) - min(served))

    @property
    def gap_bound(self) -> float:
        """Whoever is ahead gets no further prompt in before the other; what it began, in all rows, it may end."""
        reads = self.limits.max_model_len**2 / KV_READS_PER_TOKEN
        return self.limits.max_num_seqs * (self.limits.max_model_len + reads)

    def check_budget(self, step: SimulatedStep) -> None:
        plan = step.plan
        if not plan.prefills:
            return
        alone = NO_WORK
        for row in plan.decodes:
            alone = alone.with_decode(row.position + 1)
        bucket = self.limits.buckets.choose(len(plan.decodes), QUERY_BLOCK_TOKENS)
        least_s = self.times.seconds(bucket, alone.with_chunk(QUERY_BLOCK_TOKENS, 0)) * PROGRESS_RATIO
        is_fast = any(self.simulator.served[chunk.sequence_id].submit.lane == "fast" for chunk in plan.prefills)
        # the rest of a prompt comes along where a step of its own would take longer
        limit_s = self.limits.max_step_ms / 1e3 * LONGER_STEP_RATIO + is_fast * least_s
        assert self.times.seconds(plan.bucket, work_of(plan)) <= max(limit_s, least_s) * 1.01, f"{plan.bucket} takes too long"

    @property
    def longest_step_ns(self) -> int:
        return max(step.ended_ns - step.began_ns for step in self.steps)

    def run(self, submits: list[Submit]) -> Self:
        self.simulator.add(submits)
        self.simulator.run()
        assert all(served.ended_ns for served in self.simulator.served.values()), "somebody starved"
        assert not any(account.live for account in self.scheduler.accounts._accounts.values()), "a tenant is active without sequences"
        return self


def submit(number: int, tenant: str, lane: str, at_ms: int, prompt_tokens: int, output_tokens: int, *, deadline_ms: int = 0) -> Submit:
    prompt = tuple(2 + (number * 7 + i * i) % 38 for i in range(prompt_tokens))
    sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
    return Submit(number, "r", tenant, lane, tenant, prompt, sampling, at_ms * MS, deadline_ms * MS)


attacks = st.lists(
    st.tuples(st.sampled_from(("fast", "slow", "batch")), st.integers(0, 60), st.integers(1, 48), st.integers(1, 14), st.booleans()),
    min_size=1,
    max_size=40,
)
"""Lane, milliseconds since the request before, prompt and output tokens, whether it claims a deadline."""


def attack_of(attack, tenant: str = "noisy") -> list[Submit]:
    submits, at_ms = [], 0
    for number, (lane, gap_ms, prompt_tokens, output_tokens, hurries) in enumerate(attack, 1000):
        at_ms += gap_ms
        deadline_ms = at_ms + 100 if hurries else 0
        submits.append(submit(number, tenant, lane, at_ms, prompt_tokens, output_tokens, deadline_ms=deadline_ms))
    return submits


def quiet_requests(count: int = 6, every_ms: int = 200) -> list[Submit]:
    return [submit(n, "quiet", "fast", 40 + n * every_ms, 16, 4, deadline_ms=540 + n * every_ms) for n in range(count)]


FLOOD = [("slow", 0, 48, 14, False)] * 60
LONG_ANSWERS = [("slow", 0, 4, 50, False)] * 60
"""They fill the rows."""
MIXED_FLOOD = [("fast", 0, 12, 14, True), ("slow", 0, 48, 10, False), ("batch", 0, 40, 14, False)] * 25
many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
