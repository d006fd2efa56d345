"""The border between deciding and doing: what a scheduler hands to a runner, and what it gets back.

A running sequence owns a *slot*, a row of the device's per-sequence state, from admission to its end or preemption.
The runner keeps page tables, sampling parameters and token history by slot, so a plan carries only what changed.

What is made for every row of every step is a msgspec struct, although it crosses no process: a frozen dataclass takes ten times as long.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.wire import Sampling, TokenLogprob

QUERY_BLOCK_TOKENS = 16
"""Chunks of a step are laid out at multiples of this many rows, so a query block never holds two sequences. The
padded sizes of a step's chunks (each rounded up) must fit the bucket's prefill tokens."""


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """A compiled shape: decode rows and prefill tokens a step is padded to; one of them may be 0."""

    decode_rows: int
    prefill_tokens: int

    def __str__(self) -> str:
        """`d8`, `p64`, `d8p64`."""
        return (f"d{self.decode_rows}" if self.decode_rows else "") + (f"p{self.prefill_tokens}" if self.prefill_tokens else "")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence takes a slot: reset the slot's page table, set its sampling state.

    `tokens` are all the tokens known so far: the prompt, and after a preemption the output too.
    """

    slot: int
    sequence_id: int
    tokens: Seq[int]
    prompt_tokens: int
    sampling: Sampling


class DecodeRow(msgspec.Struct, frozen=True, gc=False):
    """One token of a running sequence. Its input token may still be on the device (the step before's sample).

    The input token stands at `position`; its K and V are written there, and attention reads positions 0..position.
    The sampled token will stand at `position + 1`.
    """

    slot: int
    sequence_id: int
    position: int
    new_pages: tuple[int, ...]
    """Pages appended to the slot's table since its last row or chunk, in order."""


class PrefillChunk(msgspec.Struct, frozen=True, gc=False):
    """Known tokens `tokens` at positions start..start+len-1. `samples`: a token is drawn after its last one."""

    slot: int
    sequence_id: int
    start: int
    tokens: tuple[int, ...]
    new_pages: tuple[int, ...]
    samples: bool
    wants_prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class PageMoves:
    """Whole pages that are copied before the rows of a step, in this order of kinds.

    Out first: a page that a preempted sequence gave up may be another's in this very step. Then the copies within the pool: their
    sources are as the steps before left them, none of them is a target, and no target is named twice. Then what comes back.
    """

    swapped_out: tuple[tuple[int, int], ...] = ()
    """Page to host page."""
    copied: tuple[tuple[int, int], ...] = ()
    """Page to page: copy-on-write."""
    swapped_in: tuple[tuple[int, int], ...] = ()
    """Host page to page."""


NO_MOVES = PageMoves()


class StepPlan(msgspec.Struct, frozen=True, gc=False):
    """One step. Sampled tokens come back in the order: all `decodes`, then all `prefills` (also those that do not sample)."""

    step: int
    bucket: Bucket
    admitted: tuple[Admitted, ...]
    decodes: tuple[DecodeRow, ...]
    prefills: tuple[PrefillChunk, ...]
    moves: PageMoves = NO_MOVES

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """What the device drew: `tokens[i]` for row i in the plan's order (-1 where it did not sample)."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...]
    """For rows that asked for them, else None."""
    prompt_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    """For each prefill chunk: of the tokens that FOLLOW each of its positions, where asked for; else empty."""
    is_cut: bool = False
    """It was cut short: its decodes are done, its prefills are not. What these wrote is written again when they are planned again."""


class Ticket(Protocol):
    """A dispatched step whose results are still on their way; only its runner looks inside."""


class Runner(Protocol):
    """Does what a plan says. The device's runner and the simulator's are its two users.

    Steps are dispatched in order and collected in order; at most two are between the two calls.
    """

    def dispatch(self, plan: StepPlan) -> Ticket:
        """Start a step; returns before the device is done."""
        ...

    def is_done(self, ticket: Ticket) -> bool:
        """Whether `collect` would not wait."""
        ...

    def interrupt(self, ticket: Ticket) -> bool:
        """Leave the prefills out of the rest of a step that nothing was dispatched behind; False: the device cannot, or it is done.
        `collect` belongs right behind."""
        ...

    def collect(self, ticket: Ticket) -> StepResult:
        """Wait for a step's results. One host-device sync. It is only cut where that was asked for and came in time."""
        ...
