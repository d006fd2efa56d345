"""How long steps take: foretold when they are planned, learned when they are done; and what follows for the step after."""

from collections import deque

from msgspec.structs import replace

from engine.scheduling.draft import PlannedStep
from engine.scheduling.drain import DrainMeter, prefill_tokens_per_s
from engine.scheduling.limits import Limits
from engine.scheduling.plan import StepPlan
from engine.scheduling.step_model import StepModel

HEAD_START_S = 0.004
"""Planning, dispatching, and what the clock of the step before is off by, so that the device does not wait."""


class Pace:
    """Holds the steps in flight, oldest first. Without a model nothing is foretold, and nothing waits."""

    def __init__(self, limits: Limits, model: StepModel | None) -> None:
        self._max_step_s = limits.max_step_ms / 1e3
        self._model = model
        self.in_flight: deque[PlannedStep] = deque()
        self.last_done_ns = 0
        self._last_step_left_work = False
        self.drain = DrainMeter(prefill_tokens_per_s(limits.buckets, model.times, self._max_step_s) if model is not None else 0.0)

    @property
    def error_ratio(self) -> float:
        """The model's; 1 without one."""
        return self._model.error_ratio if self._model is not None else 1.0

    def foretold(self, step: PlannedStep, *, left_prompts: bool) -> PlannedStep:
        """The step with its times; whether prompts stay behind it is passed through."""
        if self._model is None:
            return replace(step, left_prompts=left_prompts)
        expected_s, moves_s = self._model.expect_s(step.plan.bucket, step.work), self._moves_s(step.plan)
        predicted_s = self._model.surely_s(expected_s) + moves_s
        return replace(step, left_prompts=left_prompts, predicted_s=predicted_s, expected_s=expected_s + moves_s)

    def running(self, dispatched_ns: int) -> tuple[PlannedStep, int] | None:
        """The one step in flight and when it began; None where there is none, or another one behind it."""
        return (self.in_flight[0], self._began_ns(dispatched_ns)) if len(self.in_flight) == 1 else None

    def ahead_s(self, now_ns: int, dispatched_ns: int | None) -> float:
        """How long the steps in flight will take from now on, at most. The oldest was dispatched at `dispatched_ns`."""
        gone_s = 0.0 if dispatched_ns is None else (now_ns - self._began_ns(dispatched_ns)) / 1e9
        return max(0.0, sum(step.predicted_s for step in self.in_flight) - gone_s)

    def ahead_from_ns(self, dispatched_ns: int) -> int:
        """From when on a step may be planned behind the one dispatched at `dispatched_ns`, where others may come: at once behind a
        short one, and behind a long one shortly before it is expected to end. Their first tokens would have to wait for both."""
        began_ns = self._began_ns(dispatched_ns)
        if self._model is None or not self._max_step_s or not self.in_flight:
            return began_ns
        running = self.in_flight[-1]
        if running.predicted_s <= self._max_step_s / 2:
            return began_ns
        return began_ns + round(max(0.0, running.expected_s - HEAD_START_S) * 1e9)

    def learn(self, step: PlannedStep, *, dispatched_ns: int, done_ns: int) -> None:
        """The step was collected. One that was cut short says nothing of times."""
        self._note_drain(step, dispatched_ns, done_ns)
        began_ns, self.last_done_ns = self._began_ns(dispatched_ns), done_ns
        if self._model is not None and step.interrupted_by is None:
            self._model.observe(step.plan.bucket, step.work, (done_ns - began_ns) / 1e9 - self._moves_s(step.plan))

    def _note_drain(self, step: PlannedStep, dispatched_ns: int, done_ns: int) -> None:
        """From the end of the step before where work was waiting then; the host's time belongs to it."""
        began_ns = self.last_done_ns if self._last_step_left_work else self._began_ns(dispatched_ns)
        self.drain.note_idle((began_ns - self.last_done_ns) / 1e9 if self.last_done_ns else 0.0)
        prefill_tokens = step.work.prefill_tokens if step.interrupted_by is None else 0
        self.drain.note_step((done_ns - began_ns) / 1e9, prefill_tokens, left_prompts=step.left_prompts)
        self._last_step_left_work = step.left_prompts

    def _began_ns(self, dispatched_ns: int) -> int:
        """The device takes one step after another."""
        return max(dispatched_ns, self.last_done_ns)

    def _moves_s(self, plan: StepPlan) -> float:
        """What swapping adds to a step."""
        swapped = len(plan.moves.swapped_out) + len(plan.moves.swapped_in)
        return swapped * self._model.times.swap_page_s / 2 if self._model is not None else 0.0
