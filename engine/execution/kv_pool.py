"""The devices' memory between steps: KV pages of every layer, and what each slot's sequence needs for sampling."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from engine.errors import ConfigError
from engine.execution.batch import Limits
from engine.execution.sampler import SlotState
from engine.kernels.attention import AttentionBackend, AttentionShape, LayerCache
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import allocate_stack
from engine.model.config import ModelConfig
from engine.model.devices import AXIS, WHOLE, Devices
from engine.model.kv_size import kv_bytes_per_token
from engine.scheduling.plan import Admitted
from engine.wire import MAX_LOGIT_BIAS, MAX_STOP_IDS

MAX_ARRAY_ELEMENTS = 2**31 - 1
"""XLA indexes with 32 bits; beyond, some backends compute wrong addresses in silence."""


class DeviceState(NamedTuple):
    """Donated to every step and returned by it."""

    slots: SlotState
    caches: tuple[LayerCache, ...]
    """One a layer, or fewer that hold several layers each; the first axis of every array is the page."""


def attention_shape(config: ModelConfig, page_size: int) -> AttentionShape:
    return AttentionShape(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        page_size=page_size,
        scale=config.head_dim**-0.5,
        sliding_window=config.sliding_window,
    )


def page_bytes(config: ModelConfig, page_size: int, kv_dtype: str) -> int:
    """Bytes that one page takes over all layers: K and V, scales included."""
    return page_size * kv_bytes_per_token(config, kv_dtype)


def allocate_over(devices: Devices, config: ModelConfig, limits: Limits, backend: AttentionBackend, kv_dtype: str) -> DeviceState:
    """`allocate` on each device for its share of the heads; together they are the whole heads' pages.

    Raises:
        ConfigError: as `allocate`.
    """
    make = partial(allocate, config, limits, backend, kv_dtype)
    return devices.jit(make, (), whole_state(devices, config, limits, backend, kv_dtype))()


def whole_state(devices: Devices, config: ModelConfig, limits: Limits, backend: AttentionBackend, kv_dtype: str) -> DeviceState:
    """Shapes and places of the state over all devices. `config` is one device's share of the model.

    KV is cut by head: along the axis that grows when a backend is asked for more of them. What the sampler remembers is whole
    everywhere.
    """
    share = jax.eval_shape(partial(allocate, config, limits, backend, kv_dtype))
    shape = attention_shape(config, limits.page_size)
    doubled = replace(shape, num_heads=2 * shape.num_heads, num_kv_heads=2 * shape.num_kv_heads)
    one, two = (jax.eval_shape(partial(backend.allocate, asked, 1, kv_dtype)) for asked in (shape, doubled))

    def whole_of(part: jax.ShapeDtypeStruct, one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        cuts = (AXIS if few != many else None for few, many in zip(one.shape, two.shape, strict=True))
        return devices.whole_of(part, PartitionSpec(*cuts))

    slots = SlotState(*(devices.whole_of(array, WHOLE) for array in share.slots))
    return DeviceState(slots, tuple(jax.tree.map(whole_of, cache, one, two) for cache in share.caches))


def allocate(config: ModelConfig, limits: Limits, backend: AttentionBackend, kv_dtype: str, *, stacked: bool = False) -> DeviceState:
    """Everything zeroed, the whole pool at once. `stacked`: for a `NativeStack` of weights, all layers together.

    Raises:
        ConfigError: one layer's pages exceed what 32-bit indices reach.
    """
    elements = limits.num_pages * limits.page_size * config.num_kv_heads * config.head_dim
    if elements > MAX_ARRAY_ELEMENTS:
        most = MAX_ARRAY_ELEMENTS // (limits.page_size * config.num_kv_heads * config.head_dim)
        raise ConfigError(f"num_gpu_blocks_override gives {limits.num_pages} pages, and one array holds at most {most}: give fewer")
    shape = attention_shape(config, limits.page_size)
    rows = limits.max_num_seqs + 1
    slots = SlotState(
        jnp.zeros((rows, limits.max_model_len), jnp.int32),
        jnp.full((rows, MAX_LOGIT_BIAS), config.vocab_size, jnp.int32),
        jnp.zeros((rows, MAX_LOGIT_BIAS), jnp.float32),
        jnp.full((rows, MAX_STOP_IDS + len(config.eos_token_ids)), config.vocab_size, jnp.int32),
    )
    if stacked:
        assert isinstance(backend, CpuNativeAttention), "weights are stacked for the native decoder only"
        return DeviceState(slots, allocate_stack(backend, shape, config.num_layers, limits.num_pages, kv_dtype))
    caches = tuple(backend.allocate(shape, limits.num_pages, kv_dtype) for _ in range(config.num_layers))
    return DeviceState(slots, caches)


def needs_admission(admitted: Admitted) -> bool:
    """Whether the sampler will read the slot's state on the device; most requests never do."""
    chosen = admitted.sampling
    penalised = chosen.repetition_penalty != 1.0 or chosen.presence_penalty != 0.0 or chosen.frequency_penalty != 0.0
    return penalised or bool(chosen.logit_bias) or chosen.min_tokens > 0


def admission_rows(admitted: Admitted, state_shapes: SlotState, config: ModelConfig) -> SlotState:
    """One slot's row of every array, on the host."""
    chosen = admitted.sampling
    history, bias_ids, bias_values, forbidden = (np.zeros(array.shape[1], array.dtype) for array in state_shapes)
    history[: len(admitted.tokens)] = admitted.tokens
    bias_ids[:], forbidden[:] = config.vocab_size, config.vocab_size
    bias_ids[: len(chosen.logit_bias)] = list(chosen.logit_bias)
    bias_values[: len(chosen.logit_bias)] = list(chosen.logit_bias.values())
    stops = (*config.eos_token_ids, *chosen.stop_token_ids)
    forbidden[: len(stops)] = stops
    return SlotState(history, bias_ids, bias_values, forbidden)


def admit(state: SlotState, slot: jax.Array, rows: SlotState) -> SlotState:
    """Write one slot's rows; the state is donated."""
    return SlotState(*(array.at[slot].set(row) for array, row in zip(state, rows, strict=True)))
