"""The scheduler under a virtual clock: steps take what a step-time model says, arrivals come when a trace says. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from engine.scheduling.plan import StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.scheduling.step_model import StepTimes, work_of
from engine.wire import SequenceEvent, StepRecord, Submit


@dataclass(slots=True)
class Served:
    """What one submitted sequence got, in virtual nanoseconds."""

    submit: Submit
    token_times_ns: list[int] = field(default_factory=list)
    ended_ns: int = 0

    @property
    def ttft_ns(self) -> int:
        """From its receipt."""
        return self.token_times_ns[0] - self.submit.received_ns

    @property
    def worst_gap_ns(self) -> int:
        """Longest time between two of its tokens; 0 with fewer."""
        return max((after - before for before, after in zip(self.token_times_ns, self.token_times_ns[1:], strict=False)), default=0)


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
        self, scheduler: Scheduler, runner: SimulatedRunner, times: StepTimes, watch: Callable[[SimulatedStep], None] = lambda _: None
    ) -> None:
        """`times` are the machine's true ones; the scheduler's model may hold others. `watch` sees each step after its commit."""
        self.scheduler = scheduler
        self.served: dict[int, Served] = {}
        self.now_ns = 0
        self._runner = runner
        self._times = times
        self._watch = watch
        self._arrivals: list[tuple[int, int, Submit]] = []

    def add(self, submits: Iterable[Submit]) -> None:
        """They arrive when they are received."""
        for submit in submits:
            heappush(self._arrivals, (submit.received_ns, submit.sequence_id, submit))

    def run(self, until_ns: int = 2**63) -> None:
        """Until nothing is left, or the clock passes `until_ns`."""
        while self.now_ns < until_ns:
            if self.scheduler.is_idle and self._arrivals:
                self.now_ns = max(self.now_ns, self._arrivals[0][0])
            while self._arrivals and self._arrivals[0][0] <= self.now_ns:
                submit = heappop(self._arrivals)[2]
                self.served[submit.sequence_id] = Served(submit)
                self.scheduler.submit(submit)
            plan = self.scheduler.plan(self.now_ns)
            self._take(self.scheduler.take_events())
            if plan is None and self.scheduler.is_idle and self._arrivals:
                continue  # whoever was left waited too long
            if plan is None:
                assert self.scheduler.is_idle, "nothing is in flight, work is left, and nothing is planned"
                return
            self._step(plan)

    def _step(self, plan: StepPlan) -> None:
        began_ns = self.now_ns
        result = self._runner.collect(self._runner.dispatch(plan))
        self.now_ns += max(1, round(self._times.seconds(plan.bucket, work_of(plan)) * 1e9))
        self._take(self.scheduler.commit(plan, result, self.now_ns))
        record = self.scheduler.record(plan, planned_ns=began_ns, dispatched_ns=began_ns, done_ns=self.now_ns, committed_ns=self.now_ns)
        self._watch(SimulatedStep(plan, began_ns, self.now_ns, record))

    def _take(self, events: Iterable[SequenceEvent]) -> None:
        for event in events:
            served = self.served[event.sequence_id]
            served.token_times_ns.extend(self.now_ns for _ in event.token_ids)
            if event.finish is not None:
                served.ended_ns = self.now_ns
