"""Random paged caches and what the twins see of them."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.kv_write import quantise
from engine.kernels.paged_cache import QUANTISED_MAX, PagedCache

TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "int8": 2e-2, "float8_e4m3fn": 2e-2}
"""Largest error over the largest answer; the queries are bf16 but for f32 caches."""


def query_dtype(kv_dtype: str) -> str:
    return "float32" if kv_dtype == "float32" else "bfloat16"


def random_cache(shape: AttentionShape, num_pages: int, kv_dtype: str, rng: np.random.Generator) -> PagedCache:
    """Every slot filled, as the write kernel would."""
    dims = (num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
    k, v = (jnp.asarray(rng.normal(size=dims), jnp.float32) for _ in range(2))
    if kv_dtype not in QUANTISED_MAX:
        return PagedCache(k.astype(kv_dtype), v.astype(kv_dtype))
    (k, k_scale), (v, v_scale) = quantise(k, kv_dtype), quantise(v, kv_dtype)
    return PagedCache(k, v, k_scale.transpose(0, 2, 1), v_scale.transpose(0, 2, 1))


def plain_pages(cache: PagedCache) -> tuple[np.ndarray, np.ndarray]:
    """K and V as the twins want them: f32 [P, S, K, D]."""

    def plain(pages: jnp.ndarray, scale: jnp.ndarray | None) -> np.ndarray:
        wide = np.asarray(pages.astype(jnp.float32))
        return wide if scale is None else wide * np.asarray(scale).transpose(0, 2, 1)[..., None]

    return plain(cache.k, cache.k_scale), plain(cache.v, cache.v_scale)


def random_tables(rows: int, pages_each: int, num_pages: int, rng: np.random.Generator) -> np.ndarray:
    """Pages in random order; rows may share pages, as they do under a common prefix."""
    return np.stack([rng.permutation(num_pages)[:pages_each] for _ in range(rows)]).astype(np.int32)


@dataclass(frozen=True)
class Chunk:
    context: int
    tokens: int


def layout_of(chunks: list[Chunk], tables: np.ndarray, num_rows: int, block_tokens: int = 16) -> PrefillLayout:
    """Chunks one behind another, each at a multiple of the query block."""
    starts, owners, row = [], [], 0
    for index, chunk in enumerate(chunks):
        starts.append(row)
        blocks = -(-chunk.tokens // block_tokens)
        owners += [index] * blocks
        row += blocks * block_tokens
    owners += [len(chunks) - 1] * (num_rows // block_tokens - len(owners))
    i32 = lambda values: jnp.asarray(values, jnp.int32)  # noqa: E731
    return PrefillLayout(
        tables=i32(tables),
        block_sequence=i32(owners),
        row_start=i32(starts),
        chunk_tokens=i32([c.tokens for c in chunks]),
        context_tokens=i32([c.context for c in chunks]),
    )


def relative_error(got: object, wanted: np.ndarray) -> float:
    """Largest error over the largest magnitude wanted; NaN anywhere is infinite."""
    error = np.abs(np.asarray(got, np.float32) - wanted).max(initial=0.0) / max(np.abs(wanted).max(initial=0.0), 1e-6)
    return float(error) if np.isfinite(error) else np.inf
