"""The `pallas-triton` backend: one source for Ampere, Ada, Hopper and Blackwell.

JAX deprecates its Triton backend (0.11) in favour of Mosaic GPU, which serves Hopper only; the warning it gives when it
lowers is silenced by who starts the engine, not here.
"""

from dataclasses import dataclass

import jax

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.kv_write import kv_write
from engine.kernels.paged_cache import KV_DTYPES, PagedCache, allocate
from engine.kernels.paged_decode import paged_decode
from engine.kernels.paged_prefill import paged_prefill
from engine.kernels.query_tokens import by_query_tokens
from engine.kernels.tiling import decode_tiling, max_query_tokens, prefill_tiling

MIN_CAPABILITY = (8, 0)
MIN_FP8_CAPABILITY = (8, 9)
HEAD_DIMS = (64, 80, 96, 128, 256)
MAX_GROUP = 16
MIN_PAGE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PallasTritonBackend:
    """`capability` is the card's (major, minor). `interpret` runs the kernels in Python on any device, for tests."""

    capability: tuple[int, int]
    interpret: bool = False

    @property
    def name(self) -> str:
        return "pallas-triton"

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        if self.capability < MIN_CAPABILITY or kv_dtype not in KV_DTYPES:
            return False
        if kv_dtype.startswith("float8") and self.capability < MIN_FP8_CAPABILITY:
            return False
        whole_groups = shape.num_heads % shape.num_kv_heads == 0 and shape.num_heads // shape.num_kv_heads <= MAX_GROUP
        return whole_groups and shape.head_dim in HEAD_DIMS and shape.page_size % MIN_PAGE_TOKENS == 0

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> PagedCache:
        return allocate(shape, num_pages, kv_dtype)

    def write(self, shape: AttentionShape, cache: PagedCache, k: jax.Array, v: jax.Array, slots: jax.Array) -> PagedCache:
        return kv_write(cache, k, v, slots, interpret=self.interpret)

    def decode(self, shape: AttentionShape, cache: PagedCache, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        def attend(queries: jax.Array, seen: jax.Array) -> jax.Array:
            tiling = decode_tiling(shape, tables.shape[1], cache.k.dtype.itemsize, queries.shape[1])
            return paged_decode(shape, cache, queries, tables, seen, tiling=tiling, interpret=self.interpret)

        return by_query_tokens(attend, q, lengths, max_query_tokens(shape))

    def prefill(self, shape: AttentionShape, cache: PagedCache, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        return paged_prefill(
            shape, cache, q, layout, tiling=prefill_tiling(shape, cache.k.dtype.itemsize, self.capability), interpret=self.interpret
        )
