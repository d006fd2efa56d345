"""What the Triton decode and prefill kernels share: fetching a block of paged K and V, and one online-softmax step.

Tiles are powers of two (Triton's rule); a head dim that is not is padded with masked lanes. Every index is an array,
because the interpreter takes no mix of arrays and slices.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from engine.kernels.attention import AttentionShape

LOG2_E = math.log2(math.e)
MASKED = -1e30
"""Score of a key that is not seen. Finite: infinity minus infinity is no number."""


class KvBlock(NamedTuple):
    """`t` consecutive tokens of one KV head, in registers."""

    k: jax.Array  # [t, D]
    v: jax.Array  # [t, D]
    k_scale: jax.Array | None  # f32 [t]
    v_scale: jax.Array | None  # f32 [t]


class Softmax(NamedTuple):
    """Running state of a tile's rows (Milakov & Gimelshein, 2018), in base 2."""

    acc: jax.Array  # f32 [rows, D] sum of weights * v
    peak: jax.Array  # f32 [rows] largest score so far
    total: jax.Array  # f32 [rows] sum of weights


def fresh_softmax(rows: int, head_dim: int) -> Softmax:
    return Softmax(jnp.zeros((rows, head_dim), jnp.float32), jnp.full((rows,), MASKED, jnp.float32), jnp.zeros((rows,), jnp.float32))


def load_block(
    cache: Any, tables_ref: Any, sequence: jax.Array, head: jax.Array, tokens: jax.Array, live: jax.Array | None, dims: jax.Array
) -> KvBlock:
    """Gathers `tokens` i32 [t] of `sequence` through its page table. `live` [t]: which exist (None: all do); `dims` i32 [D]."""
    _, page_size, _, head_dim = cache.k.shape
    page = plgpu.load(tables_ref.at[sequence, tokens // page_size], mask=live, other=None if live is None else 0)
    offset = tokens % page_size
    lanes = _both(live, None if dims.shape[0] == head_dim else dims < head_dim)
    at = (page[:, None], offset[:, None], head, dims[None, :])
    other = None if lanes is None else jnp.zeros((), cache.k.dtype)
    k, v = (plgpu.load(ref.at[at], mask=lanes, other=other) for ref in (cache.k, cache.v))
    if cache.k_scale is None:
        return KvBlock(k, v, None, None)
    k_scale, v_scale = (
        plgpu.load(ref.at[page, head, offset], mask=live, other=None if live is None else 0.0) for ref in (cache.k_scale, cache.v_scale)
    )
    return KvBlock(k, v, k_scale, v_scale)


def _both(rows: jax.Array | None, columns: jax.Array | None) -> jax.Array | None:
    """The mask of a tile from those of its rows and columns; None is all."""
    if rows is None:
        return None if columns is None else columns[None, :]
    return rows[:, None] if columns is None else rows[:, None] & columns[None, :]


def base_2_scores(shape: AttentionShape, products: jax.Array) -> jax.Array:
    """q·k scaled, capped, and in the units of exp2."""
    if shape.soft_cap is None:
        return products * (shape.scale * LOG2_E)
    return jnp.tanh(products * (shape.scale / shape.soft_cap)) * (shape.soft_cap * LOG2_E)


def attend_block(shape: AttentionShape, q: jax.Array, block: KvBlock, visible: jax.Array | None, state: Softmax) -> Softmax:
    """One step of flash attention. q [rows, D]; `visible` [rows, t] (None: every key is seen by every row)."""
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = plgpu.dot(q, block.k.astype(q.dtype).T, precision=precision)
    if block.k_scale is not None:
        scores *= block.k_scale[None, :]
    scores = base_2_scores(shape, scores)
    if visible is not None:
        scores = jnp.where(visible, scores, MASKED)
    peak = jnp.maximum(state.peak, jnp.max(scores, axis=1))
    shrink = jnp.exp2(state.peak - peak)
    weights = jnp.exp2(scores - peak[:, None])
    total = state.total * shrink + jnp.sum(weights, axis=1)
    if block.v_scale is not None:
        weights *= block.v_scale[None, :]
    added = plgpu.dot(weights.astype(q.dtype), block.v.astype(q.dtype), precision=precision)
    return Softmax(state.acc * shrink[:, None] + added, peak, total)


def normalised(state: Softmax) -> jax.Array:
    """acc / total, and 0 for a row that saw nothing."""
    return state.acc / jnp.where(state.total == 0.0, 1.0, state.total)[:, None]
