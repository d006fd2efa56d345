"""A step while it is put together, and what is remembered of it until its results are there."""

from dataclasses import dataclass, field

import msgspec

from engine.scheduling.buckets import round_to_block
from engine.scheduling.budget import TokenLimit
from engine.scheduling.limits import Limits
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Admitted, DecodeRow, PageMoves, PrefillChunk, StepPlan
from engine.scheduling.request import Sequence
from engine.scheduling.step_model import Work, work_of
from engine.wire import Eviction, Preemption

MAX_PAD_TOKENS = 64
"""Padding that costs more than one more step does: on two cores 64 rows take about 15 ms, an almost empty step 11."""


class Row(msgspec.Struct, eq=False):
    """One decode row or prefill chunk of a planned step."""

    sequence: Sequence
    epoch: int
    """The sequence's at planning; if it has moved on at commit, the row's token is late and dropped."""
    tokens: int
    context_tokens: int
    """KV tokens read."""
    samples: bool
    is_decode: bool
    draws: bool = False
    """It was committed, and its token is the sequence's."""

    def take_back(self) -> None:
        """The step was cut short, and none is planned behind it: the chunk is to be planned again. Its pages the runner's table has."""
        self.sequence.planned_tokens -= self.tokens
        self.sequence.in_flight_samples -= self.samples
        self.sequence.decoding = False


class PlannedStep(msgspec.Struct, frozen=True):
    """In flight. `rows` are in the plan's order: decodes, then prefills."""

    plan: StepPlan
    work: Work
    rows: tuple[Row, ...]
    preempted: tuple[Preemption, ...]
    evictions: tuple[Eviction, ...]
    predicted_s: float = 0.0
    """What 99 of 100 such steps stay below."""
    expected_s: float = 0.0
    left_prompts: bool = False
    """Prompt tokens stay behind it that no step held yet, and there is a row to compute them in."""
    token_limit: TokenLimit | None = None
    budget_tokens: int | None = None
    """As `Draft` had them, for the ledger."""
    interrupted_by: Sequence | None = None
    """For whom it was cut short,"""
    lost_tokens: float = 0.0
    """and how much of its prompts' work, in virtual tokens, is done again for that."""


@dataclass(slots=True)
class Draft:
    """Collects rows under the token budget. Decodes first: how much prefill fits depends on them."""

    limits: Limits
    lone: bool = False
    """For one chunk with prompt log-probabilities, which has the step to itself."""
    budget_rows: int | None = None
    """Most prefill rows by the step's time; None: no bound."""
    token_limit: TokenLimit | None = None
    """By its decodes' token deadlines; None: no deadline."""
    decode_context: int = 0
    """KV tokens that the decodes read."""
    admitted: list[Admitted] = field(default_factory=list)
    decodes: list[DecodeRow] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    prefill_tokens: int = 0
    padded_tokens: int = 0
    """Prefill rows with each chunk rounded up to whole query blocks."""

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def has_fast_chunk(self) -> bool:
        """It holds a prompt of the fast lane."""
        return any(row.sequence.submit.lane == "fast" for row in self.rows[len(self.decodes) :])

    @property
    def decode_work(self) -> Work:
        return Work(decode_rows=len(self.decodes), decode_context=self.decode_context)

    @property
    def capacity_tokens(self) -> int:
        """Prefill tokens that this step could hold if no chunk were in it yet."""
        if self.lone:
            return min(QUERY_BLOCK_TOKENS, self.limits.max_num_batched_tokens)
        return min(self.limits.max_num_batched_tokens, self._capacity_rows)

    @property
    def _capacity_rows(self) -> int:
        capacity = self.limits.buckets.prefill_capacity(len(self.decodes))
        return capacity if self.budget_rows is None else min(capacity, self.budget_rows)

    @property
    def tokens_left(self) -> int:
        """Most tokens of one more chunk."""
        if len(self.prefills) >= (1 if self.lone else self.limits.max_prefill_rows):
            return 0
        rows_left = self._capacity_rows - self.padded_tokens
        return max(0, min(self.capacity_tokens - self.prefill_tokens, rows_left))

    def admit(self, sequence: Sequence) -> None:
        """Its slot starts anew in this step. The tokens are copied: they are what is known now."""
        self.admitted.append(
            Admitted(sequence.slot, sequence.sequence_id, tuple(sequence.tokens), sequence.prompt_tokens, sequence.submit.sampling)
        )

    def add_decode(self, sequence: Sequence) -> None:
        """Its newest token, known or still on the device, goes through the model; one more is drawn."""
        position = sequence.planned_tokens
        new_pages = () if sequence.sent_pages == len(sequence.pages) else _take_new_pages(sequence)
        self.decodes.append(DecodeRow(sequence.slot, sequence.sequence_id, position, new_pages))
        self.rows.append(Row(sequence, sequence.epoch, 1, position + 1, samples=True, is_decode=True))
        self.decode_context += position + 1
        sequence.planned_tokens = position + 1
        sequence.in_flight_samples += 1

    def add_chunk(self, sequence: Sequence, tokens: int) -> None:
        """The next `tokens` known tokens; the last known one is followed by a sample."""
        start = sequence.planned_tokens
        end = start + tokens
        samples = end == len(sequence.tokens)
        self.prefills.append(
            PrefillChunk(
                sequence.slot,
                sequence.sequence_id,
                start,
                tuple(sequence.tokens[start:end]),
                _take_new_pages(sequence),
                samples,
                sequence.wants_prompt_logprobs,
            )
        )
        self.rows.append(Row(sequence, sequence.epoch, tokens, end, samples, is_decode=False))
        sequence.planned_tokens = end
        sequence.decoding = samples
        sequence.in_flight_samples += samples
        self.prefill_tokens += tokens
        self.padded_tokens += round_to_block(tokens)

    def trim(self) -> None:
        """Shorten the last chunk to what fills the next smaller bucket, where the bucket would be mostly padding."""
        buckets = self.limits.buckets
        bucket = buckets.choose(len(self.decodes), self.padded_tokens)
        if bucket.prefill_tokens - self.padded_tokens <= MAX_PAD_TOKENS:
            return
        last, row = self.prefills[-1], self.rows[-1]
        before = self.padded_tokens - round_to_block(row.tokens)
        tokens = buckets.prefill_below(len(self.decodes), self.padded_tokens) - before
        if 0 < tokens < row.tokens:
            self.prefills.pop()
            self.rows.pop()
            self.prefill_tokens -= row.tokens
            self.padded_tokens = before
            sequence = row.sequence
            sequence.planned_tokens = last.start
            sequence.in_flight_samples -= last.samples
            sequence.sent_pages -= len(last.new_pages)
            self.add_chunk(sequence, tokens)

    def finish(self, step: int, preempted: tuple[Preemption, ...], evictions: tuple[Eviction, ...], moves: PageMoves) -> PlannedStep:
        """Choose the bucket."""
        bucket = self.limits.buckets.choose(len(self.decodes), self.padded_tokens)
        plan = StepPlan(step, bucket, tuple(self.admitted), tuple(self.decodes), tuple(self.prefills), moves)
        return PlannedStep(
            plan, work_of(plan), tuple(self.rows), preempted, evictions, token_limit=self.token_limit, budget_tokens=self.budget_rows
        )


def _take_new_pages(sequence: Sequence) -> tuple[int, ...]:
    """Pages the runner's table lacks; from now on it has them."""
    new = tuple(sequence.pages[sequence.sent_pages :])
    sequence.sent_pages = len(sequence.pages)
    return new
