"""How long the next step may take, and what fits: decodes that must be in it, others that may wait, prefill tokens."""

from collections.abc import Collection, Iterable, Mapping

from engine.scheduling.buckets import round_to_block
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
LONGER_STEP_RATIO = 4 / 3
"""A step of the slower lanes may take so many step limits"""
LONGER_STEP_GAIN = 1.3
"""where it then does so many times the prompt tokens a second. Else a machine a little slower than the limit expects would lose two
fifths of its tokens to chunks of half the size."""


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
            if must or self._model.predict_s(self._limits.buckets.choose(longer.decode_rows, 0), longer) <= self._max_step_s:
                chosen[sequence.sequence_id] = None
                work = longer
        return [sequence for sequence in decodes if sequence.sequence_id in chosen]

    def _all_fit(self, decodes: list[Sequence], model: StepModel) -> bool:
        """However many of them are in the step, it is within the limit: all of their work is, in whichever program."""
        work, buckets = work_of_decodes(decodes), self._limits.buckets
        largest = buckets.choose(len(decodes), 0)
        return all(
            model.predict_s(Bucket(rows, 0), work) <= self._max_step_s for rows in buckets.decode_rows if rows <= largest.decode_rows
        )

    def token_limit_s(self, decodes: Iterable[Sequence], start_ns: int) -> float | None:
        """How long a step with these decodes may take by their tightest token deadline, before any of them is in it; None: no deadline."""
        if self._model is None:
            return None
        first_ns = min([due_ns(sequence, start_ns) for sequence in decodes if sequence.tpot_ns], default=None)
        return None if first_ns is None else (first_ns - start_ns) / 1e9

    def prefill_rows(
        self,
        token_limit_s: float | None,
        work: Work,
        context: int,
        *,
        wanted_tokens: int = 0,
        is_fast: bool = False,
        is_shared: bool = True,
    ) -> int | None:
        """The most prefill rows beside decodes that are this work and bound the step by `token_limit_s`, when the first chunk follows
        `context` tokens: whole query blocks, at least one. Or the `wanted_tokens` of the first prompt, where the rest of them would cost it
        a step more, and tokens that are due are likely in time (else they surely are). `is_fast`: of the fast lane. None: no bound.

        The step limit protects whoever comes next: where nobody else can (not `is_shared`), only token deadlines count.
        """
        if fixed_tokens := self._limits.fixed_chunk_tokens:
            compiled_tokens = self._limits.buckets.prefill_below(work.decode_rows, fixed_tokens)
            return compiled_tokens or fixed_tokens // QUERY_BLOCK_TOKENS * QUERY_BLOCK_TOKENS
        step_s = self._max_step_s * (FAST_STEP_RATIO if is_fast else 1) if is_shared else 0.0
        if self._model is None or (token_limit_s is None and not step_s):
            return None
        buckets, model = self._limits.buckets, self._model
        compiled = buckets.mixed_prefill_tokens if work.decode_rows else buckets.prefill_tokens
        wanted = min(round_to_block(wanted_tokens), compiled[-1])
        seconds = {size: self._seconds(model, size, work, context) for size in ((*compiled, wanted) if wanted else compiled)}
        progress_s = seconds[compiled[0]][1] * PROGRESS_RATIO

        def fits(surely_s: float, likely_s: float) -> bool:
            in_time = (token_limit_s is None or surely_s <= token_limit_s) and (not step_s or likely_s <= step_s)
            return in_time or likely_s <= progress_s

        best = max((size for size in seconds if fits(*seconds[size])), default=compiled[0])
        # A program that does not compute its padding may be filled in part. Not for the fast lane, whose limit is twice as long: steps
        # that always fill it would make the next short prompt wait longer, and a flood of them all others.
        above = 0 if is_fast else min([size for size in compiled if size > best], default=0)
        for size in range(best + QUERY_BLOCK_TOKENS, above, QUERY_BLOCK_TOKENS):
            seconds[size] = self._seconds(model, size, work, context)
            if not fits(*seconds[size]):
                break
            best = size
        if step_s and not is_fast:
            longer = [size for size in compiled if size > best and self._is_worth_longer(size, best, seconds, step_s, token_limit_s)]
            best = max(longer, default=best)
        if is_fast and wanted > best:
            in_two_steps_s = seconds[best][1] + seconds[compiled[0]][1]
            if seconds[wanted][1] <= (in_two_steps_s if token_limit_s is None else min(in_two_steps_s, token_limit_s)):
                return wanted  # the rest in a step of its own would take longer, for it and for everybody
        return best

    def _is_worth_longer(
        self, size: int, best: int, seconds: Mapping[int, tuple[float, float]], step_s: float, token_limit_s: float | None
    ) -> bool:
        """Whether a step beyond the limit, with a chunk of `size` and not of `best`, is short enough still and does much more."""
        surely_s, likely_s = seconds[size]
        in_time = (token_limit_s is None or surely_s <= token_limit_s) and likely_s <= step_s * LONGER_STEP_RATIO
        return in_time and size / likely_s >= LONGER_STEP_GAIN * best / seconds[best][1]

    @property
    def pays_padding(self) -> bool:
        """A program takes as long however few of its prefill rows are filled, as far as is known."""
        return self._model is None or not self._model.times.prefill_token_s

    def _seconds(self, model: StepModel, size: int, work: Work, context: int) -> tuple[float, float]:
        """With a chunk of so many tokens: what 99 of 100 such steps stay below, as a token that is due needs, and what 9 of 10 do, which
        is enough for whoever may come while it runs."""
        bucket: Bucket = self._limits.buckets.choose(work.decode_rows, size)
        longer = work.with_chunk(size, context)
        return model.bounds_s(bucket, longer)


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
    """When its next token is due, in a step that starts when the steps in flight are done: they may draw one, too."""
    return next_due_ns(sequence, start_ns if sequence.in_flight_samples else sequence.last_token_ns)


def next_due_ns(sequence: Sequence, last_token_ns: int) -> int:
    """When the token after the one of `last_token_ns` is due: one gap may be longer than the target, where the mean with it is not."""
    if not sequence.tpot_ns:
        return last_token_ns + PATIENT_GAP_NS
    tpot_ns = sequence.tpot_ns
    gaps = len(sequence.tokens) + sequence.in_flight_samples - sequence.prompt_tokens
    by_mean_ns, by_gap_ns = sequence.first_token_ns + gaps * tpot_ns, last_token_ns + tpot_ns
    # comparisons, because this is asked of every decode row of every step
    if by_mean_ns <= by_gap_ns:
        return by_gap_ns
    longest_ns = last_token_ns + round(tpot_ns * GAP_TARGETS)
    return by_mean_ns if by_mean_ns < longest_ns else longest_ns
