"""Paged decode attention (Triton): a few query tokens of each sequence against its whole context.

Split-KV after Flash-Decoding: a sequence's context is cut into equal splits that run side by side, then merged by their
log-sum-exp. The grid has the most splits a sequence may use; how many it uses follows from the lengths at run time, so
that a step's programs are about as many as fill the card, whether one sequence is long or all are.
Twin: `engine.kernels.reference.decode`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from engine.kernels.attention import AttentionShape
from engine.kernels.paged_cache import PagedCache
from engine.kernels.tiling import TARGET_PROGRAMS, DecodeTiling
from engine.kernels.triton_blocks import MASKED, Softmax, attend_block, fresh_softmax, load_block, normalised


@functools.partial(jax.jit, static_argnames=("shape", "tiling", "interpret"))
def paged_decode(
    shape: AttentionShape,
    cache: PagedCache,
    q: jax.Array,
    tables: jax.Array,
    lengths: jax.Array,
    *,
    tiling: DecodeTiling,
    interpret: bool = False,
) -> jax.Array:
    """q [B, Q, H, D]: the last Q tokens of each sequence, in order -> [B, Q, H, D].

    tables i32 [B, M]; lengths i32 [B]: tokens in the cache, the Q own ones included (at least Q, or 0: the row is
    padding and answers 0). Token i sees positions 0 .. length - Q + i, or the last `sliding_window` of them.
    """
    batch, queries, num_heads, head_dim = q.shape
    group = shape.num_heads // shape.num_kv_heads
    assert (num_heads, head_dim) == (shape.num_heads, shape.head_dim), f"q is {q.shape}, the shape says {shape}"
    assert queries * group <= tiling.rows, f"{queries} x {group} rows do not fit a tile of {tiling.rows}"
    tokens = split_tokens(shape, lengths, queries, tiling.block_tokens, tiling.splits)
    single = tiling.splits == 1
    per_split = (batch, queries, num_heads, tiling.splits)
    out, lse = pl.pallas_call(
        functools.partial(_decode_kernel, shape=shape, tiling=tiling, queries=queries),
        grid=(batch, shape.num_kv_heads, tiling.splits),
        out_shape=(
            jax.ShapeDtypeStruct((*per_split, head_dim), q.dtype if single else jnp.float32),
            jax.ShapeDtypeStruct(per_split, jnp.float32),
        ),
        compiler_params=plgpu.CompilerParams(num_warps=tiling.num_warps, num_stages=tiling.num_stages),
        interpret=interpret,
        name="paged_decode",
    )(q, cache, tables, lengths, tokens)
    if single:
        return out[:, :, :, 0]
    return _merge(shape, out, lse, lengths, tokens, tiling, q.dtype, interpret)


def first_token(shape: AttentionShape, length: jax.Array, queries: int, block_tokens: int) -> jax.Array | int:
    """Start of the first block that any of the row's queries sees."""
    if shape.sliding_window is None:
        return 0
    return jnp.maximum(length - queries + 1 - shape.sliding_window, 0) // block_tokens * block_tokens


def split_tokens(shape: AttentionShape, lengths: jax.Array, queries: int, block_tokens: int, splits: int) -> jax.Array:
    """Tokens of a split, i32 [1], whole blocks, the same for all rows: the whole batch's work over the programs that fill the
    card, at least four blocks (a partial costs a write and a read), and so many that the longest row needs no more than
    `splits`. Every layer asks for the same, so XLA computes it once a step."""
    work = lengths - first_token(shape, lengths, queries, block_tokens)
    even = jnp.sum(work) * shape.num_kv_heads // TARGET_PROGRAMS
    needed = pl.cdiv(jnp.max(work), splits)
    blocks = pl.cdiv(jnp.maximum(jnp.maximum(even, needed), 4 * block_tokens), block_tokens)
    return (blocks * block_tokens).astype(jnp.int32)[None]


def _decode_kernel(
    q_ref: Any,  # [B, Q, H, D]
    cache: Any,  # PagedCache of refs
    tables_ref: Any,  # i32 [B, M]
    lengths_ref: Any,  # i32 [B]
    split_tokens_ref: Any,  # i32 [1]
    out_ref: Any,  # [B, Q, H, splits, D] each split's own softmax
    lse_ref: Any,  # f32 [B, Q, H, splits] base 2
    *,
    shape: AttentionShape,
    tiling: DecodeTiling,
    queries: int,
) -> None:
    sequence, kv_head, split = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    group = shape.num_heads // shape.num_kv_heads
    length, split_tokens, block = lengths_ref[sequence], split_tokens_ref[0], tiling.block_tokens
    start = first_token(shape, length, queries, block) + split * split_tokens
    stop = jnp.minimum(start + split_tokens, length)

    row = jnp.arange(tiling.rows)
    query, head, row_exists = row // group, kv_head * group + row % group, row < queries * group
    position = length - queries + query
    dims = jnp.arange(tiling.padded_head_dim)
    lanes = row_exists[:, None] & (dims < shape.head_dim)[None, :]
    q = plgpu.load(q_ref.at[sequence, query[:, None], head[:, None], dims[None, :]], mask=lanes, other=jnp.zeros((), q_ref.dtype))

    def step(index: jax.Array, state: Softmax) -> Softmax:
        tokens = start + index * block + jnp.arange(block)
        kv = load_block(cache, tables_ref, sequence, kv_head, tokens, tokens < stop, dims)
        visible = (tokens[None, :] <= position[:, None]) & (tokens < stop)[None, :]
        if shape.sliding_window is not None:
            visible &= tokens[None, :] > position[:, None] - shape.sliding_window
        return attend_block(shape, q, kv, visible, state)

    state = jax.lax.fori_loop(0, pl.cdiv(jnp.maximum(stop - start, 0), block), step, fresh_softmax(tiling.rows, tiling.padded_head_dim))
    # A split behind the end stores nothing: the merge does not read it. With one split an empty row must answer 0.
    stores = row_exists & ((start < length) | (tiling.splits == 1))
    query = jnp.where(stores, query, queries)  # dead lanes point outside: the interpreter's masked store would clobber
    out = normalised(state).astype(out_ref.dtype)
    lanes = stores[:, None] & (dims < shape.head_dim)[None, :]
    plgpu.store(out_ref.at[sequence, query[:, None], head[:, None], split, dims[None, :]], out, mask=lanes)
    plgpu.store(lse_ref.at[sequence, query, head, split], state.peak + jnp.log2(state.total), mask=stores)


def _merge(
    shape: AttentionShape,
    partial: jax.Array,
    lse: jax.Array,
    lengths: jax.Array,
    split_tokens: jax.Array,
    tiling: DecodeTiling,
    dtype: Any,
    interpret: bool,
) -> jax.Array:
    batch, queries, num_heads, _, head_dim = partial.shape
    return pl.pallas_call(
        functools.partial(_merge_kernel, shape=shape, tiling=tiling, queries=queries),
        grid=(batch, queries, num_heads),
        out_shape=jax.ShapeDtypeStruct((batch, queries, num_heads, head_dim), dtype),
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="paged_decode_merge",
    )(partial, lse, lengths, split_tokens)


def _merge_kernel(
    partial_ref: Any,  # f32 [B, Q, H, splits, D]
    lse_ref: Any,  # f32 [B, Q, H, splits]
    lengths_ref: Any,  # i32 [B]
    split_tokens_ref: Any,  # i32 [1]
    out_ref: Any,  # [B, Q, H, D]
    *,
    shape: AttentionShape,
    tiling: DecodeTiling,
    queries: int,
) -> None:
    sequence, query, head = pl.program_id(0), pl.program_id(1), pl.program_id(2)
    length = lengths_ref[sequence]
    used = pl.cdiv(length - first_token(shape, length, queries, tiling.block_tokens), split_tokens_ref[0])
    split, dims = jnp.arange(tiling.splits), jnp.arange(tiling.padded_head_dim)
    lse = plgpu.load(lse_ref.at[sequence, query, head, split], mask=split < used, other=MASKED)
    weights = jnp.where(split < used, jnp.exp2(lse - jnp.max(lse)), 0.0)
    exists = (split < used)[:, None] & (dims < shape.head_dim)[None, :]
    partial = plgpu.load(partial_ref.at[sequence, query, head, split[:, None], dims[None, :]], mask=exists, other=0.0)
    total = jnp.sum(weights)
    out = jnp.sum(partial * weights[:, None], axis=0) / jnp.where(total == 0.0, 1.0, total)
    plgpu.store(out_ref.at[sequence, query, head, dims], out.astype(out_ref.dtype), mask=dims < shape.head_dim)
