"""One layer's paged KV cache on a GPU: pages of K and of V, and scales where they are stored in 8 bits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from engine.kernels.attention import AttentionShape

MAX_ELEMENTS = 2**31 - 1
"""Of one array. The kernels address with 32 bits; an int8 array between 2 and 4 GiB would wrap without a word."""

QUANTISED_MAX = {"int8": 127.0, "float8_e4m3fn": 448.0}
"""Largest magnitude of each 8-bit type: what a vector's largest element is scaled to."""

KV_DTYPES = ("float32", "bfloat16", "float16", *QUANTISED_MAX)


class PagedCache(NamedTuple):
    """NHD pages: a token's heads lie together, so a write is one run of memory and a head's row is one burst.

    Scales are head-major within a page, because a reader wants one head's scales of many tokens.
    """

    k: jax.Array  # [P, S, K, D]
    v: jax.Array  # [P, S, K, D]
    k_scale: jax.Array | None = None  # f32 [P, K, S], of the vector k[p, s, k, :]; None for types that need none
    v_scale: jax.Array | None = None  # f32 [P, K, S]


def allocate(shape: AttentionShape, num_pages: int, kv_dtype: str) -> PagedCache:
    """A zeroed cache (a masked lane multiplies what it finds by 0, so what it finds must be finite).

    ValueError where an array would need more than 32 bits to address.
    """
    dims = (num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
    elements = num_pages * shape.page_size * shape.num_kv_heads * shape.head_dim
    if elements > MAX_ELEMENTS:
        raise ValueError(f"a KV array of {num_pages} pages has {elements} elements, over the {MAX_ELEMENTS} addressed: use fewer pages")
    k, v = (jnp.zeros(dims, kv_dtype) for _ in range(2))
    if kv_dtype not in QUANTISED_MAX:
        return PagedCache(k, v)
    scale = (num_pages, shape.num_kv_heads, shape.page_size)
    return PagedCache(k, v, jnp.zeros(scale, jnp.float32), jnp.zeros(scale, jnp.float32))
