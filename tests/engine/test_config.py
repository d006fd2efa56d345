"""Settings that can not work are refused before anything is loaded, with key, value, bound and remedy."""

from pathlib import Path

import pytest

from engine.config import (
    Memory,
    check_config,
    pages_of,
    read_memory,
    resolve_cache_dir,
    resolve_kv_dtype,
    resolve_max_model_len,
    resolve_pool_pages,
)
from engine.errors import ConfigError
from engine.wire import EngineConfig

PAGE_BYTES = 1_000


def pages(config: EngineConfig, *, available_bytes: int = 10**9, total_bytes: int = 10**9, on_cpu: bool = True) -> int:
    return resolve_pool_pages(
        config, page_bytes=PAGE_BYTES, max_model_len=160, available_bytes=available_bytes, total_bytes=total_bytes, on_cpu=on_cpu
    )


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (EngineConfig(tensor_parallel_size=0), "tensor_parallel_size is 0.*at least 1"),
        (EngineConfig(max_num_seqs=0), "max_num_seqs is 0"),
        (EngineConfig(max_num_batched_tokens=15), "max_num_batched_tokens is 15.*at least 16"),
        (EngineConfig(max_model_len=1), "max_model_len is 1"),
        (EngineConfig(max_model_len=-5), "max_model_len is -5.*at least 0"),
        (EngineConfig(max_step_ms=-1), "max_step_ms is -1.*at least 0"),
        (EngineConfig(fixed_chunk_tokens=8), "fixed_chunk_tokens is 8: give 16 to max_num_batched_tokens, 512, or 0"),
        (EngineConfig(fixed_chunk_tokens=64, enable_chunked_prefill=False), "is 64, .*enable_chunked_prefill is off.*give one of the two"),
        (EngineConfig(block_size=24), "block_size is 24.*16, 32 or 64"),
        (EngineConfig(gpu_memory_utilization=1.5), "gpu_memory_utilization is 1.5"),
        (EngineConfig(prefill_buckets=(16, 40)), "prefill_buckets has 40.*multiples of 16"),
        (EngineConfig(decode_buckets=(0,)), "decode_buckets has 0"),
        (EngineConfig(num_gpu_blocks_override=5, kv_cache_memory_bytes=5), "both set"),
    ],
)
def test_an_impossible_setting_is_refused_by_name(config: EngineConfig, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_config(config)


def test_the_defaults_are_possible() -> None:
    check_config(EngineConfig())


def test_a_context_longer_than_the_model_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"9000.*8192"):
        resolve_max_model_len(EngineConfig(max_model_len=9000), 8192)
    assert resolve_max_model_len(EngineConfig(), 8192) == 8192
    assert resolve_max_model_len(EngineConfig(max_model_len=100), 8192) == 100


def test_the_pool_on_a_cpu_has_one_size_whatever_else_uses_memory_so_that_programs_come_from_the_cache() -> None:
    many = EngineConfig(max_num_seqs=1000)
    assert [pages(many, total_bytes=10**6, available_bytes=free) for free in (10**6, 500_000, 200_000)] == [100] * 3


def test_the_pool_takes_its_share_and_never_more_than_all_sequences_can_use() -> None:
    many = EngineConfig(max_num_seqs=1000)
    assert pages(EngineConfig(max_num_seqs=4)) == 4 * 10
    assert pages(many, total_bytes=10**6, available_bytes=100_000) == 50
    assert pages(many, available_bytes=10**6, on_cpu=False) == 900
    assert pages(EngineConfig(max_num_seqs=1000, kv_cache_memory_bytes=50_000)) == 50
    assert pages(EngineConfig(num_gpu_blocks_override=77)) == 77


@pytest.mark.parametrize(
    ("limit", "used", "stat", "field"),
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ],
)
def test_memory_is_the_containers_where_it_has_less_and_files_read_once_can_be_had(
    tmp_path: Path, limit: str, used: str, stat: str, field: str
) -> None:
    machine = read_memory(tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text("300000000\n")
    (tmp_path / used).write_text("200000000\n")
    (tmp_path / stat).write_text(f"anon 100000000\nactive_file 20000000\n{field} 70000000\n")
    assert read_memory(tmp_path) == Memory(300_000_000, 170_000_000)
    (tmp_path / limit).write_text("max\n" if field == "inactive_file" else "9223372036854771712\n")
    assert read_memory(tmp_path).total_bytes == machine.total_bytes


def test_a_pool_too_small_for_one_full_sequence_is_refused_with_the_length_that_fits() -> None:
    with pytest.raises(ConfigError, match="at most 144"):
        pages(EngineConfig(num_gpu_blocks_override=9))


def test_pages_are_counted_up() -> None:
    assert [pages_of(tokens, 16) for tokens in (1, 15, 16, 17)] == [1, 1, 1, 2]


def test_the_cache_folder_is_the_setting_then_the_environment_then_the_users_own() -> None:
    environment = {"FAIRLANE_CACHE_DIR": "/b", "XDG_CACHE_HOME": "/c"}
    assert resolve_cache_dir(EngineConfig(cache_dir="/a"), environment) == Path("/a")
    assert resolve_cache_dir(EngineConfig(), environment) == Path("/b")
    assert resolve_cache_dir(EngineConfig(), {"XDG_CACHE_HOME": "/c"}) == Path("/c/fairlane")


def test_cached_keys_and_values_have_the_activations_type_unless_told() -> None:
    assert resolve_kv_dtype(EngineConfig()) == "bfloat16"
    assert resolve_kv_dtype(EngineConfig(dtype="float32")) == "float32"
    assert resolve_kv_dtype(EngineConfig(dtype="float32", kv_cache_dtype="bfloat16")) == "bfloat16"
    assert resolve_kv_dtype(EngineConfig(kv_cache_dtype="fp8")) == "float8_e4m3fn"
