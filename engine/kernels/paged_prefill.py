"""Ragged prefill attention (Triton): the chunks of several sequences in one launch, over paged KV.

A chunk's own K and V are in the pages already, so prefix and chunk are one walk through the page table: first the blocks
that every row of the tile sees whole, without a mask, then the masked rest up to the diagonal.
Twin: `engine.kernels.reference.prefill`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.paged_cache import PagedCache
from engine.kernels.tiling import PrefillTiling
from engine.kernels.triton_blocks import Softmax, attend_block, fresh_softmax, load_block, normalised


class TileMap(NamedTuple):
    """Which part of which chunk each program takes. Programs without work have `sequence` -1."""

    sequence: jax.Array  # i32 [tiles]
    first_token: jax.Array  # i32 [tiles] within its chunk


def tile_map(layout: PrefillLayout, num_rows: int, query_tokens: int) -> TileMap:
    """Cuts every chunk into tiles of `query_tokens`. A few small operations, the same for all layers: once a step."""
    num_sequences = layout.chunk_tokens.shape[0]
    num_blocks = layout.block_sequence.shape[0]
    block_tokens = num_rows // num_blocks
    most = num_rows // query_tokens + min(num_sequences, num_blocks)  # a chunk's last tile may be partly empty
    num_tiles = min(most, num_rows // min(query_tokens, block_tokens))
    ends = jnp.cumsum(pl.cdiv(layout.chunk_tokens, query_tokens))
    tile = jnp.arange(num_tiles, dtype=jnp.int32)
    sequence = jnp.searchsorted(ends, tile, side="right", method="compare_all").astype(jnp.int32)
    inside = jnp.minimum(sequence, num_sequences - 1)
    before = jnp.where(inside > 0, ends[inside - 1], 0)
    return TileMap(jnp.where(tile < ends[-1], sequence, -1), ((tile - before) * query_tokens).astype(jnp.int32))


@functools.partial(jax.jit, static_argnames=("shape", "tiling", "interpret"))
def paged_prefill(
    shape: AttentionShape, cache: PagedCache, q: jax.Array, layout: PrefillLayout, *, tiling: PrefillTiling, interpret: bool = False
) -> jax.Array:
    """q [T, H, D] laid out as `layout` says -> [T, H, D]; rows that belong to no chunk answer 0.

    Token i of a chunk stands at `context_tokens + i` and sees every position up to its own, or the last
    `sliding_window` of them.
    """
    num_rows, num_heads, head_dim = q.shape
    assert (num_heads, head_dim) == (shape.num_heads, shape.head_dim), f"q is {q.shape}, the shape says {shape}"
    tiles = tile_map(layout, num_rows, tiling.query_tokens)
    return pl.pallas_call(
        functools.partial(_prefill_kernel, shape=shape, tiling=tiling),
        grid=(tiles.sequence.shape[0], shape.num_kv_heads),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=tiling.num_warps, num_stages=tiling.num_stages),
        interpret=interpret,
        name="paged_prefill",
    )(jnp.zeros_like(q), q, cache, layout.tables, tiles, layout.row_start, layout.chunk_tokens, layout.context_tokens)


def _prefill_kernel(
    zeros_ref: Any,  # [T, H, D] becomes the output
    q_ref: Any,  # [T, H, D]
    cache: Any,  # PagedCache of refs
    tables_ref: Any,  # i32 [N, M]
    tiles: Any,  # TileMap of refs
    row_start_ref: Any,  # i32 [N]
    chunk_tokens_ref: Any,  # i32 [N]
    context_tokens_ref: Any,  # i32 [N]
    out_ref: Any,  # [T, H, D]
    *,
    shape: AttentionShape,
    tiling: PrefillTiling,
) -> None:
    del zeros_ref
    tile, kv_head = pl.program_id(0), pl.program_id(1)
    sequence, first_token = tiles.sequence[tile], tiles.first_token[tile]

    @pl.when(sequence >= 0)
    def _() -> None:
        group, block = shape.num_heads // shape.num_kv_heads, tiling.block_tokens
        chunk_tokens, context_tokens = chunk_tokens_ref[sequence], context_tokens_ref[sequence]
        row = jnp.arange(tiling.rows)
        token, head = first_token + row // group, kv_head * group + row % group
        exists = (row < tiling.query_tokens * group) & (token < chunk_tokens)
        position = context_tokens + token
        # dead lanes point outside: the interpreter's masked store would clobber
        place = jnp.where(exists, row_start_ref[sequence] + token, q_ref.shape[0])
        dims = jnp.arange(tiling.padded_head_dim)
        lanes = exists[:, None] & (dims < shape.head_dim)[None, :]
        q = plgpu.load(q_ref.at[place[:, None], head[:, None], dims[None, :]], mask=lanes, other=jnp.zeros((), q_ref.dtype))

        def whole(index: jax.Array, state: Softmax) -> Softmax:
            tokens = index * block + jnp.arange(block)
            return attend_block(shape, q, load_block(cache, tables_ref, sequence, kv_head, tokens, None, dims), None, state)

        def masked(index: jax.Array, state: Softmax) -> Softmax:
            tokens = index * block + jnp.arange(block)
            kv = load_block(cache, tables_ref, sequence, kv_head, tokens, tokens < stop, dims)
            visible = tokens[None, :] <= position[:, None]
            if shape.sliding_window is not None:
                visible &= tokens[None, :] > position[:, None] - shape.sliding_window
            return attend_block(shape, q, kv, visible, state)

        stop = context_tokens + jnp.minimum(first_token + tiling.query_tokens, chunk_tokens)
        state = fresh_softmax(tiling.rows, tiling.padded_head_dim)
        if shape.sliding_window is None:
            begin = (context_tokens + first_token + 1) // block
            state = jax.lax.fori_loop(0, begin, whole, state)
        else:
            begin = jnp.maximum(context_tokens + first_token + 1 - shape.sliding_window, 0) // block
        state = jax.lax.fori_loop(begin, pl.cdiv(stop, block), masked, state)
        plgpu.store(out_ref.at[place[:, None], head[:, None], dims[None, :]], normalised(state).astype(out_ref.dtype), mask=lanes)
