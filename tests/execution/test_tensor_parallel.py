"""One model on 1, 2 and 4 devices: the same text, each device with its share, two sums a layer, nothing copied."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from engine.model.devices import by_device, find_devices, share_of
from tests.execution.driver import CONFIG
from tests.tiny_models import write_family_model

VOCAB_SIZE, LAYERS, PAGES, PAGE_TOKENS = 511, 2, 400, 16
QUICK_COMPILE = "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `split_model` prints of a model with biases, eight query heads of 16 dimensions, four KV heads and an MLP of 128."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": VOCAB_SIZE}
    folder = write_family_model(tmp_path_factory.mktemp("model"), "llama-linear", **sizes)
    flags = f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}"
    command = [sys.executable, "-W", "error", "-m", "tests.execution.split_model", folder]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("count", ["2", "4"])
def test_a_split_model_writes_the_text_of_a_whole_one(made: dict[str, Any], count: str) -> None:
    assert made[count]["texts"] == made["1"]["texts"]
    assert len({tuple(text) for text in made["1"]["texts"]}) == len(made["1"]["texts"])
    assert made[count]["histories_agree"], "the devices drew different tokens"
    assert made[count]["compiles_after_ready"] == 0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_device_holds_its_share_of_weights_and_pages(made: dict[str, Any], count: int) -> None:
    vocabulary = -(-VOCAB_SIZE // count)
    assert made[str(count)]["shards"] == {
        "embed": [vocabulary, 64],
        "head": [vocabulary, 64],
        "qkv": [(8 + 4 + 4) * 16 // count, 64],
        "output": [64, 8 * 16 // count],
        "gate_up": [2 * 128 // count, 64],
        "down": [64, 128 // count],
        "k": [PAGES, PAGE_TOKENS, 4 // count, 16],
    }


@pytest.mark.parametrize("count", ["2", "4"])
def test_a_split_step_sums_twice_a_layer_and_once_for_the_embedding_and_writes_its_state_in_place(made: dict[str, Any], count: str) -> None:
    expected = {"all_reduce": 2 * LAYERS + 1, "all_gather": 1, "donated": True}
    assert made[count]["programs"] == [expected] * 3


def test_a_page_moved_within_the_pool_or_by_way_of_the_host_is_whole(made: dict[str, Any]) -> None:
    assert all(made[count]["moved_pages_agree"] for count in ("1", "2", "4"))


def test_int8_pages_and_their_scales_are_cut_by_head_however_a_backend_lays_them_out(made: dict[str, Any]) -> None:
    pages = "(None, None, 'tp', None)"
    assert made["head_axes"] == {
        "xla": [pages, pages, "(None, None, 'tp')", "(None, None, 'tp')"],
        "pallas-triton": [pages, pages, "(None, 'tp', None)", "(None, 'tp', None)"],
    }


def test_a_share_has_its_part_of_heads_and_width_and_the_whole_vocabulary() -> None:
    share = share_of(CONFIG, 2)
    assert (share.num_heads, share.num_kv_heads, share.intermediate_size, share.vocab_size) == (3, 1, 32, CONFIG.vocab_size)
    assert (share.head_dim, share.hidden_size, share.split_over) == (CONFIG.head_dim, CONFIG.hidden_size, 2)


@pytest.mark.parametrize("count", [3, 4])
def test_heads_that_do_not_divide_are_refused_with_what_would(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"tensor_parallel_size is {count}: .* 6 query heads, 2 KV heads .* width 64; give 1 or 2"):
        share_of(CONFIG, count)


def test_more_devices_than_there_are_is_refused_with_how_to_try_without_them() -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel_size is 64, and JAX finds 1 here \(cpu\): .*XLA_FLAGS=--xla_force_host"):
        find_devices(64)


def test_rows_of_fused_matrices_go_to_the_device_that_has_the_heads() -> None:
    q, k = [f"q{row}" for row in range(4)], [f"k{row}" for row in range(2)]
    cut = by_device(np.array([q + k]).T, [4, 2], 2)
    assert cut.T.tolist() == [["q0", "q1", "k0", "q2", "q3", "k1"]]
