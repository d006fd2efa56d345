"""Weights as the native kernels read them, and products with them. Layouts are those of `csrc/kernels.h`.

Outputs are stored in groups of 64, so a product streams through memory once, front to back. int8 weights carry a scale
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
BLOCK = 32

type Kind = Literal["bf16", "int8", "q8", "q4"]

KIND_CODES: dict[Kind, int] = {"bf16": 0, "int8": 1, "q8": 2, "q4": 3}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NativeWeight:
    """A matrix [out, in] packed for `native_product`; `data` is padded to groups of 64 outputs."""

    data: jax.Array
    scales: jax.Array
    kind: Kind = field(metadata={"static": True})
    out_features: int = field(metadata={"static": True})
    in_features: int = field(metadata={"static": True})
    isa_level: int = field(metadata={"static": True})

    def product(self, x: jax.Array) -> jax.Array:
        """x [T, in] -> f32 [T, out]: what `engine.kernels.products` asks of a weight that multiplies itself."""
        return native_product(x, self, out_dtype=jnp.float32)

    def rows(self, indices: jax.Array) -> jax.Array:
        return take_rows(self, indices)

    @property
    def shape(self) -> tuple[int, int]:
        return self.out_features, self.in_features


def native_product(x: jax.Array, weight: NativeWeight, *, out_dtype: DTypeLike | None = None) -> jax.Array:
    """x [T, in] times a weight [out, in] -> [T, out] in bf16 or f32; x is read as bf16."""
    dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    call = jax.ffi.ffi_call("fairlane_product", jax.ShapeDtypeStruct((x.shape[0], weight.out_features), dtype))
    attributes = {"isa": np.int32(weight.isa_level), "kind": np.int32(KIND_CODES[weight.kind])}
    return call(x.astype(jnp.bfloat16), weight.data, weight.scales, **attributes)


def take_rows(weight: NativeWeight, rows: jax.Array) -> jax.Array:
    """Rows i32 [T] of the matrix, bf16 [T, in]: how a tied head serves as the embedding. Ids are clamped."""
    rows = jnp.clip(rows, 0, weight.out_features - 1)
    group, lane = rows // GROUP, rows % GROUP
    count, width = rows.shape[0], weight.in_features
    if weight.kind == "bf16":
        return weight.data[group, :, lane].reshape(count, width)
    if weight.kind == "int8":
        values = weight.data[group, :, lane].astype(jnp.float32).reshape(count, width) - 128
        return (values * weight.scales[group, lane][:, None]).astype(jnp.bfloat16)
    if weight.kind == "q8":
        values = weight.data[group, :, lane].astype(jnp.float32).reshape(count, width // BLOCK, BLOCK) - 128
        return (values * weight.scales[group, :, lane].astype(jnp.float32)[..., None]).reshape(count, width).astype(jnp.bfloat16)
    nibbles = weight.data[group, :, :, lane].reshape(count, width // BLOCK, BLOCK // 2)
    values = jnp.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(jnp.float32)
    scale = weight.scales[group, :, 0, lane].astype(jnp.float32)[..., None]
    minimum = weight.scales[group, :, 1, lane].astype(jnp.float32)[..., None]
    return (values * scale + minimum).reshape(count, width).astype(jnp.bfloat16)


def _grouped(matrix: np.ndarray) -> np.ndarray:
    """Rows of bytes [out, 4 n] -> u8 [out/64, n, 64, 4], missing outputs zero. Every kind's lane is four bytes wide."""
    words = np.ascontiguousarray(matrix).view(np.uint32)
    out, width = words.shape
    padded = words if out % GROUP == 0 else np.pad(words, ((0, -out % GROUP), (0, 0)))
    lanes = np.ascontiguousarray(padded.reshape(-1, GROUP, width).transpose(0, 2, 1))
    return lanes.view(np.uint8).reshape(-1, width, GROUP, 4)


def pack_bf16(matrix: np.ndarray, isa_level: int) -> NativeWeight:
    """A bf16 matrix [out, in], `in` even."""
    data = _grouped(np.asarray(matrix, dtype=jnp.bfloat16).view(np.uint8)).view(jnp.bfloat16)
    return NativeWeight(jnp.asarray(data), jnp.zeros((0,), jnp.float32), "bf16", *matrix.shape, isa_level)


def pack_int8(matrix: np.ndarray, isa_level: int) -> NativeWeight:
    """Quantises a real matrix [out, in] (`in` a multiple of 4) symmetrically, one scale an output."""
    wide = np.asarray(matrix, dtype=np.float32)
    scale = np.abs(wide).max(axis=1) / 127
    values = np.rint(wide / np.where(scale > 0, scale, 1)[:, None])
    data = _grouped((values + 128).astype(np.uint8))
    return NativeWeight(jnp.asarray(data), jnp.asarray(_padded(scale).reshape(-1, GROUP)), "int8", *matrix.shape, isa_level)


def _padded(per_output: np.ndarray) -> np.ndarray:
    missing = -per_output.shape[0] % GROUP
    return np.pad(per_output, [(0, missing)] + [(0, 0)] * (per_output.ndim - 1))


def pack_q8_0(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q8_0 rows, u8 [out, in/32 * 34]: an f16 scale and 32 int8 a block."""
    out = blocks.shape[0]
    split = blocks.reshape(out, -1, 34)
    scale = np.ascontiguousarray(split[..., :2]).view(np.float16)[..., 0]
    values = split[..., 2:].reshape(out, -1) ^ np.uint8(128)
    return NativeWeight(jnp.asarray(_grouped(values)), _block_scales(scale), "q8", out, values.shape[1], isa_level)


def pack_q4_1(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q4_1 rows, u8 [out, in/32 * 20]: an f16 scale d and minimum m, then nibbles: w = d q + m."""
    split = blocks.reshape(blocks.shape[0], -1, 20)
    scales = np.ascontiguousarray(split[..., :4]).view(np.float16)
    return _pack_q4(scales[..., 0], scales[..., 1], split[..., 4:], isa_level)


def pack_q4_0(blocks: np.ndarray, isa_level: int) -> NativeWeight:
    """GGUF Q4_0 rows, u8 [out, in/32 * 18]: an f16 scale d, then nibbles: w = d (q - 8)."""
    split = blocks.reshape(blocks.shape[0], -1, 18)
    scale = np.ascontiguousarray(split[..., :2]).view(np.float16)[..., 0]
    return _pack_q4(scale, scale * np.float16(-8), split[..., 2:], isa_level)


def _pack_q4(scale: np.ndarray, minimum: np.ndarray, nibbles: np.ndarray, isa_level: int) -> NativeWeight:
    out, num_blocks = scale.shape
    data = _grouped(nibbles.reshape(out, num_blocks * BLOCK // 2))
    data = data.reshape(-1, num_blocks, BLOCK // 8, GROUP, 4)
    return NativeWeight(jnp.asarray(data), jnp.stack([_block_scales(scale), _block_scales(minimum)], 2), "q4", out, num_blocks * BLOCK, isa_level)


def _block_scales(scale: np.ndarray) -> jax.Array:
    """[out, blocks] -> f16 [out/64, blocks, 64]."""
    padded = _padded(scale)
    return jnp.asarray(padded.reshape(-1, GROUP, padded.shape[1]).transpose(0, 2, 1))
