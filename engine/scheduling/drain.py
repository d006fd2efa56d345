"""How fast work that waits is taken: what admission predicts first tokens from. Measured while there is a queue; pure."""

import math
from dataclasses import dataclass

from engine.scheduling.buckets import Buckets
from engine.scheduling.step_model import NO_WORK, StepTimes
from engine.wire import Drain

MEMORY_S = 3.0
"""Of measured time: older steps are forgotten at this rate."""
PRIOR_S = 0.5
"""Of measured time that the model's word is worth."""
CONTEXT_TOKENS = 256
"""Cached tokens that a decode row of the capacity estimate reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a step left waiting when it was planned."""

    prompts: bool
    """Prompt tokens that no step held yet, and rows to compute them in."""
    rows: bool
    """Sequences for which there was no row."""


NOTHING_WAITS = Waiting(prompts=False, rows=False)


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
    """Two rates: prompt tokens a second, learned from steps that left prompts behind, whatever they lacked, and rows coming free a
    second, learned while rows or their pages were what was short. Where nothing waits, the first rate goes back to the model's."""

    def __init__(self, first_tokens_per_s: float) -> None:
        """`first_tokens_per_s`: by the step-time model, until something was measured; 0: unknown."""
        self._first_tokens_per_s = first_tokens_per_s
        self._tokens = _Rate(first_tokens_per_s * PRIOR_S, PRIOR_S)
        self._rows = _Rate()
        self._steps = _Rate()

    def note_step(self, seconds: float, prefill_tokens: int, ended_rows: int, waiting: Waiting) -> None:
        """A step took so long, host time included, and so many sequences ended with it."""
        if seconds <= 0:
            return
        self._steps.add(1, seconds)
        if waiting.rows:
            self._rows.add(ended_rows, seconds)
        if waiting.prompts:
            self._tokens.add(prefill_tokens, seconds)
        else:
            self.note_idle(seconds)

    def note_idle(self, seconds: float) -> None:
        """So long nothing waited."""
        if seconds > 0:
            self._tokens.add(self._first_tokens_per_s * seconds, seconds)

    def report(self, free_rows: int, reserved_rows: int) -> Drain:
        """The rates now; `reserved_rows` of the free ones are for tenants that hold few."""
        step_s = 1 / self._steps.per_s if self._steps.per_s else 0.0
        return Drain(self._tokens.per_s, self._rows.per_s, step_s, free_rows, reserved_rows)


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
