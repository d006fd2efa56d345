"""The engine's main loop: take messages, plan, dispatch, collect, commit, report. One thread, one step after another.

With overlap, step N+1 is planned and dispatched while step N runs on the device: at once, or where step N is long and others
may come shortly before its end (`Scheduler.ahead_from_ns`). Without it, each step is finished before the next is planned. Both
give the same text; tests compare them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import InvalidSequence
from engine.garbage import Sweeper
from engine.link import Link
from engine.scheduling.plan import Runner, StepPlan, Ticket
from engine.scheduling.scheduler import Scheduler
from engine.wire import (
    HEARTBEAT_S,
    Abort,
    CommonPrefixes,
    FinishReason,
    Heartbeat,
    Load,
    Pause,
    Resume,
    SequenceEvent,
    SetPolicies,
    Shutdown,
    StepDone,
    Submit,
    ToEngine,
)

POLL_S = 0.001
POLL_SHARE = 0.25
"""A step that nobody is planned behind yet is asked whether it is done whenever so much of the time has gone by that is left until there
will be: on a CPU each question takes a core from its products. At most every `POLL_S`."""

type Clock = Callable[[], int]
"""Monotonic nanoseconds."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A dispatched step."""

    plan: StepPlan
    ticket: Ticket
    planned_ns: int
    dispatched_ns: int


class EngineLoop:
    """Drives one scheduler and one runner from one link until the control plane says stop or goes away."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, link: Link, clock: Clock, *, overlap: bool, compiles_after_ready: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._link = link
        self._clock = clock
        self._overlap = overlap
        self._compiles_after_ready = compiles_after_ready
        self._sweeper = Sweeper()

    def run(self, early: Sequence[ToEngine] = ()) -> None:
        """Serve until `Shutdown`. `early` arrived before there was a loop, and counts first.

        Raises:
            EngineGone: the control plane closed the connection.
        """
        running: InFlight | None = None
        if not self._take(list(early)):
            return
        timeout_s = 0.0 if self._scheduler.has_work else HEARTBEAT_S
        while True:
            messages = self._link.receive(timeout_s)
            timeout_s = 0.0
            if not self._take(messages):
                return
            if running is not None and (early_s := self._too_early_s(running)) > 0:  # what comes meanwhile has a say in the next step
                newcomer_id = self._scheduler.newcomer_to_interrupt_for(self._clock(), running_dispatched_ns=running.dispatched_ns)
                is_cut = newcomer_id is not None and self._runner.interrupt(running.ticket)
                if is_cut or self._runner.is_done(running.ticket):
                    self._link.send(self._finish_step(running, newcomer_id))
                    running = None
                else:
                    timeout_s = min(early_s, max(POLL_S, POLL_SHARE * early_s))
                continue
            started = self._start_step(running)
            if self._overlap:
                started, running = running, started
            if started is not None:
                self._link.send(self._finish_step(started))
            elif running is None:
                timeout_s = HEARTBEAT_S
                self._rest()

    def run_alone(self, submit: Submit) -> list[SequenceEvent]:
        """Run one sequence to its end before anybody is served: the canary, a common prefix. Its events, in order."""
        self._scheduler.submit(submit)
        events: list[SequenceEvent] = []
        while self._scheduler.has_work:
            started = self._start_step()
            assert started is not None, "a sequence that is alone always has a next step"
            events += self._finish_step(started).events
        return events

    def _take(self, messages: list[ToEngine]) -> bool:
        """Act on messages; False when the control plane asked for the end."""
        refused: list[SequenceEvent] = []
        for message in messages:
            match message:
                case Submit():
                    try:
                        self._scheduler.submit(message)
                    except InvalidSequence as error:
                        refused.append(SequenceEvent(message.sequence_id, finish=FinishReason.ERROR, message=str(error)))
                case Abort():
                    for sequence_id in message.sequence_ids:
                        self._scheduler.abort(sequence_id)
                case Pause():
                    for sequence_id in message.sequence_ids:
                        self._scheduler.pause(sequence_id)
                case Resume():
                    for sequence_id in message.sequence_ids:
                        self._scheduler.resume(sequence_id, self._clock())
                case Shutdown():
                    return False
                case SetPolicies():
                    self._scheduler.set_policies(message.policies)
                case CommonPrefixes():
                    pass  # only taken before ready
        events = (*refused, *self._scheduler.take_events())
        if events:
            self._link.send(StepDone(events, self._load()))
        return True

    def _too_early_s(self, running: InFlight) -> float:
        """How long nothing is planned behind a step yet."""
        return (self._scheduler.ahead_from_ns(running.dispatched_ns) - self._clock()) / 1e9

    def _start_step(self, running: InFlight | None = None) -> InFlight | None:
        planned_ns = self._clock()
        plan = self._scheduler.plan(planned_ns, running_dispatched_ns=running.dispatched_ns if running is not None else None)
        if plan is None:
            return None
        ticket = self._runner.dispatch(plan)
        return InFlight(plan, ticket, planned_ns, self._clock())

    def _finish_step(self, step: InFlight, newcomer_id: int | None = None) -> StepDone:
        """`newcomer_id`: for whom it is to be cut short, unless it was quicker."""
        result = self._runner.collect(step.ticket)
        done_ns = self._clock()
        events = self._scheduler.settle(step.plan, result, done_ns, dispatched_ns=step.dispatched_ns, newcomer_id=newcomer_id)
        record = self._scheduler.record(
            step.plan, planned_ns=step.planned_ns, dispatched_ns=step.dispatched_ns, done_ns=done_ns, committed_ns=self._clock()
        )
        self._sweeper.after_step()
        return StepDone(tuple(events), self._load(), record)

    def _rest(self) -> None:
        """Nothing runs, or only what is paused: prove that no page is lost, collect garbage, tell that we are alive."""
        self._scheduler.check_integrity()
        self._sweeper.at_rest()
        self._link.send(Heartbeat(self._load()))

    def _load(self) -> Load:
        return self._scheduler.load(self._clock(), compiles_after_ready=self._compiles_after_ready())
