"""The scheduler under a virtual clock: steps take what a step-time model says, arrivals come when a trace says. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from operator import sub

from engine.scheduling.interrupt import CUT_S
from engine.scheduling.plan import StepPlan
from engine.scheduling.repeat import TokenOf
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner, SimulatedRunner
from engine.scheduling.step_model import StepTimes, work_of
from engine.wire import SequenceEvent, StepRecord, Submit


@dataclass(slots=True)
class Served:
    """What one submitted sequence got, in virtual nanoseconds."""

    submit: Submit
    token_times_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0
    lane: str = ""
    """Where it ran; empty until its first event."""

    @property
    def ttft_ns(self) -> int:
        """From its receipt."""
        return self.token_times_ns[0] - self.submit.received_ns

    @property
    def tpot_ns(self) -> float:
        """Mean time a token after the first; 0 where there is no second."""
        count = len(self.token_times_ns) - 1
        return (self.token_times_ns[-1] - self.token_times_ns[0]) / count if count > 0 else 0.0

    @property
    def worst_gap_ns(self) -> int:
        """Longest time between two of its tokens; 0 with fewer."""
        return max(map(sub, self.token_times_ns[1:], self.token_times_ns), default=0)


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step as it was planned, and when it ran."""

    plan: StepPlan
    began_ns: int
    ended_ns: int
    record: StepRecord


class Simulator:
    """Runs the plain loop: take what has come, plan, let the step's time pass, commit."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: SimulatedRunner | QuickRunner,
        times: StepTimes,
        watch: Callable[[SimulatedStep], None] | None = None,
        *,
        on_end: Callable[[Served], None] | None = None,
        on_step: Callable[[], None] | None = None,
        repeats: bool = True,
    ) -> None:
        """`times` are the machine's true ones; the scheduler's model may hold others. `watch` sees each step after its commit.

        `on_end` gets each sequence when it ends, which is then forgotten; without it all stay in `served`. `on_step` is called after
        each step. With a `QuickRunner` and nobody who watches, decode steps that are all alike are run
        many at a time (`repeats`), and `on_step` is called once for them.
        """
        self.scheduler = scheduler
        self.served: dict[int, Served] = {}
        self.now_ns = 0
        self.num_steps = 0
        self._runner = runner
        self._times = times
        self._watch = watch
        self._on_end = on_end
        self._on_step = on_step
        self._token_of = runner.token_of if repeats and watch is None and isinstance(runner, QuickRunner) else None
        self._arrivals: list[tuple[int, int, Submit]] = []
        self._stream: Iterator[Submit] = iter(())

    def add(self, submits: Iterable[Submit]) -> None:
        """They arrive when they are received."""
        for submit in submits:
            heappush(self._arrivals, (submit.received_ns, submit.sequence_id, submit))

    def follow(self, submits: Iterator[Submit]) -> None:
        """They arrive when they are received, which is in this order; each is drawn when the one before has come."""
        self._stream = submits
        self._draw()

    def run(self, until_ns: int = 2**63) -> None:
        """Until nothing is left, or the clock passes `until_ns`."""
        while self.now_ns < until_ns:
            if self.scheduler.is_idle and self._arrivals:
                self.now_ns = max(self.now_ns, self._arrivals[0][0])
            self._let_in()
            plan = self.scheduler.plan(self.now_ns)
            self._take(self.scheduler.take_events())
            if plan is None and self.scheduler.is_idle and self._arrivals:
                continue  # whoever was left waited too long
            if plan is None:
                assert self.scheduler.is_idle, "nothing is in flight, work is left, and nothing is planned"
                return
            self._step(plan)
            if self._token_of is not None:
                self._repeat(self._token_of, min(until_ns, self._arrivals[0][0] if self._arrivals else until_ns))
            if self._on_step is not None:
                self._on_step()

    def _let_in(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            submit = heappop(self._arrivals)[2]
            self._draw()
            self.served[submit.sequence_id] = Served(submit)
            self.scheduler.submit(submit)

    def _draw(self) -> None:
        submit = next(self._stream, None)
        if submit is not None:
            self.add((submit,))

    def _step(self, plan: StepPlan) -> None:
        began_ns, ticket, work = self.now_ns, self._runner.dispatch(plan), work_of(plan)
        ends_ns = began_ns + max(1, round(self._times.seconds(plan.bucket, work) * 1e9))
        newcomer_id = self._newcomer_before(ends_ns, began_ns) if self.scheduler.may_interrupt else None
        if newcomer_id is not None and self._runner.interrupt(ticket):
            rest_ns = self._times.kept_share(plan.bucket, work) * (ends_ns - self.now_ns)
            ends_ns = min(ends_ns, self.now_ns + round(CUT_S * 1e9 + rest_ns))
        result = self._runner.collect(ticket)
        self.now_ns = ends_ns
        self.num_steps += 1
        self._take(self.scheduler.settle(plan, result, self.now_ns, dispatched_ns=began_ns, newcomer_id=newcomer_id))
        if self._watch is None:
            self.scheduler.learn(plan, dispatched_ns=began_ns, done_ns=self.now_ns)
            return
        record = self.scheduler.record(plan, planned_ns=began_ns, dispatched_ns=began_ns, done_ns=self.now_ns, committed_ns=self.now_ns)
        self._watch(SimulatedStep(plan, began_ns, self.now_ns, record))

    def _newcomer_before(self, ends_ns: int, began_ns: int) -> int | None:
        """Let in who comes while the step runs, up to the one for whom it is cut short."""
        while self._arrivals and self._arrivals[0][0] < ends_ns:
            self.now_ns = max(self.now_ns, self._arrivals[0][0])
            self._let_in()
            newcomer_id = self.scheduler.newcomer_to_interrupt_for(self.now_ns, running_dispatched_ns=began_ns)
            if newcomer_id is not None:
                return newcomer_id
        return None

    def _repeat(self, token_of: TokenOf, until_ns: int) -> None:
        repeated = self.scheduler.repeat(self._times, self.now_ns, until_ns, token_of)
        if repeated.ended_ns:
            self.now_ns = repeated.ended_ns[-1]
            self.num_steps += len(repeated.ended_ns)
            for sequence_id in repeated.sequence_ids:
                self.served[sequence_id].token_times_ns.extend(repeated.ended_ns)

    def _take(self, events: Iterable[SequenceEvent]) -> None:
        for event in events:
            served = self.served[event.sequence_id]
            served.lane = served.lane or event.lane
            served.token_times_ns += [self.now_ns] * len(event.token_ids)
            if event.finish is not None:
                served.ended_ns = self.now_ns
                if self._on_end is not None:
                    self._on_end(self.served.pop(event.sequence_id))
