"""What a replica's weights and KV pages take of the devices' memory and of the host's, decided before anything is loaded."""

from dataclasses import dataclass
from typing import Any

import jax

from engine.config import (
    Memory,
    read_memory,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_max_model_len,
    resolve_pool_pages,
    resolve_swap_pages,
)
from engine.execution.kv_pool import page_bytes
from engine.model.config import ModelConfig
from engine.model.memory import check_fit, weight_bytes
from engine.model.source import ModelSource
from engine.wire import EngineConfig


@dataclass(frozen=True, slots=True)
class PoolSize:
    """KV pages on the devices (each holds its heads' part of every page), and of preempted sequences on the host."""

    num_pages: int
    swap_pages: int


def size_pool(config: EngineConfig, source: ModelSource, share: ModelConfig) -> PoolSize:
    """From what is free now on the fullest device. `share` is one device's part of the model.

    Raises:
        DoesNotFit: weights, or weights and pool, are more than that.
        ConfigError: the pool would not hold one sequence of full length.
    """
    on_cpu, kv_dtype = jax.default_backend() == "cpu", resolve_kv_dtype(config)
    devices = jax.devices()[: share.split_over]
    memory, name = device_memory(devices), devices[0].device_kind
    weights = device_weight_bytes(config, source, share.split_over)
    check_fit(model=source.name, weight_bytes=weights, pool_bytes=0, free_bytes=memory.available_bytes, device=name)
    part_bytes = page_bytes(share, config.block_size, kv_dtype)
    num_pages = resolve_pool_pages(
        config,
        page_bytes=part_bytes,
        max_model_len=resolve_max_model_len(config, share.max_position),
        available_bytes=memory.available_bytes - weights,
        total_bytes=memory.total_bytes,
        on_cpu=on_cpu,
    )
    pool_bytes = num_pages * part_bytes
    check_fit(model=source.name, weight_bytes=weights, pool_bytes=pool_bytes, free_bytes=memory.available_bytes, device=name)
    on_host_bytes = read_memory().available_bytes - ((weights + pool_bytes) * share.split_over if on_cpu else 0)
    whole_bytes = page_bytes(source.config, config.block_size, kv_dtype)
    return PoolSize(num_pages, resolve_swap_pages(config, page_bytes=whole_bytes, available_bytes=on_host_bytes))


def device_weight_bytes(config: EngineConfig, source: ModelSource, num_devices: int) -> int:
    """Of one device. Norms and biases, which each has whole, are too small to count."""
    return -(-weight_bytes(source, dtype=resolve_dtype(config), quantization=config.quantization) // num_devices)


def device_memory(devices: list[Any]) -> Memory:
    """Of the device that has least; devices made of one CPU share the machine's evenly."""
    stats = [device.memory_stats() for device in devices]
    if any(found is None for found in stats):
        host = read_memory()
        return Memory(host.total_bytes // len(devices), host.available_bytes // len(devices))
    return Memory(
        min(found["bytes_limit"] for found in stats),
        min(found["bytes_limit"] - found["bytes_in_use"] for found in stats),
    )
