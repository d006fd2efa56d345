"""Under a virtual clock: what one tenant gets whatever the others do, and what every step keeps to."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.scheduling.budget import FAST_STEP_RATIO, GAP_TARGETS, PROGRESS_RATIO
from engine.scheduling.plan import QUERY_BLOCK_TOKENS
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.scheduling.simulator import SimulatedStep, Simulator
from engine.scheduling.step_model import NO_WORK, StepModel, StepTimes, work_of
from engine.scheduling.tenants import KV_READS_PER_TOKEN
from engine.wire import Sampling, Submit, TenantPolicy
from tests.scheduling.driver import Driver, make_limits
from tests.scheduling.test_properties import TRAFFIC, run_traffic

MS = 1_000_000
MAX_STEP_MS = 14
FAST_TPOT_S, SLOW_TPOT_S = 0.04, 0.08
POLICIES = tuple(
    TenantPolicy(tenant_id=name, tpot_s={"fast": FAST_TPOT_S, "slow": SLOW_TPOT_S}, ttft_s={"fast": 0.5}) for name in ("quiet", "noisy")
)


class Bench:
    """A simulator of 8 rows and 96 pages of 4 tokens; an almost empty step takes 10 ms, a prefill row 0.1, a decode row 0.5."""

    def __init__(self, scheduler_type: type[Scheduler] = Scheduler, **changes) -> None:
        values = {"max_num_seqs": 8, "num_pages": 96, "scheduling_policy": "vtc", "max_step_ms": MAX_STEP_MS}
        self.limits = make_limits(**(values | changes))
        bucket_s = {b: 0.010 + 1e-4 * b.prefill_tokens for b in self.limits.buckets.all()}
        self.times = StepTimes(bucket_s, 0.0, 1e-9, 5e-4, 2e-6)
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
        limit_s = MAX_STEP_MS / 1e3 * (FAST_STEP_RATIO if is_fast else 1)
        assert self.times.seconds(plan.bucket, work_of(plan)) <= max(limit_s, least_s) * 1.01, f"{plan.bucket} takes too long"

    @property
    def longest_step_ns(self) -> int:
        return max(step.ended_ns - step.began_ns for step in self.steps)

    def run(self, submits: list[Submit]) -> "Bench":
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
MAX_WAIT_STEPS = 6
"""The one that runs, the prompt's own, and turns of other lanes and of the tie between equals."""
many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def check_isolation(bench: Bench) -> None:
    for served in bench.simulator.served.values():
        if served.submit.tenant_id == "quiet":
            assert served.ttft_ns <= MAX_WAIT_STEPS * bench.longest_step_ns, f"{served.submit.sequence_id} waited {served.ttft_ns / MS} ms"


@many
@given(attack=attacks, num_pages=st.sampled_from((32, 48, 96)))
def test_a_conformant_tenants_first_token_is_a_few_steps_away_whatever_another_does(attack, num_pages: int) -> None:
    check_isolation(Bench(num_pages=num_pages).run([*quiet_requests(), *attack_of(attack)]))


@pytest.mark.parametrize("attack", [FLOOD, LONG_ANSWERS, MIXED_FLOOD])
@pytest.mark.parametrize("num_pages", [32, 96])
def test_neither_does_a_flood_delay_it(attack, num_pages: int) -> None:
    check_isolation(Bench(num_pages=num_pages).run([*quiet_requests(), *attack_of(attack)]))


@many
@given(attack=attacks, interrupts=st.booleans())
def test_a_running_decode_never_stalls(attack, interrupts: bool) -> None:
    """Of the fast lane it is in every step; where steps are cut short for newcomers, its next token still comes before it is due."""
    bench = Bench(enable_step_interrupts=interrupts).run([*quiet_requests(), *attack_of(attack)])
    if bench.scheduler.load(0).preemptions["memory"]:
        return  # who lost its pages starts over
    targets_s = {"fast": FAST_TPOT_S if interrupts else 0.0, "slow": SLOW_TPOT_S}
    for served in bench.simulator.served.values():
        target_s = targets_s.get(served.submit.lane)
        target_ns = 1000 * MS if target_s is None else round(target_s * GAP_TARGETS * 1e9)
        assert served.worst_gap_ns <= max(target_ns, bench.longest_step_ns), f"{served.submit.lane}: {served.worst_gap_ns / MS} ms"


@many
@given(first=attacks, second=attacks, pause_ms=st.integers(0, 2000))
def test_two_backlogged_tenants_are_served_alike_whoever_was_away(first, second, pause_ms: int) -> None:
    first = [("slow", *rest) for _, *rest in first]
    late = [("slow", gap + (pause_ms if not n else 0), *rest) for n, (_, gap, *rest) in enumerate(second)]
    moved = [Submit(s.sequence_id + 5000, *(getattr(s, f) for f in s.__struct_fields__[1:])) for s in attack_of(late, "quiet")]
    bench = Bench().run([*attack_of(first), *moved])
    assert bench.worst_gap <= bench.gap_bound


MAX_PLACE = 60


def place_behind_short_prompts(bench: Bench, attack) -> int:
    """How many end before the quiet tenant's one long prompt, of a hundred short ones and an attack."""
    flood = [submit(n, "noisy", "slow", 0, 1 + n % 5, 2) for n in range(2000, 2100)]
    bench.run([submit(0, "quiet", "slow", 5, 48, 2), *flood, *attack_of(attack)])
    ended = sorted(bench.simulator.served.values(), key=lambda served: served.ended_ns)
    return [served.submit.tenant_id for served in ended].index("quiet")


@many
@given(attack=attacks, priority=st.integers(-3, 3), weight=st.sampled_from((0.25, 1.0)))
def test_nobody_starves_whatever_the_others_priority_and_however_close_to_their_ends_they_are(attack, priority: int, weight: float) -> None:
    """`Bench.run` sees that all end; a quiet prompt of the slow lane waits for no more than the tie that priority and closeness decide."""
    policies = (TenantPolicy(tenant_id="quiet"), TenantPolicy(tenant_id="noisy", priority=priority, weight=weight))
    bench = Bench()
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


# ---- planted faults: each property above must see what it is for ----------------------------------------------------


class NeverLifts(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts._lift = lambda account: None  # type: ignore[method-assign]


class NeverRefunds(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.refund = lambda row: None  # type: ignore[method-assign]


class ChargesPromptsOnly(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        charge = self.accounts.charge
        self.accounts.charge = lambda row: None if row.is_decode else charge(row)  # type: ignore[method-assign]


class NeverLeaves(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.leave = lambda tenant_id: None  # type: ignore[method-assign]


class KeepsNoRows(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._roster.shares.has_row = lambda tenant_id, free_rows: free_rows > 0  # type: ignore[method-assign]


class MakesNoWay(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._make_way = lambda now_ns: None  # type: ignore[method-assign]
        self._roster.shares.pages_kept_back = lambda tenant_id: 0  # type: ignore[method-assign]


class NeverCharges(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.charge = self.accounts.refund = lambda row: None  # type: ignore[method-assign]


class TakesNoAccountOfTime(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._budget.prefill_rows = lambda *_, **__: None  # type: ignore[method-assign]


class LeavesDecodesOut(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._budget.choose_decodes = lambda decodes, *_, **__: decodes[:1]  # type: ignore[method-assign]


class PrefillsOnlyWithoutDecodes(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        fill = self._planner._plan_prefills
        self._planner._plan_prefills = lambda draft, now_ns: None if draft.decodes else fill(draft, now_ns)  # type: ignore[method-assign]


def one_after_the_other() -> list[Submit]:
    """Noisy works for long, then quiet comes back for long: unlifted, it would owe nobody anything."""
    head = [submit(n, "noisy", "slow", 0, 40, 12) for n in range(1, 150)]
    return [*head, *(submit(n, "quiet", "slow", 1200, 40, 12) for n in range(200, 300))]


def test_the_gap_sees_a_missing_lift() -> None:
    for scheduler_type in (Scheduler, NeverLifts):
        bench = Bench(scheduler_type).run(one_after_the_other())
        assert (bench.worst_gap <= bench.gap_bound) == (scheduler_type is Scheduler)


def test_an_idle_engine_sees_a_tenant_that_never_left() -> None:
    with pytest.raises(AssertionError, match="active without sequences"):
        Bench(NeverLeaves).run(quiet_requests())


def test_a_missing_charge_lets_priority_starve_the_others() -> None:
    policies = (TenantPolicy(tenant_id="quiet"), TenantPolicy(tenant_id="noisy", priority=3))
    for scheduler_type in (Scheduler, NeverCharges):
        bench = Bench(scheduler_type)
        bench.scheduler.set_policies(policies)
        assert (place_behind_short_prompts(bench, FLOOD[:1]) < MAX_PLACE) == (scheduler_type is Scheduler)


@pytest.mark.parametrize(
    ("faulty", "message"), [(TakesNoAccountOfTime, "takes too long"), (PrefillsOnlyWithoutDecodes, "although a prompt was begun")]
)
def test_the_checks_of_every_step_see_what_it_should_not_hold_or_lacks(faulty: type[Scheduler], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        Bench(faulty).run([*quiet_requests(), *attack_of(FLOOD)])


def test_the_gaps_see_decodes_that_were_left_out() -> None:
    for scheduler_type in (Scheduler, LeavesDecodesOut):
        bench = Bench(scheduler_type).run(attack_of(FLOOD[:6]))
        gap_ns = max(served.worst_gap_ns for served in bench.simulator.served.values())
        assert (gap_ns <= max(SLOW_TPOT_S * GAP_TARGETS * 1e9, bench.longest_step_ns)) == (scheduler_type is Scheduler)


ISOLATION_FAULTS = (
    (KeepsNoRows, LONG_ANSWERS, {}),
    (MakesNoWay, FLOOD, {"num_pages": 32}),
    (Scheduler, FLOOD, {"scheduling_policy": "fcfs"}),
)


@pytest.mark.parametrize(("faulty", "attack", "changes"), ISOLATION_FAULTS)
def test_isolation_sees_what_it_is_made_of(faulty: type[Scheduler], attack, changes: dict) -> None:
    with pytest.raises(AssertionError, match="waited"):
        check_isolation(Bench(faulty, **changes).run([*quiet_requests(), *attack_of(attack)]))


@pytest.mark.parametrize("faulty", [NeverRefunds, ChargesPromptsOnly])
def test_conservation_sees_what_is_charged_wrongly(faulty: type[Scheduler]) -> None:
    limits = make_limits(num_pages=20, max_num_seqs=8, scheduling_policy="vtc")
    with pytest.raises(AssertionError, match="virtual tokens"):
        run_traffic(Driver(limits, faulty(limits)), TRAFFIC, overlap=True)
