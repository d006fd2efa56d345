"""Random traffic, tiny pools, any interleaving of submits, aborts, plans and commits."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.scheduling.eviction import POLICIES
from engine.scheduling.policy import FirstComeFirstServed
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import CacheMixup
from engine.wire import Submit, TenantPolicy
from tests.scheduling.driver import Driver, alone, make_limits, make_submit, with_quotas

FAMILIES = tuple(tuple(2 + (start + 7 * i * i + i) % 38 for i in range(48)) for start in (0, 11))
"""Two common prefixes that prompts are cut from."""

prompts = st.builds(
    lambda family, length, suffix: FAMILIES[family][:length] + tuple(suffix),
    st.integers(0, 1),
    st.integers(0, 48),
    st.lists(st.integers(2, 39), min_size=1, max_size=4),
)
samplings = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 12),
        "seed": st.integers(0, 2),
        "ignore_eos": st.booleans(),
        "min_tokens": st.just(0),
        "logprobs": st.sampled_from((-1, -1, 2)),
        "prompt_logprobs": st.sampled_from((-1, -1, -1, -1, 0)),
    }
)
lanes = st.sampled_from(("fast", "slow", "batch"))
all_limits = st.fixed_dictionaries(
    {
        "num_pages": st.sampled_from((16, 18, 24, 64)),
        "max_num_seqs": st.sampled_from((1, 4, 8)),
        "max_prefill_rows": st.integers(1, 4),
        "max_num_batched_tokens": st.sampled_from((16, 40, 48, 128)),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "preempt_every_steps": st.sampled_from((0, 0, 1, 3)),
        "scheduling_policy": st.sampled_from(("fcfs", "priority", "wrr", "vtc", "vtc")),
        "eviction_policy": st.sampled_from(tuple(POLICIES)),
        "enable_kv_quota": st.sampled_from((True, True, False)),
        "swap_pages": st.sampled_from((0, 8, 64)),
    }
)
ratios = st.tuples(st.sampled_from((0.0, 0.0, 0.2, 0.5)), st.sampled_from((1.0, 1.0, 0.6, 0.3)))
quotas = st.builds(with_quotas, ratios, ratios)
"""Of the tenants a and b. Reserves count in pools that have more pages than one sequence of the longest length needs."""


def sibling(first: Submit, sequence_id: int, seed: int) -> Submit:
    """One more output of the same prompt."""
    sampling = msgspec.structs.replace(first.sampling, seed=seed)
    return msgspec.structs.replace(first, sequence_id=sequence_id, sampling=sampling, sibling_of=first.sequence_id)


class LastComeFirstServed(FirstComeFirstServed):
    """Another order through the seam: what always holds may not depend on who comes first."""

    def __iter__(self):
        return reversed(tuple(super().__iter__()))


class AnyInterleaving(RuleBasedStateMachine):
    """Checks live in `Driver`: pages, references, salts, budget, buckets, decodes, events, outputs."""

    @initialize(limits=all_limits, queue_type=st.sampled_from((FirstComeFirstServed, LastComeFirstServed)), policies=quotas)
    def start(self, limits: dict, queue_type: type[FirstComeFirstServed], policies: tuple[TenantPolicy, ...]) -> None:
        made = make_limits(**limits)
        self.driver = Driver(made, Scheduler(made, queue_type() if made.scheduling_policy == "fcfs" else None))
        self.driver.scheduler.set_policies(policies)
        self.num_submitted = 0

    @rule(prompt=prompts, sampling=samplings, salt=st.sampled_from("ab"), lane=lanes)
    def submit(self, prompt: tuple[int, ...], sampling: dict, salt: str, lane: str) -> None:
        self.num_submitted += 1
        assert self.driver.submit(make_submit(self.num_submitted, prompt, salt=salt, lane=lane, **sampling))

    @precondition(lambda self: self.num_submitted)
    @rule(back=st.integers(0, 3), seed=st.integers(3, 6))
    def submit_sibling(self, back: int, seed: int) -> None:
        first = self.driver.outcomes[max(1, self.num_submitted - back)].submit
        self.num_submitted += 1
        self.driver.submit(sibling(first, self.num_submitted, seed))

    @precondition(lambda self: self.num_submitted)
    @rule(back=st.integers(0, 5), suffix=st.integers(2, 39), sampling=samplings, salt=st.sampled_from("ab"), lane=lanes)
    def submit_next_turn(self, back: int, suffix: int, sampling: dict, salt: str, lane: str) -> None:
        self.submit(self.driver.next_turn(max(1, self.num_submitted - back), (suffix,)), sampling, salt, lane)

    @precondition(lambda self: self.num_submitted)
    @rule(back=st.integers(0, 5))
    def abort(self, back: int) -> None:
        self.driver.abort(max(1, self.num_submitted - back))

    @precondition(lambda self: self.num_submitted)
    @rule(back=st.integers(0, 5))
    def pause(self, back: int) -> None:
        self.driver.pause(max(1, self.num_submitted - back))

    @precondition(lambda self: self.num_submitted)
    @rule(back=st.integers(0, 5))
    def resume(self, back: int) -> None:
        self.driver.resume(max(1, self.num_submitted - back))

    @precondition(lambda self: self.driver.num_in_flight < 2)
    @rule()
    def plan(self) -> None:
        self.driver.start_step()

    @precondition(lambda self: self.driver.num_in_flight)
    @rule()
    def commit(self) -> None:
        self.driver.finish_step()

    @precondition(lambda self: self.driver.num_in_flight == 1 and self.driver.scheduler._sequences)
    @rule()
    def cut(self) -> None:
        self.driver.cut_step()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            while self.driver.num_in_flight:
                self.driver.finish_step()
            self.driver.resume_all()
            self.driver.run(overlap=False)


TestAnyInterleaving = AnyInterleaving.TestCase
TestAnyInterleaving.settings = settings(max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck))


type Arrival = tuple[int, tuple[int, ...], dict, str, int, int]
"""Steps since the arrival before, prompt, sampling, salt, steps until it is aborted (0: never), how many arrivals
back the conversation began that it continues (0: none)."""

traffics = st.lists(
    st.tuples(
        st.integers(0, 3), prompts, samplings, st.sampled_from("ab"), st.sampled_from((0, 0, 0, 1, 2, 5, 9)), st.sampled_from((0, 0, 1, 4))
    ),
    min_size=1,
    max_size=16,
)


def run_traffic(driver: Driver, traffic: list[Arrival], *, overlap: bool) -> Driver:
    aborts: dict[int, list[int]] = {}
    step = 0
    for sequence_id, (gap, prompt, sampling, salt, abort_after, turns_back) in enumerate(traffic, 1):
        for _ in range(gap):
            step += 1
            _loop_once(driver, overlap=overlap)
            for due in aborts.pop(step, ()):
                driver.abort(due)
        if turns_back:
            prompt = driver.next_turn(sequence_id - turns_back, prompt[-1:])
        first = make_submit(sequence_id, prompt, salt=salt, lane=("fast", "slow", "batch")[sequence_id % 3], **sampling)
        driver.submit(first)
        for number in (1, 2) if sequence_id % 4 == 0 else ():
            driver.submit(sibling(first, 1000 * number + sequence_id, number))
        if abort_after:
            aborts.setdefault(step + abort_after, []).append(sequence_id)
    for due in sorted(aborts):
        while step < due:
            step += 1
            _loop_once(driver, overlap=overlap)
        for sequence_id in aborts[due]:
            driver.abort(sequence_id)
    return driver.run(overlap=overlap)


def _loop_once(driver: Driver, *, overlap: bool) -> None:
    started = driver.start_step()
    if driver.num_in_flight and (driver.num_in_flight == 2 or not overlap or not started):
        driver.finish_step()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=all_limits, traffic=traffics, policies=quotas)
def test_overlapped_and_plain_loops_give_every_sequence_the_output_of_running_alone(
    limits: dict, traffic: list[Arrival], policies: tuple[TenantPolicy, ...]
) -> None:
    for overlap in (False, True):
        driver = Driver(make_limits(**limits))
        driver.scheduler.set_policies(policies)
        run_traffic(driver, traffic, overlap=overlap)  # the driver compares


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=all_limits, traffic=traffics, overlap=st.booleans())
def test_the_same_arrivals_give_the_same_plans(limits: dict, traffic: list[Arrival], overlap: bool) -> None:
    first, second = (run_traffic(Driver(make_limits(**limits)), traffic, overlap=overlap) for _ in range(2))
    assert first.plans == second.plans
    assert first.records == second.records


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=all_limits, sampling=samplings, prompt=prompts, overlap=st.booleans())
def test_the_first_to_come_ends_however_many_come_behind_it(limits: dict, sampling: dict, prompt: tuple[int, ...], overlap: bool) -> None:
    driver = Driver(make_limits(**limits))
    driver.submit(make_submit(1, prompt, **sampling))
    for sequence_id in range(2, 200):
        if driver.outcomes[1].finish is not None:
            break
        other = FAMILIES[sequence_id % 2][: 10 + sequence_id % 37]
        driver.submit(make_submit(sequence_id, other, max_tokens=12, ignore_eos=True))
        _loop_once(driver, overlap=overlap)
    assert driver.outcomes[1].finish is not None
    # Two preemptions repeat its work at most twice; lone chunks take every second step; protected others end first.
    assert len(driver.plans) < 120


TRAFFIC: list[Arrival] = [
    (
        int(i % 3 == 0),
        FAMILIES[i // 2 % 2][: 5 + 11 * i % 30] + (2 + i % 38,),
        {"max_tokens": 12 - i % 4, "seed": i % 5, "ignore_eos": i % 4 < 2},
        "ab"[i % 2],
        (0, 0, 4, 0, 0, 0, 1)[i % 7],
        (0, 0, 40)[i % 3],
    )
    for i in range(200)
]
"""One fixed traffic with every kind of trouble."""
CHAT: list[Arrival] = [(20, (2 + i,), {"max_tokens": 1 + i % 4, "ignore_eos": True}, "a", 0, int(i > 0)) for i in range(12)]
"""One conversation, turn after turn."""


class KeepsLateTokens(Scheduler):
    def _is_late(self, row) -> bool:
        return False


class LosesPages(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        release = self._roster.memory.release

        def lossy(sequence) -> None:
            sequence.pages = sequence.pages[:-1]
            release(sequence)

        self._roster.memory.release = lossy


class ReleasesPagesTwice(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        release = self._roster.memory.release

        def doubled(sequence) -> None:
            sequence.pages = [*sequence.pages, *sequence.pages[-1:]]
            release(sequence)

        self._roster.memory.release = doubled


class CachesUncommittedPages(Scheduler):
    """Registers what is planned instead of what is committed, after the device may have been told to do otherwise."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        release = memory.release

        def too_early(sequence) -> None:
            sequence.computed_tokens = len(sequence.pages) * limits.page_size
            sequence.computed_tokens = min(sequence.computed_tokens, len(sequence.tokens))
            memory.register(sequence)
            release(sequence)

        memory.release = too_early


class SharesThePageThatIsWritten(Scheduler):
    """Siblings get the prompt's last page itself instead of a copy."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        adopt = memory.adopt

        def uncopied(sequence, match) -> None:
            adopt(sequence, match)
            if match.copy_of is not None:
                memory.moves._copied.pop()
                memory.pool.retain(match.copy_of, sequence.submit.tenant_id)
                memory.pool.release(sequence.pages.pop())
                sequence.pages.append(match.copy_of)

        memory.adopt = uncopied


class ForksInTheStepThatComputes(Scheduler):
    """Does not wait until the prompt's pages were planned in an earlier step."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        match = self._planner._match_unless_held
        self._planner._match_unless_held = lambda sequence, draft=None: match(sequence)


class NeverCopies(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        adopt = memory.adopt
        memory.adopt = lambda sequence, match: (adopt(sequence, match), memory.moves._copied.clear())  # type: ignore[assignment]


class SwapsOutAfterTheStep(Scheduler):
    """The pages are another's by then."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        moves, late = self._roster.memory.moves, {}
        take = moves.take

        def too_late():
            leaving = dict(moves._out)
            moves._out = dict(late)
            late.clear()
            late.update(leaving)
            return take()

        moves.take = too_late  # type: ignore[method-assign]


class KeepsTokensThatNobodyKnows(Scheduler):
    """Counts what a step in flight draws among what the host keeps."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        memory.swappable_tokens = lambda sequence: sequence.planned_tokens if sequence.sent_pages else 0  # type: ignore[method-assign]


class LosesHostPages(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        self._roster.memory.moves.return_host = lambda host_pages: None  # type: ignore[method-assign]


class ForgetsSalts(Scheduler):
    def submit(self, submit: Submit) -> None:
        root = self._roster.memory.cache.root
        self._roster.memory.cache.root = lambda salt: root("")
        super().submit(submit)


FAULTS = (
    (KeepsLateTokens, TRAFFIC),
    (LosesPages, TRAFFIC),
    (ReleasesPagesTwice, TRAFFIC),
    (ForgetsSalts, TRAFFIC),
    (SharesThePageThatIsWritten, TRAFFIC),
    (ForksInTheStepThatComputes, TRAFFIC),
    (NeverCopies, TRAFFIC),
    (CachesUncommittedPages, CHAT),
)


SWAPPING = {"num_pages": 20, "max_num_seqs": 8, "swap_pages": 24, "preempt_every_steps": 3}
SWAP_FAULTS = (SwapsOutAfterTheStep, KeepsTokensThatNobodyKnows, LosesHostPages)


@pytest.mark.parametrize("faulty", SWAP_FAULTS)
def test_the_checks_see_a_fault_of_swapping(faulty: type[Scheduler]) -> None:
    limits = make_limits(**SWAPPING)
    with pytest.raises((AssertionError, CacheMixup, KeyError, ValueError)):
        run_traffic(Driver(limits, faulty(limits)), TRAFFIC, overlap=True)
    load = run_traffic(Driver(limits), TRAFFIC, overlap=True).scheduler.load(0)
    assert load.swapped_out_pages > load.swapped_in_pages > 100


@pytest.mark.parametrize("policy", ["fcfs", "priority", "wrr", "vtc"])
def test_the_fixed_traffic_runs_clean_and_meets_every_trouble_there_is(policy: str) -> None:
    driver = run_traffic(Driver(make_limits(num_pages=20, max_num_seqs=8, scheduling_policy=policy)), TRAFFIC, overlap=True)
    load = driver.scheduler.load(0)
    assert load.preemptions["memory"] > 2
    assert load.evicted_pages > 50
    told = sum(each.pages for record in driver.records for each in record.evictions)
    assert told == sum(record.evicted_pages for record in driver.records) and load.evicted_pages - 32 <= told <= load.evicted_pages
    assert load.recomputed_tokens > 5
    assert load.prefix_hit_tokens > 100
    assert load.copied_pages > 10
    planned = sum(len(plan.decodes) + sum(chunk.samples for chunk in plan.prefills) for plan in driver.plans)
    assert planned > sum(len(outcome.tokens) for outcome in driver.outcomes.values()) + 10  # late tokens were dropped


@pytest.mark.parametrize(("faulty", "traffic"), FAULTS)
def test_the_checks_see_a_scheduler_with_a_fault(faulty: type[Scheduler], traffic: list[Arrival]) -> None:
    limits = make_limits(num_pages=20, max_num_seqs=8)
    with pytest.raises((AssertionError, CacheMixup, KeyError, ValueError)):
        run_traffic(Driver(limits, faulty(limits)), traffic, overlap=True)
    run_traffic(Driver(limits), traffic, overlap=True)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_fixed_traffic_runs_clean_in_the_opposite_order_too(overlap: bool) -> None:
    limits = make_limits(num_pages=20, max_num_seqs=8, max_num_batched_tokens=16)
    run_traffic(Driver(limits, Scheduler(limits, LastComeFirstServed())), TRAFFIC, overlap=overlap)


def test_the_oracle_stops_at_eos_for_some_and_at_the_length_for_others() -> None:
    finishes = {alone(FAMILIES[0][:length], (12, 0, False, seed, (), -1, -1)).finish for length in range(1, 20) for seed in range(3)}
    assert len(finishes) == 2
