"""How long a step will take: what warm-up measured of its program, linear in its work, times what that program has been found to take
on average, plus what steps are late by. Pure.

What makes a step late (another process, a cold cache, the host's own work) takes about as long whatever the step, so it is added: as a
ratio that small steps taught, it made large ones seem twice as long, and chunks were cut small.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

import msgspec

from engine.scheduling.plan import Bucket, StepPlan

WINDOW_STEPS = 256
"""The error ratio forgets older steps."""
FIRST_STEPS = 16
"""Until so many were seen the measurement stands uncorrected;"""
FIRST_ERROR_STEPS = 100
"""of fewer there is no 99th to be shown as the model's error."""
ERROR_SHARE = 0.99
LIKELY_SHARE = 0.9
PADDING_SHARE = 0.5
"""A program that saves less than so much of what half its rows cost elsewhere computes its padding."""
CORRECTION_BOUNDS = (0.5, 2.0)
"""A machine that stalls for other reasons than our work may not talk the scheduler into ever smaller steps."""
NEWEST_STEPS = 64
"""About two seconds of work."""
HABIT_RATE = 0.1
MAX_SURPRISE = 0.25
HABIT_DECAY = 0.998
"""A step; 350 steps halve it."""
HABIT_BOUNDS = (0.25, 2.0)


class Work(msgspec.Struct, frozen=True, gc=False):
    """What a step holds beside its bucket."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """Sum over chunks of tokens x context: attention's products."""
    decode_rows: int = 0
    decode_context: int = 0
    """KV tokens that decode rows read."""

    def with_chunk(self, tokens: int, start: int) -> "Work":
        """A chunk of so many tokens behind `start` others."""
        pairs = tokens * start + tokens * tokens // 2
        return Work(self.prefill_tokens + tokens, self.prefill_pairs + pairs, self.decode_rows, self.decode_context)

    def with_decode(self, context: int) -> "Work":
        """A decode row that reads `context` KV tokens."""
        return Work(self.prefill_tokens, self.prefill_pairs, self.decode_rows + 1, self.decode_context + context)


NO_WORK = Work()


def least_work(bucket: Bucket) -> Work:
    """A row of each kind."""
    return Work(prefill_tokens=min(1, bucket.prefill_tokens), decode_rows=min(1, bucket.decode_rows))


def work_of(plan: StepPlan) -> Work:
    """A plan's work."""
    work = Work(decode_rows=len(plan.decodes), decode_context=sum([row.position for row in plan.decodes]) + len(plan.decodes))
    for chunk in plan.prefills:
        work = work.with_chunk(len(chunk.tokens), chunk.start)
    return work


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds: of each program beside its work, and what a unit of work adds."""

    base_s: Mapping[Bucket, float]
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    decode_row_s: float = 0.0
    decode_context_s: float = 0.0
    swap_page_s: float = 0.0
    """A page to host memory and back; 0 where there is no swap space."""

    @property
    def floor_s(self) -> float:
        """The quickest step there is."""
        return min(self.seconds(bucket, least_work(bucket)) for bucket in self.base_s)

    def seconds(self, bucket: Bucket, work: Work) -> float:
        """A step in this bucket."""
        return (
            self.base_s[bucket]
            + work.prefill_tokens * self.prefill_token_s
            + work.prefill_pairs * self.prefill_pair_s
            + work.decode_rows * self.decode_row_s
            + work.decode_context * self.decode_context_s
        )

    def kept_share(self, bucket: Bucket, work: Work) -> float:
        """What part of a step its decodes would take without its prompts."""
        if not work.decode_rows:
            return 0.0
        decodes = Work(decode_rows=work.decode_rows, decode_context=work.decode_context)
        alone_s = min(self.seconds(other, decodes) for other in self.base_s if _holds(other, Bucket(work.decode_rows, 0)))
        return min(1.0, alone_s / self.seconds(bucket, work))


@dataclass(frozen=True, slots=True)
class Probe:
    """One measured step."""

    bucket: Bucket
    work: Work
    seconds: float


def fit_step_times(full: Sequence[Probe], halves: Sequence[Probe], deep: Sequence[Probe]) -> StepTimes:
    """Times from a full step of each program, and of one decode and one prefill program a half step and one with long context.

    A row costs what it adds from one program to the next (the median of all pairs: one of them may have been disturbed), or nothing where
    the half step shows that padding is computed. Weights are read for the first row as for all, so what a program takes beside its rows is
    found from its full step and not from an empty one. A program is never taken as slower than one that holds more: another process may
    have run during its one measurement.
    """
    context = StepTimes(
        dict.fromkeys((probe.bucket for probe in full), 0.0),
        prefill_pair_s=_context_s(full, deep, lambda work: work.prefill_pairs),
        decode_context_s=_context_s(full, deep, lambda work: work.decode_context),
    )
    plain, plain_halves = ([_without(context, probe) for probe in probes] for probes in (full, halves))
    slopes = replace(
        context,
        prefill_token_s=_unit_s([p for p in plain if not p.bucket.decode_rows], plain_halves, lambda work: work.prefill_tokens),
        decode_row_s=_unit_s([p for p in plain if not p.bucket.prefill_tokens], plain_halves, lambda work: work.decode_rows),
    )
    base: dict[Bucket, float] = {}
    for probe in full:
        seconds = min(other.seconds for other in full if _holds(other.bucket, probe.bucket))
        base[probe.bucket] = max(0.0, seconds - slopes.seconds(probe.bucket, probe.work))
    return replace(slopes, base_s=base)


type _Units = Callable[[Work], int]


def _without(context: StepTimes, probe: Probe) -> Probe:
    return replace(probe, seconds=probe.seconds - context.seconds(probe.bucket, probe.work))


def _unit_s(full: Sequence[Probe], halves: Sequence[Probe], units: _Units) -> float:
    """Seconds a row, of full steps of programs and the half one of one of them."""
    within = _slopes(((half, whole) for half in halves for whole in full if half.bucket == whole.bucket), units)
    if not within:
        return 0.0
    between = _slopes(combinations(sorted(full, key=lambda probe: units(probe.work)), 2), units)
    between_s = median(between or within)
    return between_s if within[0] > PADDING_SHARE * between_s else 0.0


def _context_s(full: Sequence[Probe], deep: Sequence[Probe], units: _Units) -> float:
    """Seconds a unit that only context makes more."""
    return max(_slopes(((whole, far) for far in deep for whole in full if whole.bucket == far.bucket), units), default=0.0)


def _slopes(pairs: Iterable[tuple[Probe, Probe]], units: _Units) -> list[float]:
    """Seconds a unit, of pairs of which the second has more (limits may have cut both alike); never negative."""
    grown = [(few, many, units(many.work) - units(few.work)) for few, many in pairs]
    return [max(0.0, (many.seconds - few.seconds) / more) for few, many, more in grown if more > 0]


def _holds(other: Bucket, bucket: Bucket) -> bool:
    return other.decode_rows >= bucket.decode_rows and other.prefill_tokens >= bucket.prefill_tokens


@dataclass(slots=True)
class _Habit:
    """How much longer a program takes than warm-up found, on average."""

    ratio: float
    step: int
    """When it was last seen."""

    def at(self, step: int) -> float:
        """Believed less and less while it is not seen: a program that was slow once gets its next chance."""
        return 1.0 + (self.ratio - 1.0) * HABIT_DECAY ** (step - self.step)


@dataclass(slots=True)
class _Window:
    """What the newest steps were late by, in the order they came and by size."""

    size: int
    newest: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def note(self, delay_s: float) -> None:
        self.newest.append(delay_s)
        insort(self.ordered, delay_s)
        if len(self.newest) > self.size:
            del self.ordered[bisect_left(self.ordered, self.newest.popleft())]

    def quantile(self, share: float) -> float:
        return self.ordered[math.ceil(share * len(self.ordered)) - 1]


@dataclass(slots=True)
class StepModel:
    """Predicts, and learns how wrong it was. The clock is the caller's."""

    times: StepTimes
    delay_s: float = 0.0
    """P99 over recent steps of measured minus expected time, or the worst of the newest ones where that is less: once a burst of other
    processes is over, what it did to the steps is soon forgotten."""
    likely_delay_s: float = 0.0
    """P90 over the newest steps, likewise."""
    _habits: dict[Bucket, _Habit] = field(default_factory=dict)
    _num_steps: int = 0
    _recent: _Window = field(default_factory=lambda: _Window(WINDOW_STEPS))
    _newest: _Window = field(default_factory=lambda: _Window(NEWEST_STEPS))
    _expected: deque[float] = field(default_factory=deque)
    """Seconds of the recent ones,"""
    _expected_s: float = 0.0
    """and their sum."""

    def expect_s(self, bucket: Bucket, work: Work) -> float:
        """What such steps take on average."""
        habit = self._habits.get(bucket)
        return self.times.seconds(bucket, work) * (1.0 if habit is None else habit.at(self._num_steps))

    def predict_s(self, bucket: Bucket, work: Work) -> float:
        """What 99 of 100 such steps stay below."""
        return self.surely_s(self.expect_s(bucket, work))

    def likely_s(self, bucket: Bucket, work: Work) -> float:
        """What 9 of 10 such steps stay below."""
        return self.bounds_s(bucket, work)[1]

    def surely_s(self, expected_s: float) -> float:
        """What 99 of 100 steps stay below that are expected to take so long."""
        lowest, highest = CORRECTION_BOUNDS
        return min(highest * expected_s, max(lowest * expected_s, expected_s + self.delay_s))

    def bounds_s(self, bucket: Bucket, work: Work) -> tuple[float, float]:
        """What 99 of 100 such steps stay below, and what 9 of 10 do."""
        expected_s = self.expect_s(bucket, work)
        return self.surely_s(expected_s), expected_s + self.likely_delay_s

    @property
    def error_ratio(self) -> float:
        """Measured over expected time of a step of mean length that is as late as 99 of 100 are at most; 1 until there are enough."""
        if len(self._expected) < FIRST_ERROR_STEPS:
            return 1.0
        return 1.0 + self._recent.quantile(ERROR_SHARE) * len(self._expected) / self._expected_s

    def observe(self, bucket: Bucket, work: Work, seconds: float) -> None:
        """A step took so long."""
        if seconds <= 0:
            return
        self._num_steps += 1
        habit = self._habits.get(bucket)
        before = 1.0 if habit is None else habit.at(self._num_steps)
        expected_s = max(1e-9, self.times.seconds(bucket, work) * before)
        self._habits[bucket] = _Habit(_moved(before, seconds / expected_s), self._num_steps)
        self._recent.note(seconds - expected_s)
        self._newest.note(seconds - expected_s)
        self._expected.append(expected_s)
        self._expected_s += expected_s
        if len(self._expected) > WINDOW_STEPS:
            self._expected_s -= self._expected.popleft()
        if len(self._expected) >= FIRST_STEPS:
            self.delay_s = min(self._recent.quantile(ERROR_SHARE), self._newest.ordered[-1])
            self.likely_delay_s = max(0.0, self._newest.quantile(LIKELY_SHARE))


def _moved(habit: float, ratio: float) -> float:
    """A moving average that one odd step moves little."""
    lowest, highest = HABIT_BOUNDS
    moved = habit * (1.0 + HABIT_RATE * (min(1.0 + MAX_SURPRISE, max(1.0 - MAX_SURPRISE, ratio)) - 1.0))
    return min(highest, max(lowest, moved))
