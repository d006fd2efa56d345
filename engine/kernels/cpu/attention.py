"""The `cpu-native` attention backend: `csrc/attention.h` behind the interface of `engine.kernels.attention`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.cpu.library import NativeLibrary

LANES = 16
"""Tokens of a tile of K."""

MAX_QUERY_TOKENS = 16
"""Query tokens of a row that one decode call takes."""


@dataclass(frozen=True, slots=True)
class CpuNativeAttention:
    """A layer's cache is one array [P, K, 2, S * D]: of each page and head first K, in tiles of 16 tokens with the
    tokens side by side ([S/16, D/2, 16, 2] in bf16, [S/16, D, 16] in f32), then V by token ([S, D]).

    A row's result does not depend on other rows, on the number of threads, or on how a prompt is cut into chunks: KV is
    weighed in blocks of 256 tokens counted from the sequence's start, merged in order.
    """

    library: NativeLibrary
    isa: str | None = None
    """Forces an instruction set (tests); by default the best that runs here."""

    @property
    def name(self) -> str:
        return "cpu-native"

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        return (
            kv_dtype in ("bfloat16", "float32")
            and shape.head_dim % LANES == 0
            and 16 <= shape.head_dim <= 256
            and shape.page_size % LANES == 0
            and shape.num_heads % shape.num_kv_heads == 0
        )

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> jax.Array:
        return jnp.zeros((num_pages, shape.num_kv_heads, 2, shape.page_size * shape.head_dim), jnp.dtype(kv_dtype))

    def write(self, shape: AttentionShape, cache: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("fairlane_kv_write", jax.ShapeDtypeStruct(cache.shape, cache.dtype), input_output_aliases={0: 0})
        return call(cache, k.astype(cache.dtype), v.astype(cache.dtype), slots, isa=self._level())

    def decode(self, shape: AttentionShape, cache: jax.Array, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        """Also takes q [B, Q, H, D], Q <= 16 query tokens a row: the last one sees `lengths` tokens."""
        queries = q if q.ndim == 4 else q[:, None]
        call = jax.ffi.ffi_call("fairlane_decode", jax.ShapeDtypeStruct(queries.shape, cache.dtype))
        out = call(cache, queries.astype(cache.dtype), tables, lengths, **self._attributes(shape))
        return out.reshape(q.shape).astype(q.dtype)

    def prefill(self, shape: AttentionShape, cache: jax.Array, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        call = jax.ffi.ffi_call("fairlane_prefill", jax.ShapeDtypeStruct(q.shape, cache.dtype))
        return call(cache, q.astype(cache.dtype), *layout, **self._attributes(shape)).astype(q.dtype)

    def _level(self) -> np.int32:
        return np.int32(self.library.level(self.isa))

    def _attributes(self, shape: AttentionShape) -> dict[str, np.generic]:
        return {
            "isa": self._level(),
            "scale": np.float32(shape.scale),
            "soft_cap": np.float32(shape.soft_cap or 0.0),
            "window": np.int32(shape.sliding_window or 0),
        }


def pack_cache(k_pages: jax.Array, v_pages: jax.Array) -> jax.Array:
    """Pages of K and V [P, S, K, D], as the `xla` backend holds them -> this backend's cache."""
    pages, size, heads, dim = k_pages.shape
    width = 2 if k_pages.dtype == jnp.bfloat16 else 1
    tiles = k_pages.reshape(pages, size // LANES, LANES, heads, dim // width, width).transpose(0, 3, 1, 4, 2, 5)
    k = tiles.reshape(pages, heads, size * dim)
    v = v_pages.transpose(0, 2, 1, 3).reshape(pages, heads, size * dim)
    return jnp.stack([k, v], axis=2)


def unpack_cache(shape: AttentionShape, cache: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The inverse of `pack_cache`."""
    pages, heads = cache.shape[:2]
    size, dim = shape.page_size, shape.head_dim
    width = 2 if cache.dtype == jnp.bfloat16 else 1
    tiles = cache[:, :, 0].reshape(pages, heads, size // LANES, dim // width, LANES, width)
    k = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(pages, size, heads, dim)
    return k, cache[:, :, 1].reshape(pages, heads, size, dim).transpose(0, 2, 1, 3)
