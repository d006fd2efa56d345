"""How long the next step may take, and what fits: decodes that must be in it, others that may wait, prefill tokens."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.scheduling.buckets import Buckets, round_to_block
from engine.scheduling.limits import Limits
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Bucket
from engine.scheduling.request import Sequence
from engine.scheduling.step_model import NO_WORK, StepModel, StepTimes, Work

GAP_TARGETS = 1.5
"""One gap between two tokens of a stream may be so many TPOT targets."""
PATIENT_GAP_NS = 1_000_000_000
"""Of a decode without a TPOT target."""
FAST_STEP_RATIO = 2
"""A prompt of the fast lane may make its step so many step limits long, where no token is due: in small chunks its own first token
would come later, and nobody else's sooner."""
PROGRESS_RATIO = 1.25
"""Where nothing fits, a prefill takes the largest program that costs at most so much more than the smallest."""
EFFICIENT_SHARE = 0.85
"""A step that does less than so much of what the largest program does a second may be longer than its limit, as far as it has to for that.
Else a machine slower than the limit expects would spend most of its time on what every step costs however small:"""
LONGER_STEP_RATIO = 2.5
"""up to so many step limits in the fast lane, and in the slower ones where it can be cut short for whoever comes,"""
NEWCOMER_SHARE = 0.9
"""and else up to so much of what the newcomer's own step takes: it waits no longer than its own prompt."""
NEWCOMER_TOKENS = 64
"""A short prompt."""


@dataclass(frozen=True, slots=True)
class TokenLimit:
    """How long a step may take by the tightest token deadlines of its decodes."""

    mean_s: float
    """For their mean time a token, as far as one gap may be longer: a step that is late once in ten times is made up for."""
    gap_s: float
    """For each single gap: that is not."""


class StepBudget:
    """Pure: times come in as arguments. Without a model everything fits."""

    def __init__(self, limits: Limits, model: StepModel | None) -> None:
        self._limits = limits
        self._model = model
        self._max_step_s = limits.max_step_ms / 1e3 if model is not None else 0.0

    def choose_decodes(
        self, decodes: list[Sequence], start_ns: int, *, is_urgent: bool, outside_contract: Collection[str] = ()
    ) -> list[Sequence]:
        """Those of `decodes` that are in the step that starts at `start_ns`, in their order.

        While fast work runs or waits (`is_urgent`), a decode of another lane, or of a tenant outside its contract, stays out of a step
        that it would make too long, unless its next token is due before the step after.
        """

        def is_patient(sequence: Sequence) -> bool:
            return sequence.submit.lane != "fast" or sequence.submit.tenant_id in outside_contract

        if self._model is None or not self._max_step_s or not is_urgent or not any(map(is_patient, decodes)):
            return decodes
        if self._all_fit(decodes, self._model):
            return decodes
        horizon_ns = start_ns + round(2e9 * self._max_step_s)
        chosen: dict[int, None] = {}
        work = NO_WORK
        for next_ns, _, sequence in sorted((due_ns(sequence, start_ns), index, sequence) for index, sequence in enumerate(decodes)):
            longer = work.with_decode(sequence.planned_tokens + 1)
            must = not is_patient(sequence) or next_ns <= horizon_ns
            if must or self._model.likely_s(self._limits.buckets.choose(longer.decode_rows, 0), longer) <= self._max_step_s:
                chosen[sequence.sequence_id] = None
                work = longer
        return [sequence for sequence in decodes if sequence.sequence_id in chosen]

    def _all_fit(self, decodes: list[Sequence], model: StepModel) -> bool:
        """However many of them are in the step, it is within the limit: all of their work is, in whichever program."""
        work, buckets = work_of_decodes(decodes), self._limits.buckets
        largest = buckets.choose(len(decodes), 0)
        return all(model.likely_s(Bucket(rows, 0), work) <= self._max_step_s for rows in buckets.decode_rows if rows <= largest.decode_rows)

    def token_limit(self, decodes: Iterable[Sequence], start_ns: int) -> TokenLimit | None:
        """Of a step with these decodes, before any of them is in it; None: no deadline."""
        timed = [sequence for sequence in decodes if sequence.tpot_ns]
        if self._model is None or not timed:
            return None
        due, latest = (min([when_ns(sequence, start_ns) for sequence in timed]) for when_ns in (due_ns, latest_ns))
        return TokenLimit((due - start_ns) / 1e9, (latest - start_ns) / 1e9)

    def prompt_token_s(self, work: Work) -> float:
        """Likely time of a prompt's token in steps with decodes that are this work; 0: unknown."""
        if self._model is None:
            return 0.0
        buckets = self._limits.buckets
        tokens = min(NEWCOMER_TOKENS, buckets.prefill_capacity(work.decode_rows))
        return self._model.likely_s(buckets.choose(work.decode_rows, tokens), work.with_chunk(tokens, 0)) / tokens

    def prefill_rows(
        self,
        token_limit: TokenLimit | None,
        work: Work,
        context: int,
        *,
        wanted_tokens: int = 0,
        is_fast: bool = False,
        is_shared: bool = True,
        has_fast: bool = False,
    ) -> int | None:
        """The most prefill rows beside decodes that are this work and bound the step by `token_limit`, when the first chunk follows
        `context` tokens: whole query blocks, at least one. Or the `wanted_tokens` of the first prompt, where the rest of them would cost it
        a step more, and tokens that are due are likely in time. `is_fast`: of the fast lane. None: no bound.

        The step limit protects whoever comes next: where nobody else can (not `is_shared`), only token deadlines count. `has_fast`: a
        prompt of the fast lane is in the step, too, so that it is not cut short for anybody.
        """
        if fixed_tokens := self._limits.fixed_chunk_tokens:
            compiled_tokens = self._limits.buckets.prefill_below(work.decode_rows, fixed_tokens)
            return compiled_tokens or fixed_tokens // QUERY_BLOCK_TOKENS * QUERY_BLOCK_TOKENS
        step_s = self._max_step_s * (FAST_STEP_RATIO if is_fast else 1) if is_shared and self._max_step_s else math.inf
        if self._model is None or (token_limit is None and math.isinf(step_s)):
            return None
        buckets = self._limits.buckets
        compiled = buckets.mixed_prefill_tokens if work.decode_rows else buckets.prefill_tokens
        chunks = _Chunks(buckets, self._model, work, context, token_limit)
        if not is_fast:
            worth_s = step_s if has_fast else self._longest_s(step_s)
            return self._filled(chunks, chunks.largest_within(step_s, compiled), compiled, step_s, worth_s)
        wanted = min(round_to_block(wanted_tokens), compiled[-1])
        best = chunks.largest_within(step_s, (*compiled, wanted) if wanted else compiled)
        # Only as far as it pays: steps that a flood of short prompts fills to the brim would make the next one of others wait longer.
        best = self._filled(chunks, best, compiled, 0.0, worth_s=step_s * LONGER_STEP_RATIO / FAST_STEP_RATIO)
        if wanted > best:
            in_two_steps_s = chunks.likely_s(best) + chunks.likely_s(compiled[0])
            if chunks.likely_s(wanted) <= (in_two_steps_s if token_limit is None else min(in_two_steps_s, token_limit.mean_s)):
                return wanted  # the rest in a step of its own would take longer, for it and for everybody
        return best

    def _filled(self, chunks: "_Chunks", best: int, compiled: tuple[int, ...], step_s: float, worth_s: float) -> int:
        """The chunk of `best` made longer block by block, where a program that does not compute its padding may be filled in part: in steps
        of at most `step_s`, or of `worth_s` until the step is worth its fixed costs."""
        blocks = range(best + QUERY_BLOCK_TOKENS, compiled[-1] + 1, QUERY_BLOCK_TOKENS)
        enough = EFFICIENT_SHARE * chunks.tokens_per_s(compiled[-1])
        for size in [size for size in compiled if size > best] if self.pays_padding else blocks:
            is_worth_it = chunks.tokens_per_s(best) < enough and chunks.tokens_per_s(size) > chunks.tokens_per_s(best)
            if not (chunks.fits(size, step_s) or (is_worth_it and chunks.fits(size, worth_s))):
                break
            best = size
        return best

    def _longest_s(self, step_s: float) -> float:
        """Of a step of the slower lanes."""
        longest_s = step_s * LONGER_STEP_RATIO
        if self._limits.enable_step_interrupts:
            return longest_s
        return max(step_s, min(longest_s, NEWCOMER_SHARE * NEWCOMER_TOKENS * self.prompt_token_s(NO_WORK)))

    @property
    def pays_padding(self) -> bool:
        """A program takes as long however few of its prefill rows are filled, as far as is known."""
        return self._model is None or not self._model.times.prefill_token_s


class _Chunks:
    """A step with a chunk of each size: how long it takes, asked once, and whether that is short enough."""

    def __init__(self, buckets: Buckets, model: StepModel, work: Work, context: int, token_limit: TokenLimit | None) -> None:
        self._buckets = buckets
        self._model = model
        self._work = work
        self._context = context
        self._token_limit = token_limit
        self._bounds_s: dict[int, tuple[float, float]] = {}

    def likely_s(self, size: int) -> float:
        """What 9 of 10 such steps stay below: enough for whoever may come while it runs."""
        return self._bounds(size)[1]

    def tokens_per_s(self, size: int) -> float:
        """Decodes count like the tokens of the chunk."""
        return (size + self._work.decode_rows) / self._bounds(size)[1]

    def fits(self, size: int, step_s: float) -> bool:
        """No gap between tokens is surely too long, their mean likely is not, and the step is likely within its limit."""
        surely_s, likely_s = self._bounds(size)
        limit = self._token_limit
        return (limit is None or (surely_s <= limit.gap_s and likely_s <= limit.mean_s)) and likely_s <= step_s

    def largest_within(self, step_s: float, sizes: Iterable[int]) -> int:
        """Where nothing fits, the largest that costs little more than the smallest."""
        smallest, *others = sorted(sizes)
        progress_s = self.likely_s(smallest) * PROGRESS_RATIO
        return max((size for size in others if self.fits(size, step_s) or self.likely_s(size) <= progress_s), default=smallest)

    def _bounds(self, size: int) -> tuple[float, float]:
        found = self._bounds_s.get(size)
        if found is None:
            bucket = self._buckets.choose(self._work.decode_rows, size)
            found = self._bounds_s[size] = self._model.bounds_s(bucket, self._work.with_chunk(size, self._context))
        return found


def work_of_decodes(decodes: Collection[Sequence]) -> Work:
    """The next token of each."""
    return Work(decode_rows=len(decodes), decode_context=sum([sequence.planned_tokens for sequence in decodes]) + len(decodes))


def suggest_fast_prompt_tokens(times: StepTimes, limits: Limits) -> int:
    """The longest prompt that is prefilled in no more time than its first token waits otherwise: for a step that runs already, and for
    what any step takes. Longer ones are dominated by their own length, and would hold up the short ones."""
    wait_s = limits.max_step_ms / 1e3 + times.floor_s
    suggested = 0
    for tokens in limits.buckets.prefill_tokens:
        if times.seconds(Bucket(0, tokens), NO_WORK.with_chunk(tokens, 0)) > wait_s + times.floor_s:
            break
        suggested = tokens
    return suggested


def due_ns(sequence: Sequence, start_ns: int) -> int:
    """When its next token is due, in a step that starts when the steps in flight are done (they may draw one, too): one gap may be longer
    than the target, where the mean with it is not."""
    last_ns, tpot_ns = _last_token_ns(sequence, start_ns), sequence.tpot_ns
    if not tpot_ns:
        return last_ns + PATIENT_GAP_NS
    gaps = len(sequence.tokens) + sequence.in_flight_samples - sequence.prompt_tokens
    by_mean_ns, by_gap_ns = sequence.first_token_ns + gaps * tpot_ns, last_ns + tpot_ns
    # comparisons, because this is asked of every decode row of every step
    if by_mean_ns <= by_gap_ns:
        return by_gap_ns
    longest_ns = latest_ns(sequence, start_ns)
    return by_mean_ns if by_mean_ns < longest_ns else longest_ns


def latest_ns(sequence: Sequence, start_ns: int) -> int:
    """When the next token of one with a target must have come, whatever its mean."""
    return _last_token_ns(sequence, start_ns) + round(sequence.tpot_ns * GAP_TARGETS)


def _last_token_ns(sequence: Sequence, start_ns: int) -> int:
    return start_ns if sequence.in_flight_samples else sequence.last_token_ns
