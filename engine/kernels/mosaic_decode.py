"""Paged decode attention for Hopper (Pallas Mosaic GPU): pages by TMA, products by wgmma, a producer warpgroup ahead.

A decode step has few query rows and wgmma wants 64, so the operands are swapped: scores are S^T = K Q^T [t, rows] and
the answer is O^T = V^T P^T [D, rows], with the tokens and the head dim where wgmma wants its 64, and the rows where 8 do
(46 registers a thread, where queries padded to 64 rows take 128). Splits are those of `paged_decode`.
Twin: `engine.kernels.reference.decode`.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from engine.kernels.attention import AttentionShape
from engine.kernels.mosaic_blocks import KvStages, Ring, Source, block_scales, kv_stages, produce, product, swizzled
from engine.kernels.paged_cache import PagedCache
from engine.kernels.paged_decode import first_token, split_tokens
from engine.kernels.tiling import TARGET_PROGRAMS
from engine.kernels.triton_blocks import LOG2_E, MASKED, base_2_scores

COMPUTE, PRODUCER = 0, 1
"""Warpgroups by index."""
MAX_ROWS = 64
"""Of a tile: 128 spill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MosaicDecodeTiling:
    """`rows`: query tokens x heads of a group, padded to 8."""

    rows: int
    splits: int
    ring: Ring


def mosaic_max_query_tokens(shape: AttentionShape) -> int:
    """Tokens of a row that one tile holds."""
    return MAX_ROWS // (shape.num_heads // shape.num_kv_heads)


def mosaic_decode_tiling(shape: AttentionShape, table_pages: int, kv_bytes: int, query_tokens: int = 1) -> MosaicDecodeTiling:
    """Three stages of 64 tokens, or of 8-bit KV two and two, leave room for two programs a core; a head dim of 256 for two stages."""
    block = 64
    longest = max(1, table_pages * shape.page_size // (4 * block))
    stages = 3 if shape.head_dim <= 128 and kv_bytes > 1 else 2
    return MosaicDecodeTiling(
        rows=-(-query_tokens * shape.num_heads // shape.num_kv_heads // 8) * 8,
        splits=min(32, -(-TARGET_PROGRAMS // shape.num_kv_heads), longest),
        ring=Ring(block_tokens=block, stages=stages, narrow_stages=2),
    )


class _Buffers(NamedTuple):
    """Shared memory and barriers of one program."""

    q: Any  # [rows, D]
    p: Any  # [rows, t] softmax weights, transposed by its readers
    lse: Any  # f32 [rows]
    q_loaded: Any
    kv: KvStages


@functools.partial(jax.jit, static_argnames=("shape", "tiling", "plain_dot", "interpret"))
def mosaic_decode(
    shape: AttentionShape,
    cache: PagedCache,
    q: jax.Array,
    tables: jax.Array,
    lengths: jax.Array,
    *,
    tiling: MosaicDecodeTiling,
    plain_dot: bool = False,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """As `paged_decode`: q [B, Q, H, D] bf16 -> [B, Q, H, D].

    `plain_dot` multiplies without wgmma: the interpreter's race detector sees those reads, and is blind to wgmma's.
    """
    batch, queries, _, head_dim = q.shape
    num_kv, group = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
    block = tiling.ring.block_tokens
    tokens = split_tokens(shape, lengths, queries, block, tiling.splits)
    grouped = q.reshape(batch, queries, num_kv, group, head_dim).transpose(0, 2, 1, 3, 4).reshape(batch, num_kv, queries * group, head_dim)
    padded = jnp.pad(grouped, ((0, 0), (0, 0), (0, tiling.rows - queries * group), (0, 0)))
    per_split = (batch, num_kv, tiling.splits)
    partial, lse = plgpu.kernel(
        functools.partial(_decode_kernel, shape=shape, tiling=tiling, queries=queries, plain_dot=plain_dot),
        out_type=(
            jax.ShapeDtypeStruct((*per_split, head_dim, tiling.rows), jnp.float32),
            jax.ShapeDtypeStruct((*per_split, tiling.rows), jnp.float32),
        ),
        scratch_types=[
            _Buffers(
                q=swizzled(tiling.rows, head_dim),
                p=swizzled(tiling.rows, block),
                lse=plgpu.SMEM((tiling.rows,), jnp.float32),
                q_loaded=plgpu.Barrier(),
                kv=kv_stages(tiling.ring, cache, readers=1),
            )
        ],
        kernel_name="mosaic_decode",
        grid=per_split,
        grid_names=("sequence", "kv_head", "split"),
        num_threads=2,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )(padded, cache, tables, lengths, tokens)
    used = pl.cdiv(lengths - first_token(shape, lengths, queries, block), tokens[0])
    merged = _merge(partial, lse, used)[..., : queries * group]  # [B, K, D, rows]
    return merged.reshape(batch, num_kv, head_dim, queries, group).transpose(0, 3, 1, 4, 2).reshape(q.shape).astype(q.dtype)


def _decode_kernel(
    q_ref: Any,  # [B, K, rows, D]
    cache: Any,  # PagedCache of refs
    tables_ref: Any,  # i32 [B, M]
    lengths_ref: Any,  # i32 [B]
    split_tokens_ref: Any,  # i32 [1]
    out_ref: Any,  # f32 [B, K, splits, D, rows]
    lse_ref: Any,  # f32 [B, K, splits, rows] base 2
    buffers: _Buffers,
    *,
    shape: AttentionShape,
    tiling: MosaicDecodeTiling,
    queries: int,
    plain_dot: bool,
) -> None:
    sequence, kv_head, split = jax.lax.axis_index("sequence"), jax.lax.axis_index("kv_head"), jax.lax.axis_index("split")
    length, block = lengths_ref[sequence], tiling.ring.block_tokens
    start = first_token(shape, length, queries, block) + split * split_tokens_ref[0]
    stop = jnp.minimum(start + split_tokens_ref[0], length)
    num_blocks = pl.cdiv(jnp.maximum(stop - start, 0), block)
    warpgroup = jax.lax.axis_index("warpgroup")

    @pl.when(warpgroup == PRODUCER)
    def _() -> None:
        def page_of(token: jax.Array) -> jax.Array:
            return tables_ref[sequence, jnp.minimum(token, length - 1) // shape.page_size]

        produce(Source(cache, kv_head, start, num_blocks, page_of), buffers.kv)

    @pl.when((warpgroup == COMPUTE) & (num_blocks > 0))
    def _() -> None:
        plgpu.copy_gmem_to_smem(q_ref.at[sequence, kv_head], buffers.q, buffers.q_loaded)
        plgpu.barrier_wait(buffers.q_loaded)
        row = jax.lax.broadcasted_iota(jnp.int32, (block, tiling.rows), 1)
        position = length - queries + row // (shape.num_heads // shape.num_kv_heads)

        def step(index: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            token = start + index * block + jax.lax.broadcasted_iota(jnp.int32, (block, tiling.rows), 0)
            visible = (token <= position) & (token < stop)
            if shape.sliding_window is not None:
                visible &= token > position - shape.sliding_window
            return _attend_block(shape, buffers, index, visible, state, plain_dot)

        head_dim = shape.head_dim
        fresh = jnp.zeros((head_dim, tiling.rows), jnp.float32), jnp.full((tiling.rows,), MASKED, jnp.float32), jnp.zeros((tiling.rows,))
        acc, peak, total = jax.lax.fori_loop(0, num_blocks, step, fresh)
        out_ref[sequence, kv_head, split] = acc / jax.lax.broadcast_in_dim(total, acc.shape, [1])
        # a direct store would not fill a cache line, which Mosaic refuses
        buffers.lse[...] = peak + jnp.log(total) * LOG2_E
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffers.lse, lse_ref.at[sequence, kv_head, split])
        plgpu.wait_smem_to_gmem(0)


def _attend_block(
    shape: AttentionShape,
    buffers: _Buffers,
    index: jax.Array,
    visible: jax.Array,
    state: tuple[jax.Array, jax.Array, jax.Array],
    plain_dot: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step of flash attention, transposed: state is acc [D, rows], peak [rows], total [rows]."""
    acc, peak, total = state
    slot = jax.lax.rem(index, jnp.int32(buffers.kv.k.shape[0]))
    plgpu.barrier_wait(buffers.kv.k_loaded.at[slot])
    scales = block_scales(buffers.kv, index, 1)
    scores = product(buffers.kv.k.at[slot], buffers.q.transpose((1, 0)), visible.shape, plain_dot)
    plgpu.barrier_arrive(buffers.kv.k_consumed.at[slot])
    if scales is not None:
        scores *= jax.lax.broadcast_in_dim(scales[0], scores.shape, [0])
    scores = jnp.where(visible, base_2_scores(shape, scores), MASKED)
    new_peak = jnp.maximum(peak, scores.max(axis=0))
    shrink = jnp.exp2(peak - new_peak)
    weights = jnp.exp2(scores - jax.lax.broadcast_in_dim(new_peak, scores.shape, [1]))
    total = total * shrink + weights.sum(axis=0)
    if scales is not None:
        weights *= jax.lax.broadcast_in_dim(scales[1], weights.shape, [0])
    buffers.p.transpose((1, 0))[...] = weights.astype(buffers.p.dtype)
    plgpu.commit_smem()
    plgpu.barrier_wait(buffers.kv.v_loaded.at[slot])
    added = product(buffers.kv.v.at[slot].transpose((1, 0)), buffers.p.transpose((1, 0)), acc.shape, plain_dot)
    plgpu.barrier_arrive(buffers.kv.v_consumed.at[slot])
    return acc * jax.lax.broadcast_in_dim(shrink, acc.shape, [1]) + added, new_peak, total


def _merge(partial: jax.Array, lse: jax.Array, used: jax.Array) -> jax.Array:
    """partial [B, K, splits, D, rows], lse [B, K, splits, rows], of which row b used the first used[b] -> [B, K, D, rows]."""
    exists = jnp.arange(lse.shape[2])[None, None, :, None] < used[:, None, None, None]
    lse = jnp.where(exists, lse, MASKED)
    weights = jnp.where(exists, jnp.exp2(lse - lse.max(axis=2, keepdims=True)), 0.0)
    total = weights.sum(axis=2)
    summed = (jnp.where(exists[..., None, :], partial, 0.0) * weights[..., None, :]).sum(axis=2)
    return summed / jnp.where(total == 0.0, 1.0, total)[:, :, None]
