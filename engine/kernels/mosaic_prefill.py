"""Ragged prefill attention for Hopper (Pallas Mosaic GPU), in the manner of FlashAttention-3 (Shah et al., 2024).

A program has 128 query rows of one chunk: two compute warpgroups of 64 (two of 128 spill), which share each block of K
and V that the producer warpgroup fetches by TMA. Rows are tokens x heads of a group, token by token.
Twin: `engine.kernels.reference.prefill`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.mosaic_blocks import KvStages, Ring, Source, block_scales, kv_stages, produce, product, swizzled
from engine.kernels.paged_cache import PagedCache
from engine.kernels.paged_prefill import tile_map
from engine.kernels.triton_blocks import MASKED, base_2_scores

COMPUTE_WARPGROUPS = 2
PRODUCER = COMPUTE_WARPGROUPS
ROWS = 64
"""Of one compute warpgroup: what one wgmma takes."""
TILE_ROWS = COMPUTE_WARPGROUPS * ROWS
STORE_ROWS = 8
"""Rows of one store: the swizzle's period, so that a tile's end can be stored without the next chunk's rows."""


def mosaic_prefill_ring(shape: AttentionShape, kv_bytes: int) -> Ring:
    """What shared memory holds beside 128 rows of queries."""
    if kv_bytes == 1:
        return Ring(block_tokens=64, stages=3, narrow_stages=2)
    return Ring(block_tokens=128 if shape.head_dim <= 128 else 64, stages=2)


class _Buffers(NamedTuple):
    """Shared memory and barriers of one program."""

    q: Any  # [2, 64, D] the queries, then the answer
    p: Any  # [2, 64, t] softmax weights, where they do not stay in registers
    q_loaded: Any  # [2]
    kv: KvStages


class _Tile(NamedTuple):
    """Scalars of one program."""

    first_row: Any  # of the packed queries
    position: Any  # of its first token
    stop: Any  # tokens that any of its rows may see
    begin: Any  # first block of K and V
    masked_from: Any  # blocks before this one are seen whole by every row
    end: Any
    rows: Any  # that belong to the chunk; 0: nothing to do


@functools.partial(jax.jit, static_argnames=("shape", "ring", "plain_dot", "interpret"))
def mosaic_prefill(
    shape: AttentionShape,
    cache: PagedCache,
    q: jax.Array,
    layout: PrefillLayout,
    *,
    ring: Ring,
    plain_dot: bool = False,
    interpret: plgpu.InterpretGPUParams | None = None,
) -> jax.Array:
    """As `paged_prefill`: q [T, H, D] bf16 -> [T, H, D]. The group's size must divide 64.

    `plain_dot` multiplies without wgmma, for the interpreter's race detector.
    """
    num_rows, _, head_dim = q.shape
    num_kv, group = shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
    tiles = tile_map(layout, num_rows, TILE_ROWS // group)
    packed = q.reshape(num_rows, num_kv, group, head_dim).transpose(1, 0, 2, 3).reshape(num_kv, num_rows * group, head_dim)
    packed = jnp.pad(packed, ((0, 0), (0, TILE_ROWS), (0, 0)))  # a chunk's last tile may reach beyond the end
    out = plgpu.kernel(
        functools.partial(_prefill_kernel, shape=shape, ring=ring, plain_dot=plain_dot, in_registers=interpret is None),
        out_type=jax.ShapeDtypeStruct(packed.shape, q.dtype),
        scratch_types=[
            _Buffers(
                q=swizzled(COMPUTE_WARPGROUPS, ROWS, head_dim),
                p=None if interpret is None else swizzled(COMPUTE_WARPGROUPS, ROWS, ring.block_tokens),
                q_loaded=plgpu.Barrier(num_barriers=COMPUTE_WARPGROUPS),
                kv=kv_stages(ring, cache, readers=COMPUTE_WARPGROUPS),
            )
        ],
        kernel_name="mosaic_prefill",
        grid=(tiles.sequence.shape[0], num_kv),
        grid_names=("tile", "kv_head"),
        num_threads=COMPUTE_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=interpret,
    )(packed, cache, layout.tables, *tiles, layout.row_start, layout.chunk_tokens, layout.context_tokens)
    out = out[:, : num_rows * group].reshape(num_kv, num_rows, group, head_dim).transpose(1, 0, 2, 3).reshape(q.shape)
    offset = jnp.arange(num_rows)[:, None] - layout.row_start[None, :]
    written = ((offset >= 0) & (offset < layout.chunk_tokens[None, :])).any(axis=1)
    return jnp.where(written[:, None, None], out, 0)


def _tile(shape: AttentionShape, block: int, first_token: Any, row_start: Any, chunk_tokens: Any, context_tokens: Any) -> _Tile:
    group = shape.num_heads // shape.num_kv_heads
    position = context_tokens + first_token
    tokens = jnp.minimum(chunk_tokens - first_token, TILE_ROWS // group)
    window = shape.sliding_window
    begin = 0 if window is None else jnp.maximum(position + 1 - window, 0) // block
    return _Tile(
        first_row=(row_start + first_token) * group,
        position=position,
        stop=position + tokens,
        begin=begin,
        masked_from=(position + 1) // block if window is None else begin,
        end=pl.cdiv(position + tokens, block),
        rows=tokens * group,
    )


def _prefill_kernel(
    q_ref: Any,  # [K, T * G + 128, D]
    cache: Any,  # PagedCache of refs
    tables_ref: Any,  # i32 [N, M]
    tile_sequence_ref: Any,  # i32 [tiles]
    tile_first_ref: Any,  # i32 [tiles]
    row_start_ref: Any,  # i32 [N]
    chunk_tokens_ref: Any,  # i32 [N]
    context_tokens_ref: Any,  # i32 [N]
    out_ref: Any,  # [K, T * G + 128, D]
    buffers: _Buffers,
    *,
    shape: AttentionShape,
    ring: Ring,
    plain_dot: bool,
    in_registers: bool,
) -> None:
    number, kv_head, warpgroup = (jax.lax.axis_index(name) for name in ("tile", "kv_head", "warpgroup"))
    sequence = tile_sequence_ref[number]

    @pl.when(sequence >= 0)
    def _() -> None:
        facts = (ref[sequence] for ref in (row_start_ref, chunk_tokens_ref, context_tokens_ref))
        tile = _tile(shape, ring.block_tokens, tile_first_ref[number], *facts)

        @pl.when(warpgroup == PRODUCER)
        def _() -> None:
            plgpu.set_max_registers(_registers(cache)[0], action="decrease")

            def page_of(token: jax.Array) -> jax.Array:
                return tables_ref[sequence, jnp.minimum(token, tile.stop - 1) // shape.page_size]

            produce(Source(cache, kv_head, tile.begin * ring.block_tokens, tile.end - tile.begin, page_of), buffers.kv)

        @pl.when(warpgroup < COMPUTE_WARPGROUPS)
        def _() -> None:
            plgpu.set_max_registers(_registers(cache)[1], action="increase")
            own = buffers._replace(q=buffers.q.at[warpgroup], p=None if in_registers else buffers.p.at[warpgroup])
            rows = pl.ds(pl.multiple_of(tile.first_row + warpgroup * ROWS, STORE_ROWS), ROWS)
            plgpu.copy_gmem_to_smem(q_ref.at[kv_head, rows], own.q, buffers.q_loaded.at[warpgroup])
            plgpu.barrier_wait(buffers.q_loaded.at[warpgroup])
            own.q[...] = _attend(shape, ring, own, tile, warpgroup, plain_dot).astype(own.q.dtype)
            plgpu.commit_smem()
            for start in range(0, ROWS, STORE_ROWS):

                @pl.when(warpgroup * ROWS + start < tile.rows)
                def _(start: int = start) -> None:
                    place = pl.multiple_of(tile.first_row + warpgroup * ROWS + start, STORE_ROWS)
                    plgpu.copy_smem_to_gmem(own.q.at[pl.ds(start, STORE_ROWS)], out_ref.at[kv_head, pl.ds(place, STORE_ROWS)])

            plgpu.wait_smem_to_gmem(0)


def _registers(cache: Any) -> tuple[int, int]:
    """A thread of the producer and of a compute warpgroup, 504 in all; one that widens 8-bit pages needs more than one that copies."""
    return (40, 232) if cache.k_scale is None else (104, 200)


def _attend(shape: AttentionShape, ring: Ring, own: _Buffers, tile: _Tile, warpgroup: Any, plain_dot: bool) -> jax.Array:
    """One warpgroup's answer, f32 [64, D]."""
    block, group = ring.block_tokens, shape.num_heads // shape.num_kv_heads

    def step(masked: bool, index: jax.Array, state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        acc, peak, total = state
        slot = jax.lax.rem(index - tile.begin, jnp.int32(ring.stages))
        plgpu.barrier_wait(own.kv.k_loaded.at[slot])
        scales = block_scales(own.kv, index - tile.begin, 0)
        scores = product(own.q, own.kv.k.at[slot].transpose((1, 0)), (ROWS, block), plain_dot)
        plgpu.barrier_arrive(own.kv.k_consumed.at[slot])
        if scales is not None:
            scores *= jax.lax.broadcast_in_dim(scales[0], scores.shape, [1])
        scores = base_2_scores(shape, scores)
        if masked:
            row = warpgroup * ROWS + jax.lax.broadcasted_iota(jnp.int32, (ROWS, block), 0)
            position = tile.position + row // group
            token = index * block + jax.lax.broadcasted_iota(jnp.int32, (ROWS, block), 1)
            visible = (token <= position) & (token < tile.stop)
            if shape.sliding_window is not None:
                visible &= token > position - shape.sliding_window
            scores = jnp.where(visible, scores, MASKED)
        new_peak = jnp.maximum(peak, scores.max(axis=1))
        shrink = jnp.exp2(peak - new_peak)
        weights = jnp.exp2(scores - jax.lax.broadcast_in_dim(new_peak, scores.shape, [0]))
        total = total * shrink + weights.sum(axis=1)
        if scales is not None:
            weights *= jax.lax.broadcast_in_dim(scales[1], weights.shape, [1])
        acc *= jax.lax.broadcast_in_dim(shrink, acc.shape, [0])
        acc = _add_values(own, slot, weights.astype(jnp.bfloat16), acc, plain_dot)
        plgpu.barrier_arrive(own.kv.v_consumed.at[slot])
        return acc, new_peak, total

    state = jnp.zeros((ROWS, shape.head_dim), jnp.float32), jnp.full((ROWS,), MASKED, jnp.float32), jnp.zeros((ROWS,), jnp.float32)
    state = jax.lax.fori_loop(tile.begin, tile.masked_from, functools.partial(step, False), state)
    acc, _, total = jax.lax.fori_loop(tile.masked_from, tile.end, functools.partial(step, True), state)
    return acc / jax.lax.broadcast_in_dim(total, acc.shape, [0])


def _add_values(own: _Buffers, slot: jax.Array, weights: jax.Array, acc: jax.Array, plain_dot: bool) -> jax.Array:
    """acc + weights @ V. On a card the weights stay in registers; the interpreter wants both operands in shared memory."""
    if own.p is None:

        def multiply(acc_ref: Any) -> None:
            plgpu.barrier_wait(own.kv.v_loaded.at[slot])
            plgpu.wgmma(acc_ref, weights, own.kv.v.at[slot])

        accumulator: Any = plgpu.WGMMAAccumulatorRef.init(acc)
        return pl.run_state(multiply)(accumulator)
    own.p[...] = weights
    plgpu.commit_smem()
    plgpu.barrier_wait(own.kv.v_loaded.at[slot])
    return acc + product(own.p, own.kv.v.at[slot], acc.shape, plain_dot)
