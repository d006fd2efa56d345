"""What weights and KV weigh, and what is said when they do not fit."""

import json
from pathlib import Path
from typing import Any

import jax
import pytest

from engine.errors import DoesNotFit, ModelError
from engine.model.checkpoint import load_model
from engine.model.hf_config import parse_config
from engine.model.info import describe_model, sequences_that_fit
from engine.model.kv_size import kv_bytes_per_token
from engine.model.memory import check_fit, weight_bytes
from engine.model.source import FolderSource, open_source
from engine.wire import DEFAULT_MODEL
from tests.tiny_weights import FAMILIES, tiny_config

LLAMA3_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128_256,
    "hidden_size": 8_192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8_192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
}


@pytest.fixture
def llama3_70b(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA3_70B))
    return tmp_path


def test_llama_3_70b_takes_a_third_of_a_megabyte_per_token_not_what_hidden_size_would_give() -> None:
    config = parse_config(LLAMA3_70B, {}, "llama-3-70b")
    assert kv_bytes_per_token(config, "bfloat16") == 2 * 80 * 8 * 128 * 2 == 327_680
    assert kv_bytes_per_token(config, "int8") == 2 * 80 * 8 * (128 + 4) == 168_960  # a scale for each K and V of a head


@pytest.mark.parametrize("family", list(FAMILIES))
def test_weight_bytes_are_those_of_the_loaded_arrays(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(family)))
    for dtype in ("bfloat16", "float32"):
        _, params = load_model(str(tmp_path), load_format="dummy", dtype=dtype)
        loaded = sum(array.nbytes for array in jax.tree.leaves(params))
        assert weight_bytes(open_source(str(tmp_path)), dtype=dtype) == loaded


def test_weights_of_llama_3_70b_are_141_gigabytes_and_half_of_that_in_int8(llama3_70b: Path) -> None:
    source = FolderSource("llama-3-70b", llama3_70b)
    assert weight_bytes(source, dtype="bfloat16") == pytest.approx(141.1e9, rel=0.001)
    assert weight_bytes(source, dtype="bfloat16", quantization="int8") == pytest.approx(72.7e9, rel=0.001)


def test_gguf_blocks_weigh_what_the_file_weighs() -> None:
    assert weight_bytes(open_source(DEFAULT_MODEL), dtype="bfloat16", quantization="gguf") == pytest.approx(96.6e6, rel=0.01)


def test_info_says_weights_kv_and_what_fits_on_each_card(llama3_70b: Path) -> None:
    text = describe_model(str(llama3_70b))
    assert "141.11 GB (bfloat16)" in text
    assert "327,680 bytes = 0.328 MB (2 x 80 layers x 8 KV heads x 128 head dim x 2 bytes)" in text
    rows = {line.split()[0]: line.split()[2:] for line in text.splitlines() if " GB  " in line and line.startswith(" ")}
    assert rows["141"] == ["-", "-", "-"]
    assert rows["192"] == ["94", "23", "11"]


def test_sequences_that_fit_are_whole_and_never_negative() -> None:
    assert sequences_that_fit(10**9, 400_000_000, 1_000, 100_000) == 5
    assert sequences_that_fit(10**9, 2 * 10**9, 1_000, 100) == 0


def test_what_does_not_fit_says_the_numbers_and_what_to_change() -> None:
    check_fit(model="m", weight_bytes=6, pool_bytes=4, free_bytes=10, device="cpu")
    with pytest.raises(DoesNotFit, match=r"weights 6.00 GB \+ KV pool 4.00 GB > 9.00 GB free on cpu; give the KV pool at most 3.00 GB"):
        check_fit(model="m", weight_bytes=6 * 10**9, pool_bytes=4 * 10**9, free_bytes=9 * 10**9, device="cpu")
    with pytest.raises(DoesNotFit, match="the weights alone are too much: use --quantization int8"):
        check_fit(model="m", weight_bytes=6 * 10**9, pool_bytes=10**9, free_bytes=5 * 10**9, device="cpu")


def test_info_of_an_unknown_model_is_a_model_error() -> None:
    with pytest.raises(ModelError):
        describe_model("no/such/model")
