"""All decoder layers of a step as one native call (`csrc/stack.h`): norms, products, rotation, KV write, attention, gate.

Against a call a product it saves the hand-offs between XLA's thunks and threads, a hundred and more a step, and makes
whole rows, not only products, independent of what else is in the step. Numerics are those of `engine.model.layers`; the
residual sums are rounded once instead of twice.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import batched
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.products import GROUP, KIND_CODES, Kind, NativeWeight

ALIGNMENT_BYTES = 64
MAX_ARRAY_ELEMENTS = 2**31 - 1
MISSING = -1
COPY_THREADS = 4


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NativeStack:
    """All layers' weights, one behind the other in as few buffers as 32-bit indices allow: each argument of a call
    costs 4 microseconds, and 30 layers of separate tensors more than a millisecond a step."""

    buffers: tuple[jax.Array, ...]  # u8
    kinds: tuple[Kind, ...] = field(metadata={"static": True})
    """Four a layer: qkv, output, gate_up, down."""
    buffer_of_layer: tuple[int, ...] = field(metadata={"static": True})
    offsets: tuple[int, ...] = field(metadata={"static": True})
    """Of each layer's tensors in its buffer, in the order of `Layer` in stack.h; `MISSING` where the architecture has none."""
    intermediate: int = field(metadata={"static": True})
    isa_level: int = field(metadata={"static": True})

    @property
    def num_layers(self) -> int:
        return len(self.buffer_of_layer)


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


def stack_layers(layers: Sequence[DecoderLayer], max_bytes: int = MAX_ARRAY_ELEMENTS) -> NativeStack:
    """Copy native layers into one buffer, or several of at most `max_bytes`; a layer is never cut."""
    tensors = [_layer_tensors(layer) for layer in layers]
    buffer_of_layer, ends, offsets = list[int](), [0], list[int]()
    for layer in tensors:
        size = sum(_aligned(tensor.nbytes) for tensor in layer if tensor is not None)
        if ends[-1] and ends[-1] + size > max_bytes:
            ends.append(0)
        buffer_of_layer.append(len(ends) - 1)
        for tensor in layer:
            offsets.append(MISSING if tensor is None else ends[-1])
            ends[-1] += 0 if tensor is None else _aligned(tensor.nbytes)
    buffers = [_empty(size) for size in ends]
    targets = (buffers[index] for index in buffer_of_layer)
    with ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="stack") as pool:
        list(pool.map(_copy_layer, targets, batched(offsets, len(tensors[0])), tensors))  # a list, so that an error is raised here
    kinds = tuple(matrix.kind for layer in layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down))
    arrays = tuple(jnp.asarray(buffer) for buffer in buffers)
    return NativeStack(arrays, kinds, tuple(buffer_of_layer), tuple(offsets), layers[0].down.in_features, layers[0].qkv.isa_level)


def _copy_layer(buffer: np.ndarray, places: Sequence[int], tensors: Sequence[np.ndarray | None]) -> None:
    for place, tensor in zip(places, tensors, strict=True):
        if tensor is not None:
            buffer[place : place + tensor.nbytes] = np.ascontiguousarray(tensor).view(np.uint8).reshape(-1)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _empty(size: int) -> np.ndarray:
    """Memory that JAX takes over as it is: numpy's own is not aligned to a cache line."""
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT_BYTES :][:size]


def _layer_tensors(layer: DecoderLayer) -> list[np.ndarray | None]:
    """In the order of `Layer` in stack.h."""

    def matrix(weight: NativeWeight) -> list[np.ndarray | None]:
        return [np.asarray(weight.data), np.asarray(weight.scales)]

    def vector(values: Any | None, dtype: Any) -> np.ndarray | None:
        return None if values is None else np.asarray(values).astype(dtype)

    return [
        *(vector(layer.input_norm, np.float32), *matrix(layer.qkv), vector(layer.qkv_bias, jnp.bfloat16)),
        *(vector(layer.q_norm, np.float32), vector(layer.k_norm, np.float32)),
        *(*matrix(layer.output), vector(layer.output_bias, jnp.bfloat16), vector(layer.post_norm, np.float32)),
        *(*matrix(layer.gate_up), vector(layer.gate_up_bias, jnp.bfloat16), *matrix(layer.down), vector(layer.down_bias, jnp.bfloat16)),
    ]


def allocate_stack(
    backend: CpuNativeAttention, shape: AttentionShape, num_layers: int, num_pages: int, kv_dtype: str
) -> tuple[jax.Array, ...]:
    """Zeroed caches [P, layers * K, 2, ...] of all layers, as few as 32-bit indices allow: a page's layers lie side by side."""
    layer = jax.eval_shape(lambda: backend.allocate(shape, num_pages, kv_dtype))
    most = max(1, MAX_ARRAY_ELEMENTS // layer.size)
    counts = [min(most, num_layers - first) for first in range(0, num_layers, most)]
    return tuple(jnp.zeros((num_pages, count * shape.num_kv_heads, *layer.shape[2:]), layer.dtype) for count in counts)


def run_decoder(
    shape: AttentionShape, eps: float, stack: NativeStack, hidden: jax.Array, step: DecoderStep, caches: Sequence[jax.Array]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """hidden bf16 [T, hidden] through all layers -> the same, and the caches, written in place where they are donated.

    Rows without a slot are padding: their state comes back as it was.
    """
    arrays = [hidden.astype(jnp.bfloat16), step.cos, step.sin, step.slots, step.decode_tables, step.decode_lengths, *step.layout]
    arrays += stack.buffers
    aliases = {0: 0} | {len(arrays) + index: index + 1 for index in range(len(caches))}
    results = (jax.ShapeDtypeStruct(hidden.shape, jnp.bfloat16), *(jax.ShapeDtypeStruct(cache.shape, cache.dtype) for cache in caches))
    call = jax.ffi.ffi_call("fairlane_decoder", results, input_output_aliases=aliases)
    out, *written = call(
        *arrays,
        *caches,
        isa=np.int32(stack.isa_level),
        num_heads=np.int32(shape.num_heads),
        num_kv_heads=np.int32(shape.num_kv_heads),
        head_dim=np.int32(shape.head_dim),
        intermediate=np.int32(stack.intermediate),
        eps=np.float32(eps),
        scale=np.float32(shape.scale),
        window=np.int32(shape.sliding_window or 0),
        kinds=np.asarray([KIND_CODES[kind] for kind in stack.kinds], np.int32),
        buffers=np.asarray(stack.buffer_of_layer, np.int32),
        offsets=np.asarray(stack.offsets, np.int64),
    )
    return out.astype(hidden.dtype), tuple(written)
