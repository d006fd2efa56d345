"""How long a step will take: what warm-up measured of its program, linear in its work, times a running error ratio. Pure."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from engine.scheduling.plan import Bucket, StepPlan

WINDOW_STEPS = 256
"""The error ratio forgets older steps."""
FIRST_STEPS = 16
"""Until so many were seen the measurement stands uncorrected."""
ERROR_SHARE = 0.99
CORRECTION_BOUNDS = (0.5, 2.0)
"""A machine that stalls for other reasons than our work may not talk the scheduler into ever smaller steps."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step holds beside its bucket."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """Sum over chunks of tokens x context: attention's products."""
    decode_rows: int = 0
    decode_context: int = 0
    """KV tokens that decode rows read."""

    def with_chunk(self, tokens: int, start: int) -> Self:
        """A chunk of so many tokens behind `start` others."""
        pairs = tokens * start + tokens * tokens // 2
        return type(self)(self.prefill_tokens + tokens, self.prefill_pairs + pairs, self.decode_rows, self.decode_context)

    def with_decode(self, context: int) -> Self:
        """A decode row that reads `context` KV tokens."""
        return type(self)(self.prefill_tokens, self.prefill_pairs, self.decode_rows + 1, self.decode_context + context)


NO_WORK = Work()


def work_of(plan: StepPlan) -> Work:
    """A plan's work."""
    prefill_pairs = sum(len(chunk.tokens) * chunk.start + len(chunk.tokens) ** 2 // 2 for chunk in plan.prefills)
    decode_context = sum(row.position + 1 for row in plan.decodes)
    return Work(sum(len(chunk.tokens) for chunk in plan.prefills), prefill_pairs, len(plan.decodes), decode_context)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds: of each program without work, and what a unit of work adds."""

    base_s: Mapping[Bucket, float]
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    decode_row_s: float = 0.0
    decode_context_s: float = 0.0

    def seconds(self, bucket: Bucket, work: Work) -> float:
        """A step in this bucket."""
        return (
            self.base_s[bucket]
            + work.prefill_tokens * self.prefill_token_s
            + work.prefill_pairs * self.prefill_pair_s
            + work.decode_rows * self.decode_row_s
            + work.decode_context * self.decode_context_s
        )


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured step."""

    bucket: Bucket
    work: Work
    seconds: float


def fit_step_times(empty: Mapping[Bucket, float], decodes: tuple[Probe, ...], prefills: tuple[Probe, ...]) -> StepTimes:
    """Times from one empty step a program, and two full steps of a decode and of a prefill program: short and long context.

    A program is never taken as slower than one that holds more: another process may have run during its one measurement.
    """
    base = {bucket: min(seconds for other, seconds in empty.items() if _holds(other, bucket)) for bucket in empty}
    row_s, context_s = _slopes(base, [(p, p.work.decode_rows, p.work.decode_context) for p in decodes])
    token_s, pair_s = _slopes(base, [(p, p.work.prefill_tokens, p.work.prefill_pairs) for p in prefills])
    return StepTimes(base, token_s, pair_s, row_s, context_s)


def _holds(other: Bucket, bucket: Bucket) -> bool:
    return other.decode_rows >= bucket.decode_rows and other.prefill_tokens >= bucket.prefill_tokens


def _slopes(base: Mapping[Bucket, float], probes: Iterable[tuple[Probe, int, int]]) -> tuple[float, float]:
    """Seconds an item and a unit of reading, from a probe that reads little and one that reads much; never negative."""
    found = sorted(probes, key=lambda entry: entry[2])
    if len(found) < 2:
        return 0.0, 0.0
    (little, items, few), (much, _, many) = found[0], found[-1]
    read_s = max(0.0, (much.seconds - little.seconds) / max(1, many - few))
    return max(0.0, (little.seconds - base[little.bucket] - few * read_s) / max(1, items)), read_s


@dataclass(slots=True)
class StepModel:
    """Predicts, and learns how wrong it was. The clock is the caller's."""

    times: StepTimes
    _recent: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def predict_s(self, bucket: Bucket, work: Work) -> float:
        """What 99 of 100 such steps stay below."""
        return self.times.seconds(bucket, work) * self.correction

    @property
    def correction(self) -> float:
        """The error ratio within its bounds."""
        lowest, highest = CORRECTION_BOUNDS
        return min(highest, max(lowest, self.error_ratio))

    @property
    def error_ratio(self) -> float:
        """P99 over recent steps of measured over uncorrected prediction; 1 until there are enough."""
        if len(self._sorted) < FIRST_STEPS:
            return 1.0
        return self._sorted[math.ceil(ERROR_SHARE * len(self._sorted)) - 1]

    def observe(self, bucket: Bucket, work: Work, seconds: float) -> None:
        """A step took so long."""
        if seconds <= 0:
            return
        ratio = seconds / max(1e-9, self.times.seconds(bucket, work))
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        if len(self._recent) > WINDOW_STEPS:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
