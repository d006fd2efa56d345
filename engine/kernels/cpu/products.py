"""Weights as the native kernels read them, and products with them. Layouts are those of `csrc/kernels.h`.

Outputs are stored in groups of 64 (block formats: 16), so a product streams through memory once, front to back. int8 weights carry a scale
an output; `q8` and `q4` are GGUF's blocks of 32 (Q8_0, Q4_1, Q4_0) re-ordered, never expanded to a full matrix.
Activations meet bf16 weights as bf16 (f32 sums), all others as int8 with a scale a row or a block. An output is summed
over `in` in one order however many rows there are: a row's result does not depend on its neighbours.
"""

from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

GROUP = 64
"""Outputs are padded to a multiple of it."""

BLOCK_GROUP = 16
"""Outputs that lie side by side in the block formats."""

BLOCK = 32

type Kind = Literal["bf16", "int8", "q8", "q4"]

KIND_CODES: dict[Kind, int] = {"bf16": 0, "int8": 1, "q8": 2, "q4": 3}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NativeWeight:
    """A matrix [out, in] packed for `native_product`; outputs are padded to a multiple of 64."""

    data: jax.Array
    scales: jax.Array
    kind: Kind = field(metadata={"static": True})
    out_features: int = field(metadata={"static": True})
    in_features: int = field(metadata={"static": True})
    isa_level: int = field(metadata={"static": True})

    def product(self, x: jax.Array, live: jax.Array | None) -> jax.Array:
        """x [T, in] -> f32 [T, out]: what `engine.kernels.products` asks of a weight that multiplies itself."""
        return native_product(x, self, out_dtype=jnp.float32, live=live)

    def rows(self, indices: jax.Array) -> jax.Array:
        return take_rows(self, indices)

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features


def native_product(x: jax.Array, weight: NativeWeight, *, out_dtype: DTypeLike | None = None, live: jax.Array | None = None) -> jax.Array:
    """x [T, in] times a weight [out, in] -> [T, out] in bf16 or f32; x is read as bf16. Zeros in rows that are not `live` (bool [T]),
    which cost nothing; where none is, nor does the weight."""
    dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    call = jax.ffi.ffi_call("fairlane_product", jax.ShapeDtypeStruct((x.shape[0], weight.out_features), dtype))
    attributes = {"isa": np.int32(weight.isa_level), "kind": np.int32(KIND_CODES[weight.kind])}
    flags = jnp.zeros(0, bool) if live is None else live
    return call(x.astype(jnp.bfloat16), weight.data, weight.scales, flags, **attributes)


def take_rows(weight: NativeWeight, rows: jax.Array) -> jax.Array:
    """Rows i32 [T] of the matrix, bf16 [T, in]: how a tied head serves as the embedding. Ids are clamped."""
    rows = jnp.clip(rows, 0, weight.out_features - 1)
    size = GROUP if weight.kind in ("bf16", "int8") else BLOCK_GROUP
    group, lane = rows // size, rows % size
    count, width = rows.shape[0], weight.in_features
    if weight.kind == "bf16":
        return weight.data[group, :, lane].reshape(count, width)
    if weight.kind == "int8":
        values = weight.data[group, :, lane].astype(jnp.float32).reshape(count, width) - 128
        return (values * weight.scales[group, lane][:, None]).astype(jnp.bfloat16)
    packed = weight.data[group, :, :, lane].reshape(count, width // BLOCK, -1)
    scale = weight.scales[group, :, 0, lane].astype(jnp.float32)[..., None]
    if weight.kind == "q8":
        return ((packed.astype(jnp.float32) - 128) * scale).reshape(count, width).astype(jnp.bfloat16)
    minimum = weight.scales[group, :, 1, lane].astype(jnp.float32)[..., None]
    values = jnp.concatenate([packed & 15, packed >> 4], axis=-1).astype(jnp.float32)
    return (values * scale + minimum).reshape(count, width).astype(jnp.bfloat16)


def _grouped(matrix: np.ndarray, group: int) -> np.ndarray:
    """Rows of bytes [out, 4 n] -> u8 [out/group, n, group, 4], missing outputs zero. Every kind's lane is four bytes."""
    words = np.ascontiguousarray(matrix).view(np.uint32)
    width = words.shape[1]
    lanes = np.ascontiguousarray(_padded(words).reshape(-1, group, width).transpose(0, 2, 1))
    return lanes.view(np.uint8).reshape(-1, width, group, 4)


def _padded(per_output: np.ndarray) -> np.ndarray:
    """Zeros behind the last output, up to a multiple of 64."""
    missing = -per_output.shape[0] % GROUP
    return np.pad(per_output, [(0, missing)] + [(0, 0)] * (per_output.ndim - 1)) if missing else per_output


def pack_bf16(matrix: np.ndarray, isa_level: int) -> NativeWeight:
    """A bf16 matrix [out, in], `in` even."""
    data = _grouped(np.asarray(matrix, dtype=jnp.bfloat16).view(np.uint8), GROUP).view(jnp.bfloat16)
    out, width = matrix.shape
    return NativeWeight(jnp.asarray(data), jnp.zeros((0,), jnp.float32), "bf16", out, width, isa_level)


def pack_int8(matrix: np.ndarray, isa_level: int) -> NativeWeight:
    """Quantises a real matrix [out, in] (`in` a multiple of 16) symmetrically, one scale an output."""
    wide = np.asarray(matrix, dtype=np.float32)
    scale = np.abs(wide).max(axis=1) / 127
    values = np.rint(wide / np.where(scale > 0, scale, 1)[:, None])
    data = _grouped((values + 128).astype(np.uint8), GROUP)
    out, width = matrix.shape
    return NativeWeight(jnp.asarray(data), jnp.asarray(_padded(scale).reshape(-1, GROUP)), "int8", out, width, isa_level)


def pack_q8_0(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q8_0 rows, u8 [out, in/32 * 34]: an f16 scale and 32 int8 a block."""
    out = blocks.shape[0]
    split = blocks.reshape(out, -1, 34)
    scale = np.ascontiguousarray(split[..., :2]).view(np.float16)
    values = split[..., 2:].reshape(out, -1) ^ np.uint8(128)
    return _pack_blocks("q8", values, scale, isa_level)


def pack_q4_1(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q4_1 rows, u8 [out, in/32 * 20]: an f16 scale d and minimum m, then nibbles: w = d q + m."""
    split = blocks.reshape(blocks.shape[0], -1, 20)
    scales = np.ascontiguousarray(split[..., :4]).view(np.float16)
    return _pack_blocks("q4", split[..., 4:].reshape(len(split), -1), scales, isa_level)


def pack_q4_0(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q4_0 rows, u8 [out, in/32 * 18]: an f16 scale d, then nibbles: w = d (q - 8)."""
    split = blocks.reshape(blocks.shape[0], -1, 18)
    scale = np.ascontiguousarray(split[..., :2]).view(np.float16)
    scales = np.concatenate([scale, scale * np.float16(-8)], axis=2)
    return _pack_blocks("q4", split[..., 2:].reshape(len(split), -1), scales, isa_level)


def _pack_blocks(kind: Kind, values: np.ndarray, scales: np.ndarray, isa_level: int) -> NativeWeight:
    """values u8 [out, bytes], scales f16 [out, blocks, 1 or 2] -> [out/16, blocks, quads, 16, 4] and [out/16, blocks, 1 or 2, 16]."""
    out, num_blocks, _ = scales.shape
    data = _grouped(values, BLOCK_GROUP).reshape(-1, num_blocks, values.shape[1] // num_blocks // 4, BLOCK_GROUP, 4)
    lanes = _padded(scales).reshape(-1, BLOCK_GROUP, num_blocks, scales.shape[2]).transpose(0, 2, 3, 1)
    return NativeWeight(jnp.asarray(data), jnp.asarray(np.ascontiguousarray(lanes)), kind, out, num_blocks * BLOCK, isa_level)
