"""The `pallas-mosaic` backend: Hopper's own kernels, where its tensor cores and TMA do more than Triton asks of them.

fp8 KV, other head dims, odd groups and other cards fall back to `pallas-triton`. Stores are Triton's `kv_write`: nothing
in them is Hopper's.
"""

from dataclasses import dataclass

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.kv_write import kv_write
from engine.kernels.mosaic_decode import mosaic_decode, mosaic_decode_tiling, mosaic_max_query_tokens
from engine.kernels.mosaic_prefill import mosaic_prefill, mosaic_prefill_ring
from engine.kernels.paged_cache import PagedCache, allocate
from engine.kernels.query_tokens import by_query_tokens

CAPABILITY = (9, 0)
"""wgmma exists on this architecture only: not before, and not on Blackwell."""
HEAD_DIMS = {"bfloat16": (64, 128, 256), "int8": (64, 128)}
"""By KV type: beside stages of int8 a head dim of 256 leaves no room for the queries of a prefill."""
GROUPS = (1, 2, 4, 8, 16)
PAGE_TOKENS = (8, 16, 32, 64)
"""A page must be whole swizzle periods (8 rows) and divide a block of 64."""


@dataclass(frozen=True, slots=True)
class PallasMosaicBackend:
    """`capability` is the card's (major, minor). `interpret` simulates a card's threads and barriers, for tests."""

    capability: tuple[int, int]
    interpret: plgpu.InterpretGPUParams | None = None

    @property
    def name(self) -> str:
        return "pallas-mosaic"

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        group, rest = divmod(shape.num_heads, shape.num_kv_heads)
        if self.capability != CAPABILITY or kv_dtype not in HEAD_DIMS:
            return False
        return rest == 0 and group in GROUPS and shape.head_dim in HEAD_DIMS[kv_dtype] and shape.page_size in PAGE_TOKENS

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> PagedCache:
        return allocate(shape, num_pages, kv_dtype)

    def write(self, shape: AttentionShape, cache: PagedCache, k: jax.Array, v: jax.Array, slots: jax.Array) -> PagedCache:
        return kv_write(cache, k, v, slots, interpret=self.interpret is not None)

    def decode(self, shape: AttentionShape, cache: PagedCache, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        def attend(queries: jax.Array, seen: jax.Array) -> jax.Array:
            tiling = mosaic_decode_tiling(shape, tables.shape[1], cache.k.dtype.itemsize, queries.shape[1])
            return mosaic_decode(shape, cache, queries, tables, seen, tiling=tiling, interpret=self.interpret)

        return by_query_tokens(attend, q, lengths, mosaic_max_query_tokens(shape))

    def prefill(self, shape: AttentionShape, cache: PagedCache, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        return mosaic_prefill(shape, cache, q, layout, ring=mosaic_prefill_ring(shape, cache.k.dtype.itemsize), interpret=self.interpret)
