"""The host's side of a step: per-slot arrays, and one int32 buffer that carries a whole plan to the device.

`step_inputs` declares the buffer's fields once; the host writes through numpy views of them, the device reads through
slices of the same declaration. Floats and unsigned numbers travel as their bit patterns.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from engine.execution.sampler import SamplingRows
from engine.kernels.attention import PrefillLayout
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Admitted, Bucket, DecodeRow, PrefillChunk, StepPlan

MAX_LAYOUTS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Static sizes of everything a runner keeps."""

    max_num_seqs: int
    """R, slots; slot number R is a scratch row for padding."""
    max_model_len: int
    max_prefill_rows: int
    num_pages: int
    page_size: int
    swap_pages: int = 0
    """Pages that host memory keeps of preempted sequences."""

    @property
    def table_pages(self) -> int:
        """M: pages of one sequence of full length."""
        return -(-self.max_model_len // self.page_size)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a compiled step is made for. `scores_prompt` adds log-probabilities of the tokens after every prefill row."""

    bucket: Bucket
    chunk_rows: int
    table_pages: int
    scores_prompt: bool = False

    def __str__(self) -> str:
        return f"{self.bucket}{'s' if self.scores_prompt else ''}"

    @property
    def sample_rows(self) -> int:
        return self.bucket.decode_rows + self.chunk_rows

    @property
    def scored_rows(self) -> int:
        return self.bucket.prefill_tokens if self.scores_prompt else 0


def step_shape(bucket: Bucket, limits: Limits, *, scores_prompt: bool = False) -> StepShape:
    """Each chunk has a query block at least, so a small bucket holds few chunks, and its head few rows."""
    chunk_rows = min(limits.max_prefill_rows, bucket.prefill_tokens // QUERY_BLOCK_TOKENS)
    return StepShape(bucket, chunk_rows, limits.table_pages, scores_prompt)


class StepInputs(NamedTuple):
    """One step. Letters: B decode rows, T prefill tokens, N chunks, M pages a table, W = B + N rows that may sample."""

    decode_slots: Any  # i32 [B]; scratch slot: padding
    decode_positions: Any  # i32 [B]; -1: padding
    decode_tables: Any  # i32 [B, M]
    tokens: Any  # i32 [T]
    chunk_slots: Any  # i32 [N]
    layout: PrefillLayout
    following: Any  # i32 [T], or [0] where prompts are not scored: the known token after each row
    sample_positions: Any  # i32 [W] where a drawn token will stand; -1: the row does not sample
    sampling: SamplingRows


def step_inputs(shape: StepShape) -> StepInputs:
    """Shapes and types of the buffer's fields, in order."""
    decode_rows, tokens = shape.bucket.decode_rows, shape.bucket.prefill_tokens
    chunks, pages, rows = shape.chunk_rows, shape.table_pages, shape.sample_rows

    def ints(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, np.int32)

    floats, flags = jax.ShapeDtypeStruct((rows,), np.float32), jax.ShapeDtypeStruct((rows,), np.bool_)
    return StepInputs(
        ints(decode_rows),
        ints(decode_rows),
        ints(decode_rows, pages),
        ints(tokens),
        ints(chunks),
        PrefillLayout(ints(chunks, pages), ints(tokens // QUERY_BLOCK_TOKENS), ints(chunks), ints(chunks), ints(chunks)),
        ints(shape.scored_rows),
        ints(rows),
        SamplingRows(
            temperature=floats,
            top_p=floats,
            min_p=floats,
            top_k=ints(rows),
            repetition=floats,
            presence=floats,
            frequency=floats,
            seed=jax.ShapeDtypeStruct((rows,), np.uint32),
            position=ints(rows),
            prompt_tokens=ints(rows),
            biased=flags,
            held=flags,
            wants_logprobs=flags,
        ),
    )


def buffer_size(shape: StepShape) -> int:
    """Length of the buffer in 32-bit words."""
    return _layout(shape)[0][-1][1]


def unpack(shape: StepShape, buffer: jax.Array) -> StepInputs:
    """The buffer's fields on the device."""
    leaves, tree = jax.tree.flatten(step_inputs(shape))
    offset, arrays = 0, []
    for field in leaves:
        size = math.prod(field.shape)
        words = buffer[offset : offset + size].reshape(field.shape)
        is_flag = field.dtype == np.bool_
        arrays.append(words != 0 if is_flag else lax.bitcast_convert_type(words, field.dtype))
        offset += size
    return jax.tree.unflatten(tree, arrays)


@lru_cache(maxsize=MAX_LAYOUTS)
def _layout(shape: StepShape) -> tuple[tuple[tuple[int, int, Any, tuple[int, ...]], ...], Any]:
    """Start, end, type and dimensions of the buffer's fields, and their tree: the same for every step of a shape, and dear to make."""
    leaves, tree = jax.tree.flatten(step_inputs(shape))
    offset, fields = 0, []
    for field in leaves:
        size = math.prod(field.shape)
        fields.append((offset, offset + size, np.int32 if field.dtype == np.bool_ else field.dtype, field.shape))
        offset += size
    return tuple(fields), tree


def _host_views(shape: StepShape, buffer: np.ndarray) -> StepInputs:
    """The buffer's fields on the host; flags are seen as int32."""
    fields, tree = _layout(shape)
    return jax.tree.unflatten(tree, [buffer[start:end].view(dtype).reshape(dims) for start, end, dtype, dims in fields])


class SlotArrays:
    """What the host knows of each slot: page table and sampling parameters. The scratch row stays neutral."""

    def __init__(self, limits: Limits) -> None:
        rows = limits.max_num_seqs + 1
        self.scratch = limits.max_num_seqs
        self.tables = np.zeros((rows, limits.table_pages), np.int32)
        self.num_pages = np.zeros(rows, np.int32)
        self.min_tokens = np.zeros(rows, np.int32)
        self.sampling = SamplingRows(
            temperature=np.zeros(rows, np.float32),
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            repetition=np.ones(rows, np.float32),
            presence=np.zeros(rows, np.float32),
            frequency=np.zeros(rows, np.float32),
            seed=np.zeros(rows, np.uint32),
            position=np.zeros(rows, np.int32),
            prompt_tokens=np.zeros(rows, np.int32),
            biased=np.zeros(rows, np.int32),
            held=np.zeros(rows, np.int32),
            wants_logprobs=np.zeros(rows, np.int32),
        )

    def admit(self, admitted: Admitted) -> None:
        """The slot's earlier owner is forgotten."""
        slot, chosen = admitted.slot, admitted.sampling
        self.num_pages[slot] = 0
        self.tables[slot] = 0
        self.min_tokens[slot] = chosen.min_tokens
        new = self.sampling._replace(
            temperature=chosen.temperature,
            top_p=chosen.top_p,
            min_p=chosen.min_p,
            top_k=chosen.top_k,
            repetition=chosen.repetition_penalty,
            presence=chosen.presence_penalty,
            frequency=chosen.frequency_penalty,
            seed=chosen.seed & 0xFFFFFFFF,
            position=0,
            prompt_tokens=admitted.prompt_tokens,
            biased=bool(chosen.logit_bias),
            held=0,
            wants_logprobs=chosen.logprobs >= 0,
        )
        for column, value in zip(self.sampling, new, strict=True):
            column[slot] = value

    def append_pages(self, slot: int, pages: tuple[int, ...]) -> None:
        if pages:
            start = self.num_pages[slot]
            self.tables[slot, start : start + len(pages)] = pages
            self.num_pages[slot] = start + len(pages)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """`row_of_decode[i]` is the device row of the plan's i-th decode; chunk j is device row `decode_rows + j`."""

    buffer: np.ndarray
    row_of_decode: np.ndarray


def pack(shape: StepShape, plan: StepPlan, slots: SlotArrays, following: tuple[int, ...] = ()) -> PackedStep:
    """Write a plan into a fresh buffer (the device may still read the last one). Appends the plan's new pages."""
    buffer = np.zeros(buffer_size(shape), np.int32)
    views = _host_views(shape, buffer)
    row_of_decode = _pack_decodes(views, plan.decodes, slots)
    _pack_chunks(views, plan.prefills, slots, shape.bucket.decode_rows)
    views.following[: len(following)] = following
    _pack_sampling(views, slots, shape)
    return PackedStep(buffer, row_of_decode)


def _pack_decodes(views: StepInputs, decodes: tuple[DecodeRow, ...], slots: SlotArrays) -> np.ndarray:
    """Longest first, as attention wants them. Answers the device row of each decode."""
    views.decode_slots[:] = slots.scratch
    views.decode_positions[:] = -1
    views.sample_positions[:] = -1
    count = len(decodes)
    positions = np.fromiter((row.position for row in decodes), np.int32, count)
    order = np.argsort(-positions, kind="stable")
    for row in decodes:
        slots.append_pages(row.slot, row.new_pages)
    views.decode_slots[:count] = np.fromiter((row.slot for row in decodes), np.int32, count)[order]
    views.decode_positions[:count] = positions[order]
    views.decode_tables[:] = slots.tables[views.decode_slots]
    views.sample_positions[:count] = positions[order] + 1
    row_of_decode = np.empty(count, np.int64)
    row_of_decode[order] = np.arange(count)
    return row_of_decode


def _pack_chunks(views: StepInputs, chunks: tuple[PrefillChunk, ...], slots: SlotArrays, decode_rows: int) -> None:
    """One behind the other, each at a multiple of the query block."""
    layout = views.layout
    views.chunk_slots[:] = slots.scratch
    layout.block_sequence[:] = layout.chunk_tokens.size - 1
    row = 0
    for index, chunk in enumerate(chunks):
        size = len(chunk.tokens)
        slots.append_pages(chunk.slot, chunk.new_pages)
        views.tokens[row : row + size] = chunk.tokens
        views.chunk_slots[index] = chunk.slot
        layout.row_start[index], layout.chunk_tokens[index], layout.context_tokens[index] = row, size, chunk.start
        blocks = -(-size // QUERY_BLOCK_TOKENS)
        first_block = row // QUERY_BLOCK_TOKENS
        layout.block_sequence[first_block : first_block + blocks] = index
        row += blocks * QUERY_BLOCK_TOKENS
        if chunk.samples:
            views.sample_positions[decode_rows + index] = chunk.start + size
    assert row <= views.tokens.size, f"chunks take {row} rows, the bucket has {views.tokens.size}"
    layout.tables[:] = slots.tables[views.chunk_slots]


def _pack_sampling(views: StepInputs, slots: SlotArrays, shape: StepShape) -> None:
    """Rows that do not sample get the scratch slot's neutral parameters, so no branch runs for their sake."""
    owners = np.concatenate([views.decode_slots, views.chunk_slots])
    owners = np.where(views.sample_positions >= 0, owners, slots.scratch)
    for view, column in zip(views.sampling, slots.sampling, strict=True):
        view[:] = column[owners]
    sampling = views.sampling
    sampling.position[:] = views.sample_positions
    sampling.held[:] = sampling.position - sampling.prompt_tokens < slots.min_tokens[owners]
