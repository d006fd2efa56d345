"""What a configuration asks of this machine before anything is loaded: the facts behind `fairlane doctor`."""

from engine.config import (
    check_config,
    read_memory,
    resolve_dtype,
    resolve_kv_dtype,
    resolve_max_model_len,
    resolve_pool_pages,
)
from engine.errors import ConfigError
from engine.execution.kv_pool import page_bytes
from engine.kernels.cpu.build import find_compiler, find_library
from engine.model.devices import share_of
from engine.model.memory import weight_bytes
from engine.model.source import open_source
from engine.wire import EngineConfig, ModelNeeds


def needs_of(config: EngineConfig) -> ModelNeeds:
    """Of weights and, on a CPU, of the KV pool. Raises `ConfigError` and `ModelError`."""
    check_config(config)
    source, memory = open_source(config.model), read_memory()
    share_of(source.config, config.tensor_parallel_size)  # says what does not divide
    weights = weight_bytes(source, dtype=resolve_dtype(config), quantization=config.quantization)
    size = page_bytes(source.config, config.block_size, resolve_kv_dtype(config))
    pool, problem = 0, ""
    try:
        pool = size * resolve_pool_pages(
            config,
            page_bytes=size,
            max_model_len=resolve_max_model_len(config, source.config.max_position),
            available_bytes=memory.available_bytes - weights,
            total_bytes=memory.total_bytes,
            on_cpu=True,
        )
    except ConfigError as error:
        problem = str(error)
    return ModelNeeds(
        model=source.name,
        weight_bytes=weights,
        pool_bytes=pool,
        pool_problem=problem,
        available_bytes=memory.available_bytes,
        total_bytes=memory.total_bytes,
        has_native_kernels=find_library() is not None,
        has_compiler=find_compiler() is not None,
        tensor_parallel_size=config.tensor_parallel_size,
    )
