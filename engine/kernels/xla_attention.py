"""Paged attention in plain XLA: runs everywhere, and is what the other backends fall back to.

Keys and values are visited in blocks of `KV_BLOCK_TOKENS` with the running softmax of FlashAttention (Dao et al., 2022),
and every loop has a run-time bound, so nobody pays for the widest page table. Two facts of XLA's CPU backend shape it:
* products batched over rows *and* heads are slow, so decode puts all heads in one product: the query becomes block
  diagonal, [H, K * D], with zeros where another head's keys stand (K times the arithmetic, about half the time);
* loops inside `lax.map` compile once, while unrolled ones multiply the compile time.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from engine.kernels.attention import AttentionShape, LayerCache, PrefillLayout
from engine.kernels.paged_cache import QUANTISED_MAX

KV_BLOCK_TOKENS = 256
ROW_GROUP = 8
"""Decode rows that share a loop bound; they come sorted by length."""
QUERY_TILE_TOKENS = 128
MASKED = -1e30
"""Stands for minus infinity without its NaNs in differences."""

SMALLEST = 1e-30
"""A vector whose largest magnitude is below it is stored as zeros: neither its scale nor the inverse may leave the floats."""


class PagedKv(NamedTuple):
    """One layer's cache, page id first. Values of 8 bits have one scale a token and head; other types have none."""

    k: jax.Array  # [P, S, K, D]
    v: jax.Array  # [P, S, K, D]
    k_scale: jax.Array | None = None  # f32 [P, S, K]
    v_scale: jax.Array | None = None  # f32 [P, S, K]


@dataclass(frozen=True, slots=True)
class XlaAttention:
    """`AttentionBackend` made of jax.numpy."""

    name: str = "xla"

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        return kv_dtype in ("float32", "bfloat16", *QUANTISED_MAX) and KV_BLOCK_TOKENS % shape.page_size == 0

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> PagedKv:
        dims = (num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
        pages = PagedKv(jnp.zeros(dims, kv_dtype), jnp.zeros(dims, kv_dtype))
        return pages._replace(k_scale=jnp.zeros(dims[:3]), v_scale=jnp.zeros(dims[:3])) if kv_dtype in QUANTISED_MAX else pages

    def write(self, shape: AttentionShape, cache: LayerCache, k: jax.Array, v: jax.Array, slots: jax.Array) -> PagedKv:
        num_slots = cache.k.shape[0] * shape.page_size
        beyond = num_slots + jnp.arange(slots.shape[0], dtype=slots.dtype)  # dropped, and unique as promised
        where = jnp.where(slots < 0, beyond, slots)

        def put(pages: jax.Array, rows: jax.Array) -> jax.Array:
            flat = pages.reshape(num_slots, -1)
            flat = flat.at[where].set(rows.reshape(rows.shape[0], -1).astype(flat.dtype), mode="drop", unique_indices=True)
            return flat.reshape(pages.shape)

        if cache.k_scale is None or cache.v_scale is None:
            return PagedKv(put(cache.k, k), put(cache.v, v))
        (k, k_scale), (v, v_scale) = quantize_rows(k, cache.k.dtype), quantize_rows(v, cache.v.dtype)
        return PagedKv(put(cache.k, k), put(cache.v, v), put(cache.k_scale, k_scale), put(cache.v_scale, v_scale))

    def decode(self, shape: AttentionShape, cache: LayerCache, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        num_rows = q.shape[0]
        queries = q if q.ndim == 4 else q[:, None]
        tables = _whole_blocks(tables, shape.page_size)
        attend = functools.partial(_decode_group, shape, cache)
        if num_rows <= ROW_GROUP:
            return attend((queries, tables, lengths)).reshape(q.shape)
        padding = -num_rows % ROW_GROUP
        rows = [jnp.pad(a, [(0, padding)] + [(0, 0)] * (a.ndim - 1)) for a in (queries, tables, lengths)]
        out = lax.map(attend, tuple(a.reshape(-1, ROW_GROUP, *a.shape[1:]) for a in rows))
        return out.reshape(-1, *q.shape[1:])[:num_rows]

    def prefill(self, shape: AttentionShape, cache: LayerCache, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        """Sequences must lie in the rows in order: a tile may write garbage behind its chunk, which the next one overwrites."""
        num_rows = q.shape[0]
        tile = min(QUERY_TILE_TOKENS, num_rows)
        queries = jnp.pad(q, ((0, tile), (0, 0), (0, 0)))
        tables = _whole_blocks(layout.tables, shape.page_size)

        def attend_sequence(sequence: jax.Array, out: jax.Array) -> jax.Array:
            start, tokens, context = layout.row_start[sequence], layout.chunk_tokens[sequence], layout.context_tokens[sequence]

            def attend_tile(index: jax.Array, out: jax.Array) -> jax.Array:
                row = start + index * tile
                answer = _prefill_tile(
                    shape,
                    cache,
                    lax.dynamic_slice_in_dim(queries, row, tile),
                    lax.dynamic_index_in_dim(tables, sequence, keepdims=False),
                    context + index * tile,
                    context + tokens,
                )
                return lax.dynamic_update_slice_in_dim(out, answer, row, axis=0)

            return lax.fori_loop(0, -(-tokens // tile), attend_tile, out)

        out = lax.fori_loop(0, layout.chunk_tokens.shape[0], attend_sequence, jnp.zeros_like(queries))
        return out[:num_rows]


def quantize_rows(x: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """x [..., D] -> [..., D] of 8 bits and f32 scales [...]; where a value is not finite the scale is NaN."""
    wide, largest = x.astype(jnp.float32), QUANTISED_MAX[jnp.dtype(dtype).name]
    highest = jnp.abs(wide).max(axis=-1)
    finite = jnp.isfinite(wide).all(axis=-1)
    used = finite & (highest >= SMALLEST)
    inverse = jnp.where(used, largest / jnp.where(used, highest, 1.0), 0.0)
    scaled = jnp.clip(jnp.where(used[..., None], wide * inverse[..., None], 0.0), -largest, largest)
    values = (jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype)
    return values, jnp.where(used, highest / largest, jnp.where(finite, 0.0, jnp.nan))


def _whole_blocks(tables: jax.Array, page_size: int) -> jax.Array:
    """Tables padded to a multiple of the pages in a KV block, so that no block's slice is clamped back."""
    return jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % (KV_BLOCK_TOKENS // page_size))))


def _compute_dtype(cache: PagedKv, q: jax.Array) -> jnp.dtype:
    """Type of the products: the cache's own, or beside 8 bits the activations'."""
    return cache.k.dtype if cache.k_scale is None else q.dtype


class _Block(NamedTuple):
    """K and V of 256 tokens in the products' type. Values of 8 bits are exact in it, so their scales are left for scores and weights,
    which are K * D / H times fewer."""

    k: jax.Array  # [..., 256, K * D]
    v: jax.Array  # [..., 256, K * D]
    k_scale: jax.Array | None  # f32 [..., K, 256]
    v_scale: jax.Array | None  # f32 [..., K, 256]


def _read_block(shape: AttentionShape, cache: PagedKv, table: jax.Array, block: jax.Array, dtype: jnp.dtype) -> _Block:
    """KV block number `block` of one table [M] or several [R, M]."""
    block_pages = KV_BLOCK_TOKENS // shape.page_size
    ids = lax.dynamic_slice_in_dim(table, block * block_pages, block_pages, axis=-1)

    def take(pages: jax.Array) -> jax.Array:
        taken = jnp.take(pages.reshape(pages.shape[0], -1), ids, axis=0, mode="clip")
        return taken.reshape(*ids.shape[:-1], KV_BLOCK_TOKENS, -1)

    k, v = take(cache.k).astype(dtype), take(cache.v).astype(dtype)
    if cache.k_scale is None or cache.v_scale is None:
        return _Block(k, v, None, None)
    return _Block(k, v, take(cache.k_scale).swapaxes(-1, -2), take(cache.v_scale).swapaxes(-1, -2))


class _Softmax(NamedTuple):
    """A running softmax: largest score, sum of weights, weighted sum of values."""

    peak: jax.Array  # f32 [..., 1]
    total: jax.Array  # f32 [..., 1]
    values: jax.Array  # f32 [..., width]


type _Weigh = Callable[[jax.Array], jax.Array]
type _Read = Callable[[jax.Array], tuple[jax.Array, jax.Array, _Weigh]]


def _run_blocks(first: jax.Array | int, end: jax.Array, dims: tuple[int, ...], width: int, read: _Read) -> jax.Array:
    """Softmax-weighted values over blocks first..end-1: `read(block)` gives scores and visible [*dims, 256] and p -> p @ V."""

    def step(block: jax.Array, state: _Softmax) -> _Softmax:
        scores, visible, weigh = read(block)
        scores = jnp.where(visible, scores, MASKED)
        peak = jnp.maximum(state.peak, scores.max(axis=-1, keepdims=True))
        weights = jnp.where(visible, jnp.exp(scores - peak), 0.0)
        kept = jnp.exp(state.peak - peak)
        return _Softmax(peak, state.total * kept + weights.sum(axis=-1, keepdims=True), state.values * kept + weigh(weights))

    start = _Softmax(jnp.full((*dims, 1), MASKED), jnp.zeros((*dims, 1)), jnp.zeros((*dims, width)))
    done = lax.fori_loop(first, end, step, start)
    return done.values / jnp.maximum(done.total, 1e-30)


def _capped(shape: AttentionShape, products: jax.Array) -> jax.Array:
    scores = products * shape.scale
    return scores if shape.soft_cap is None else shape.soft_cap * jnp.tanh(scores / shape.soft_cap)


def _decode_group(shape: AttentionShape, cache: PagedKv, rows: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
    """q [R, Q, H, D], tables [R, M], lengths [R] -> [R, Q, H, D]; the loop runs to the longest of the R rows."""
    q, tables, lengths = rows
    num_rows, num_queries = q.shape[:2]
    num_kv, dim = shape.num_kv_heads, shape.head_dim
    dtype = _compute_dtype(cache, q)
    own = jnp.eye(num_kv, dtype=dtype)[:, None, :, None]
    grouped = q.astype(dtype).reshape(num_rows, num_queries, num_kv, -1, 1, dim)
    diagonal = (grouped * own).reshape(num_rows, num_queries * shape.num_heads, num_kv * dim)
    seen = lengths[:, None] - jnp.arange(num_queries - 1, -1, -1)  # tokens that each query sees; [R, Q]
    window = shape.sliding_window
    oldest = jnp.zeros_like(seen) if window is None else jnp.maximum(seen - window, 0)
    dims = (num_rows, num_queries, num_kv, shape.num_heads // num_kv)

    def read(block: jax.Array) -> tuple[jax.Array, jax.Array, _Weigh]:
        positions = block * KV_BLOCK_TOKENS + jnp.arange(KV_BLOCK_TOKENS)
        visible = (positions < seen[:, :, None]) & (positions >= oldest[:, :, None])  # [R, Q, 256]
        read_by_any = visible.any(axis=1)  # what nobody reads may be a stale NaN, and NaN times 0 is NaN
        k, v, k_scale, v_scale = _read_block(shape, cache, tables, block, dtype)
        products = lax.dot_general(diagonal, k, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32).reshape(*dims, -1)
        if k_scale is not None:
            products *= k_scale[:, None, :, None]

        def weigh(weights: jax.Array) -> jax.Array:
            if v_scale is None:
                values = jnp.where(read_by_any[:, :, None], v, 0)
            else:
                values, weights = v, weights * jnp.where(read_by_any[:, None], v_scale, 0.0)[:, None, :, None]
            flat = weights.astype(dtype).reshape(num_rows, -1, KV_BLOCK_TOKENS)
            summed = lax.dot_general(flat, values, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)
            return summed.reshape(*dims, num_kv * dim)

        return _capped(shape, products), visible[:, :, None, None], weigh

    first = jnp.min(jnp.where(lengths > 0, oldest[:, 0], jnp.max(lengths))) // KV_BLOCK_TOKENS
    end = -(-jnp.max(lengths) // KV_BLOCK_TOKENS)
    out = _run_blocks(first, end, dims, num_kv * dim, read)
    spread = out.reshape(*dims, num_kv, dim)
    return (spread * own.astype(jnp.float32)).sum(axis=4).reshape(q.shape).astype(q.dtype)


def _prefill_tile(
    shape: AttentionShape, cache: PagedKv, q: jax.Array, table: jax.Array, first_position: jax.Array, end_position: jax.Array
) -> jax.Array:
    """q [tile, H, D] of one sequence at first_position..; the chunk ends before end_position -> [tile, H, D]."""
    tile, num_kv, dim = q.shape[0], shape.num_kv_heads, shape.head_dim
    group = shape.num_heads // num_kv
    dtype = _compute_dtype(cache, q)
    heads_first = q.astype(dtype).reshape(tile, num_kv, group, dim).transpose(1, 2, 0, 3).reshape(num_kv, group * tile, dim)
    q_positions = first_position + jnp.arange(tile)
    last = jnp.minimum(first_position + tile, end_position)
    window = shape.sliding_window

    def read(block: jax.Array) -> tuple[jax.Array, jax.Array, _Weigh]:
        positions = block * KV_BLOCK_TOKENS + jnp.arange(KV_BLOCK_TOKENS)
        distance = q_positions[:, None] - positions[None, :]
        visible = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        read_by_any = positions < last
        k, v, k_scale, v_scale = _read_block(shape, cache, table, block, dtype)
        k, v = k.reshape(-1, num_kv, dim), v.reshape(-1, num_kv, dim)
        products = lax.dot_general(heads_first, k, (((2,), (2,)), ((0,), (1,))), preferred_element_type=jnp.float32)
        products = products.reshape(num_kv, group, tile, -1)
        if k_scale is not None:
            products *= k_scale[:, None, None]

        def weigh(weights: jax.Array) -> jax.Array:
            if v_scale is None:
                values = jnp.where(read_by_any[:, None, None], v, 0)
            else:
                values, weights = v, weights * jnp.where(read_by_any, v_scale, 0.0)[:, None, None]
            rows = weights.astype(dtype).reshape(num_kv, group * tile, KV_BLOCK_TOKENS)
            summed = lax.dot_general(rows, values, (((2,), (0,)), ((0,), (1,))), preferred_element_type=jnp.float32)
            return summed.reshape(num_kv, group, tile, dim)

        return _capped(shape, products), visible[None, None], weigh

    first = 0 if window is None else jnp.maximum(first_position - window + 1, 0) // KV_BLOCK_TOKENS
    out = _run_blocks(first, -(-last // KV_BLOCK_TOKENS), (num_kv, group, tile), dim, read)
    return out.transpose(2, 0, 1, 3).reshape(q.shape).astype(q.dtype)
