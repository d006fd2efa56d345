"""All decoder layers of a step as one native call (`csrc/stack.h`): norms, products, rotation, KV write, attention, gate.

Against a call a product it saves the hand-offs between XLA's thunks and threads, a hundred and more a step, and makes
whole rows, not only products, independent of what else is in the step. Numerics are those of `engine.model.layers`; the
residual sums are rounded once instead of twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.cpu.products import GROUP, KIND_CODES, NativeWeight


class DecoderLayer(Protocol):
    """What a layer is made of; `engine.model.params.LayerParams` is one."""

    @property
    def input_norm(self) -> Any: ...
    @property
    def qkv(self) -> Any: ...
    @property
    def qkv_bias(self) -> Any | None: ...
    @property
    def q_norm(self) -> Any | None: ...
    @property
    def k_norm(self) -> Any | None: ...
    @property
    def output(self) -> Any: ...
    @property
    def output_bias(self) -> Any | None: ...
    @property
    def post_norm(self) -> Any: ...
    @property
    def gate_up(self) -> Any: ...
    @property
    def gate_up_bias(self) -> Any | None: ...
    @property
    def down(self) -> Any: ...
    @property
    def down_bias(self) -> Any | None: ...


@dataclass(frozen=True, slots=True)
class DecoderStep:
    """The rows of a step: B decode rows, then those of the layout. `slots` are places in the cache, -1 writes nothing."""

    cos: jax.Array  # f32 [T, D / 2]
    sin: jax.Array  # f32 [T, D / 2]
    slots: jax.Array  # i32 [T]
    decode_tables: jax.Array  # i32 [B, M]
    decode_lengths: jax.Array  # i32 [B]
    layout: PrefillLayout


def decoder_supports(shape: AttentionShape, layers: Sequence[DecoderLayer], kv_dtype: str) -> bool:
    """Whether all layers can run as one call: native weights, bf16 or int8 KV, and widths that fill vectors."""
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    if not all(isinstance(matrix, NativeWeight) for matrix in matrices):
        return False
    hidden, intermediate = layers[0].output.out_features, layers[0].down.in_features
    widths_fill = (
        shape.head_dim % 32 == 0 and shape.head_dim <= 256 and shape.page_size % 16 == 0 and hidden % 32 == 0 and intermediate % GROUP == 0
    )
    return widths_fill and kv_dtype in ("bfloat16", "int8") and shape.soft_cap is None


def run_decoder(
    shape: AttentionShape, eps: float, layers: Sequence[DecoderLayer], hidden: jax.Array, step: DecoderStep, caches: Sequence[jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """hidden bf16 [T, hidden] through all layers -> the same, and the caches, written in place where they are donated."""
    buffers: list[jax.Array] = [
        *(hidden.astype(jnp.bfloat16), step.cos, step.sin, step.slots, step.decode_tables, step.decode_lengths, *step.layout)
    ]
    aliases = {0: 0}
    for index, (layer, cache) in enumerate(zip(layers, caches, strict=True)):
        buffers += _layer_buffers(layer)
        aliases[len(buffers)] = index + 1
        buffers.append(cache)
    results = (jax.ShapeDtypeStruct(hidden.shape, jnp.bfloat16), *(jax.ShapeDtypeStruct(cache.shape, cache.dtype) for cache in caches))
    first = layers[0]
    kinds = [KIND_CODES[matrix.kind] for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    call = jax.ffi.ffi_call("fairlane_decoder", results, input_output_aliases=aliases)
    out, *written = call(
        *buffers,
        isa=np.int32(first.qkv.isa_level),
        num_heads=np.int32(shape.num_heads),
        head_dim=np.int32(shape.head_dim),
        intermediate=np.int32(first.down.in_features),
        eps=np.float32(eps),
        scale=np.float32(shape.scale),
        window=np.int32(shape.sliding_window or 0),
        kinds=np.asarray(kinds, np.int32),
    )
    return out.astype(hidden.dtype), tuple(written)


def _layer_buffers(layer: DecoderLayer) -> list[jax.Array]:
    """In the order of `Layer` in stack.h; what the architecture lacks is empty."""

    def matrix(weight: NativeWeight) -> list[jax.Array]:
        return [weight.data, weight.scales]

    def bias(vector: Any | None) -> jax.Array:
        return jnp.zeros((0,), jnp.bfloat16) if vector is None else jnp.asarray(vector, jnp.bfloat16)

    def norm(vector: Any | None) -> jax.Array:
        return jnp.zeros((0,), jnp.float32) if vector is None else jnp.asarray(vector, jnp.float32)

    return [
        *(norm(layer.input_norm), *matrix(layer.qkv), bias(layer.qkv_bias), norm(layer.q_norm), norm(layer.k_norm)),
        *(*matrix(layer.output), bias(layer.output_bias), norm(layer.post_norm)),
        *(*matrix(layer.gate_up), bias(layer.gate_up_bias), *matrix(layer.down), bias(layer.down_bias)),
    ]
