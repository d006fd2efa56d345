"""The `cpu-native` attention backend: `csrc/attention.h` behind the interface of `engine.kernels.attention`."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.cpu.library import NativeLibrary
from engine.kernels.xla_attention import PagedKv

LANES = 16
"""Tokens of a tile of K."""

MAX_QUERY_TOKENS = 16
"""Query tokens of a row that one decode call takes."""

SCALE_BYTES = 4
"""Of a token's K or V in one head, behind the int8 values of its page."""


@dataclass(frozen=True, slots=True)
class CpuNativeAttention:
    """A layer's cache is one array [P, K, 2, S * D]: of each page and head first K, in tiles of 16 tokens with the
    tokens side by side ([S/16, D/2, 16, 2] in bf16, [S/16, D, 16] in f32), then V by token ([S, D]). In int8 it is
    [P, K, 2, S * (D + 4)]: K in tiles [S/16, D/4, 16, 4] and V each end with the f32 scales of their S tokens.

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
            kv_dtype in ("bfloat16", "float32", "int8")
            and shape.head_dim % LANES == 0
            and 16 <= shape.head_dim <= 256
            and shape.page_size % LANES == 0
            and shape.num_heads % shape.num_kv_heads == 0
        )

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> jax.Array:
        width = shape.head_dim + (SCALE_BYTES if kv_dtype == "int8" else 0)
        return jnp.zeros((num_pages, shape.num_kv_heads, 2, shape.page_size * width), jnp.dtype(kv_dtype))

    def write(self, shape: AttentionShape, cache: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array) -> jax.Array:
        call = jax.ffi.ffi_call("fairlane_kv_write", jax.ShapeDtypeStruct(cache.shape, cache.dtype), input_output_aliases={0: 0})
        return call(cache, _as_rows(cache, k), _as_rows(cache, v), slots, isa=self._level())

    def decode(self, shape: AttentionShape, cache: jax.Array, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        """Also takes q [B, Q, H, D], Q <= 16 query tokens a row: the last one sees `lengths` tokens."""
        queries = _as_rows(cache, q if q.ndim == 4 else q[:, None])
        call = jax.ffi.ffi_call("fairlane_decode", jax.ShapeDtypeStruct(queries.shape, queries.dtype))
        out = call(cache, queries, tables, lengths, **self._attributes(shape))
        return out.reshape(q.shape).astype(q.dtype)

    def prefill(self, shape: AttentionShape, cache: jax.Array, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        queries = _as_rows(cache, q)
        call = jax.ffi.ffi_call("fairlane_prefill", jax.ShapeDtypeStruct(queries.shape, queries.dtype))
        return call(cache, queries, *layout, **self._attributes(shape)).astype(q.dtype)

    def _level(self) -> np.int32:
        return np.int32(self.library.level(self.isa))

    def _attributes(self, shape: AttentionShape) -> dict[str, np.generic]:
        return {
            "isa": self._level(),
            "scale": np.float32(shape.scale),
            "soft_cap": np.float32(shape.soft_cap or 0.0),
            "window": np.int32(shape.sliding_window or 0),
        }


def _as_rows(cache: jax.Array, rows: jax.Array) -> jax.Array:
    """q, k or v in a type that the kernels take beside this cache: its own, and beside int8 bf16 or f32."""
    if cache.dtype != jnp.int8:
        return rows.astype(cache.dtype)
    return rows if rows.dtype in (jnp.bfloat16, jnp.float32) else rows.astype(jnp.float32)


def _tile_dims(dtype: jnp.dtype) -> int:
    """Dimensions of a token that lie side by side in a tile of K: 4 bytes' worth."""
    return 4 // dtype.itemsize


def pack_cache(pages: PagedKv) -> jax.Array:
    """Pages as the `xla` backend holds them -> this backend's cache."""
    count, size, heads, dim = pages.k.shape
    width = _tile_dims(pages.k.dtype)
    tiles = pages.k.reshape(count, size // LANES, LANES, heads, dim // width, width).transpose(0, 3, 1, 4, 2, 5)
    k, v = tiles.reshape(count, heads, size * dim), pages.v.transpose(0, 2, 1, 3).reshape(count, heads, size * dim)
    if pages.k_scale is not None and pages.v_scale is not None:
        k = jnp.concatenate([k, _scale_bytes(pages.k_scale)], axis=-1)
        v = jnp.concatenate([v, _scale_bytes(pages.v_scale)], axis=-1)
    return jnp.stack([k, v], axis=2)


def unpack_cache(shape: AttentionShape, cache: jax.Array) -> PagedKv:
    """The inverse of `pack_cache`."""
    count, heads = cache.shape[:2]
    size, dim = shape.page_size, shape.head_dim
    width = _tile_dims(cache.dtype)
    values, scales = jnp.split(cache, [size * dim], axis=-1)
    tiles = values[:, :, 0].reshape(count, heads, size // LANES, dim // width, LANES, width)
    k = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(count, size, heads, dim)
    v = values[:, :, 1].reshape(count, heads, size, dim).transpose(0, 2, 1, 3)
    if cache.dtype != jnp.int8:
        return PagedKv(k, v)
    floats = lax.bitcast_convert_type(scales.reshape(count, heads, 2, size, SCALE_BYTES), jnp.float32)  # [P, K, 2, S]
    return PagedKv(k, v, floats[:, :, 0].transpose(0, 2, 1), floats[:, :, 1].transpose(0, 2, 1))


def _scale_bytes(scales: jax.Array) -> jax.Array:
    """f32 [P, S, K] -> int8 [P, K, 4 S]."""
    count, size, heads = scales.shape
    return lax.bitcast_convert_type(scales.transpose(0, 2, 1), jnp.int8).reshape(count, heads, SCALE_BYTES * size)
