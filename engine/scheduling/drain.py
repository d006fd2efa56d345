"""How fast work that waits is taken: what admission predicts first tokens from. Measured while there is a queue; pure."""

import math
from dataclasses import dataclass

from engine.scheduling.buckets import Buckets
from engine.scheduling.step_model import NO_WORK, StepTimes
from engine.wire import Drain

MEMORY_S = 3.0
"""Of measured time: older steps are forgotten at this rate."""
RECENT_WEIGHT = 0.05
"""Of the newest ended row in the mean time that one is taken."""
PRIOR_S = 0.5
"""Of measured time that the model's word is worth."""
CONTEXT_TOKENS = 256
"""Cached tokens that a decode row of the capacity estimate reads."""


@dataclass(slots=True)
class _Rate:
    """Units a second over recent time; older time counts less and less."""

    units: float = 0.0
    seconds: float = 0.0

    def add(self, units: float, seconds: float) -> None:
        kept = math.exp(-seconds / MEMORY_S)
        self.units = self.units * kept + units
        self.seconds = self.seconds * kept + seconds

    @property
    def per_s(self) -> float:
        return self.units / self.seconds if self.seconds else 0.0


class DrainMeter:
    """Two rates. Prompt tokens a second, learned from steps that left prompts behind for another reason than that all rows were taken;
    where no prompts could have been computed, it goes back to the model's. And rows coming free a second, by Little's law from those
    that are taken and how long one is: rows that began together end together, so that counting ends would tell many or none."""

    def __init__(self, first_tokens_per_s: float) -> None:
        """`first_tokens_per_s`: by the step-time model, until something was measured; 0: unknown."""
        self._first_tokens_per_s = first_tokens_per_s
        self._tokens = _Rate(first_tokens_per_s * PRIOR_S, PRIOR_S)
        self._row_s = 0.0
        self._steps = _Rate()

    def note_step(self, seconds: float, prefill_tokens: int, *, left_prompts: bool) -> None:
        """A step took so long, host time included."""
        if seconds <= 0:
            return
        self._steps.add(1, seconds)
        if left_prompts:
            self._tokens.add(prefill_tokens, seconds)
        else:
            self.note_idle(seconds)

    def note_row(self, seconds: float) -> None:
        """A sequence ended that had its row so long."""
        self._row_s += (seconds - self._row_s) * (RECENT_WEIGHT if self._row_s else 1.0)

    def note_idle(self, seconds: float) -> None:
        """So long nothing waited."""
        if seconds > 0:
            self._tokens.add(self._first_tokens_per_s * seconds, seconds)

    def report(self, taken_rows: int, free_rows: int, reserved_rows: int) -> Drain:
        """The rates now; `reserved_rows` of the free ones are for tenants that hold few."""
        step_s = 1 / self._steps.per_s if self._steps.per_s else 0.0
        rows_per_s = taken_rows / self._row_s if self._row_s else 0.0
        return Drain(self._tokens.per_s, rows_per_s, step_s, free_rows, reserved_rows)


def prefill_tokens_per_s(buckets: Buckets, times: StepTimes, max_step_s: float) -> float:
    """Prompt tokens a second of the step that does most of them within the step limit (0: no limit), with no decode beside."""
    seconds = {size: times.seconds(buckets.choose(0, size), NO_WORK.with_chunk(size, 0)) for size in buckets.prefill_tokens}
    fitting = [size for size in buckets.prefill_tokens if not max_step_s or seconds[size] <= max_step_s] or [buckets.prefill_tokens[0]]
    return max(size / seconds[size] for size in fitting)


def capacity_tpm(buckets: Buckets, times: StepTimes, max_step_s: float) -> int:
    """Tokens a minute, prompt and output together, of the fastest kind of step within the step limit: an upper bound, since long
    contexts and many outputs are slower."""
    rates = [prefill_tokens_per_s(buckets, times, max_step_s)]
    for rows in buckets.mixed_decode_rows:
        for size in buckets.mixed_prefill_tokens:
            work = NO_WORK.with_chunk(size, 0)
            for _ in range(rows):
                work = work.with_decode(CONTEXT_TOKENS)
            seconds = times.seconds(buckets.choose(rows, size), work)
            if not max_step_s or seconds <= max_step_s:
                rates.append((rows + size) / seconds)
    return round(60 * max(rates))
