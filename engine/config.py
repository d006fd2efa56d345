"""Bounds and derived numbers of `EngineConfig`. Everything here is a function of the configuration and of facts passed in."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.wire import EngineConfig

CPU_POOL_SHARE = 0.1
"""Share of the machine's memory that the KV pool takes on a CPU, where others live too. Of all memory, not of what is free:
the pool's size is part of every compiled program, and a pool that changed from start to start would miss the cache."""

MOST_OF_FREE = 0.5
"""Where little is free, the pool takes at most this share of it."""


def check_config(config: EngineConfig) -> None:
    """Refuse what can not work, before anything is loaded.

    Raises:
        ConfigError: names the key, its value, the bound and what to do.
    """
    _at_least("tensor_parallel_size", config.tensor_parallel_size, 1)
    _at_least("max_num_seqs", config.max_num_seqs, 1)
    _at_least("max_num_batched_tokens", config.max_num_batched_tokens, 16)
    _at_least("max_prefill_rows", config.max_prefill_rows, 1)
    for key in ("max_model_len", "num_gpu_blocks_override", "kv_cache_memory_bytes", "preempt_every_steps", "max_step_ms"):
        _at_least(key, getattr(config, key), 0)
    _check_lanes(config)
    if config.fixed_chunk_tokens and not 16 <= config.fixed_chunk_tokens <= config.max_num_batched_tokens:
        raise ConfigError(
            f"fixed_chunk_tokens is {config.fixed_chunk_tokens}: give 16 to max_num_batched_tokens, {config.max_num_batched_tokens}, or 0"
        )
    if config.fixed_chunk_tokens and not config.enable_chunked_prefill:
        raise ConfigError(
            f"fixed_chunk_tokens is {config.fixed_chunk_tokens}, which cuts prompts into chunks, and enable_chunked_prefill is off, which"
            " computes them whole: give one of the two"
        )
    if config.max_model_len and config.max_model_len < 2:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}: a prompt and an output token need at least 2; give more, or 0 for the model's own"
        )
    if config.block_size not in (16, 32, 64):
        raise ConfigError(f"block_size is {config.block_size}: pages hold 16, 32 or 64 tokens; 16 is the default")
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {config.gpu_memory_utilization}: give a share above 0 and at most 1")
    if not 0 <= config.swap_space < math.inf:
        raise ConfigError(f"swap_space is {config.swap_space}: give GiB of host memory, or 0 to compute preempted sequences again")
    if config.num_gpu_blocks_override and config.kv_cache_memory_bytes:
        raise ConfigError("num_gpu_blocks_override and kv_cache_memory_bytes are both set: they name the same thing, give one")
    for key in ("decode_buckets", "mixed_decode_buckets", "prefill_buckets", "mixed_prefill_buckets"):
        _check_buckets(key, getattr(config, key), multiple=16 if "prefill" in key else 1)


def _check_lanes(config: EngineConfig) -> None:
    _at_least("fast_prompt_tokens", config.fast_prompt_tokens, 0)
    for lane in ("fast", "slow", "batch"):
        for rule in ("prefill_rows", "open_prefills", "max_wait_targets"):
            _at_least(f"{lane}_{rule}", getattr(config, f"{lane}_{rule}"), 0)
    for key in ("slow_share", "batch_share"):
        if not 0 <= getattr(config, key) < 1:
            raise ConfigError(f"{key} is {getattr(config, key)}: give a share of the prefill tokens, 0 to below 1")
    if config.slow_share + config.batch_share >= 1:
        raise ConfigError(
            f"slow_share and batch_share are {config.slow_share} and {config.batch_share}: together they must be below 1, for the fast lane"
        )


def _at_least(key: str, value: float, bound: int) -> None:
    if value < bound:
        raise ConfigError(f"{key} is {value}: it must be at least {bound}")


def _check_buckets(key: str, sizes: tuple[int, ...], *, multiple: int) -> None:
    for size in sizes:
        if size < 1 or size % multiple:
            raise ConfigError(f"{key} has {size}: sizes are positive multiples of {multiple}")


def resolve_dtype(config: EngineConfig) -> str:
    """Type of weights and activations."""
    return "bfloat16" if config.dtype == "auto" else config.dtype


def resolve_kv_dtype(config: EngineConfig) -> str:
    """Type of cached keys and values, by its name in JAX."""
    named = {"auto": resolve_dtype(config), "fp8": "float8_e4m3fn"}
    return named.get(config.kv_cache_dtype, config.kv_cache_dtype)


def resolve_max_model_len(config: EngineConfig, model_max_position: int) -> int:
    """Longest prompt plus output in tokens.

    Raises:
        ConfigError: longer than the model was made for.
    """
    if config.max_model_len > model_max_position:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}: the model was made for {model_max_position} tokens; give at most that,"
            " or 0 to take it"
        )
    return config.max_model_len or model_max_position


def resolve_pool_pages(
    config: EngineConfig, *, page_bytes: int, max_model_len: int, available_bytes: int, total_bytes: int, on_cpu: bool
) -> int:
    """Pages of the KV pool. `available_bytes` is what is free after the weights, `total_bytes` all there is.

    Never more than `max_num_seqs` sequences of full length could use.

    Raises:
        ConfigError: not even one sequence of full length would fit.
    """
    needed_for_one = pages_of(max_model_len, config.block_size)
    if config.num_gpu_blocks_override:
        pages = config.num_gpu_blocks_override
    else:
        share = (
            min(total_bytes * CPU_POOL_SHARE, available_bytes * MOST_OF_FREE) if on_cpu else available_bytes * config.gpu_memory_utilization
        )
        budget = config.kv_cache_memory_bytes or int(share)
        pages = min(budget // page_bytes, config.max_num_seqs * needed_for_one)
    if pages < needed_for_one:
        longest = pages * config.block_size
        raise ConfigError(
            f"the KV pool has {pages} pages ({pages * page_bytes / 1e6:.0f} MB), and one sequence of max_model_len {max_model_len} tokens"
            f" needs {needed_for_one} ({needed_for_one * page_bytes / 1e6:.0f} MB): set max_model_len to at most {longest}, or give"
            f" the pool more with kv_cache_memory_bytes (free now: {available_bytes / 1e6:.0f} MB)"
        )
    return pages


def resolve_swap_pages(config: EngineConfig, *, page_bytes: int, available_bytes: int) -> int:
    """Pages of host memory for preempted sequences. `available_bytes` is what is free after weights and pool."""
    return int(min(config.swap_space * 2**30, max(0, available_bytes) * MOST_OF_FREE) // page_bytes)


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens`."""
    return -(-tokens // page_size)


def resolve_cache_dir(config: EngineConfig, environment: Mapping[str, str]) -> Path:
    """Folder of compiled programs: outside the data directory, so that a new data directory starts fast too."""
    named = config.cache_dir or environment.get("FAIRLANE_CACHE_DIR", "")
    if named:
        return Path(named).expanduser()
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fairlane"


CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""Of versions 2 and 1: limit, use, and of the use those files that were read once, which the kernel drops first."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of this machine, or of this container where it has less."""

    total_bytes: int
    available_bytes: int


def read_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> Memory:
    """What there is and what can still be had: /proc/meminfo, capped by the cgroup's limit."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    total, available = os.sysconf("SC_PHYS_PAGES") * page_bytes, os.sysconf("SC_AVPHYS_PAGES") * page_bytes
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    for limit, used, stat, reclaimable in CGROUP_FILES:
        if (cgroup / limit).exists() and (given := (cgroup / limit).read_text().strip()) != "max":
            total = min(total, int(given))
            available = min(available, int(given) - int((cgroup / used).read_text()) + _field(cgroup / stat, reclaimable))
    return Memory(total, max(available, 0))


def _field(stat: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in stat.read_text().splitlines() if line.startswith(f"{name} ")), 0)
