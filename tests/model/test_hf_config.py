"""Configurations as they are written in the wild."""

from typing import Any

import pytest

from engine.errors import ModelError
from engine.model.config import ModelConfig, RopeConfig
from engine.model.hf_config import parse_config
from tests.tiny_weights import tiny_config


def parsed(family: str, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    return parse_config(tiny_config(family, **changes), generation or {}, "model")


def test_both_spellings_of_rope_scaling_mean_the_same() -> None:
    old = parsed("llama3")
    scaling = {**tiny_config("llama3")["rope_scaling"], "rope_theta": 500_000.0}
    assert parsed("llama3", rope_scaling=None, rope_theta=None, rope_parameters=scaling) == old
    assert old.rope == RopeConfig(theta=500_000.0, scaling="llama3", factor=8.0, original_max_position=64)


def test_the_older_key_type_names_the_scaling_too() -> None:
    assert parsed("llama-linear", rope_scaling={"type": "linear", "factor": 2.0}).rope == RopeConfig(scaling="linear", factor=2.0)


def test_llama_2_without_key_value_heads_has_one_for_each_query_head() -> None:
    assert parsed("llama3", num_key_value_heads=None).num_kv_heads == 4


def test_head_dim_is_taken_where_given_and_else_divided() -> None:
    assert (parsed("qwen3").head_dim, parsed("llama3").head_dim) == (32, 16)


def test_end_tokens_of_the_generation_config_win_and_may_be_several() -> None:
    assert parsed("llama3").eos_token_ids == (2,)
    assert parsed("llama3", {"eos_token_id": [7, 5]}).eos_token_ids == (5, 7)
    assert parsed("llama3", eos_token_id=None).eos_token_ids == ()


def test_a_window_counts_for_mistral_and_for_qwen_only_when_switched_on() -> None:
    assert parsed("mistral").sliding_window == 24
    assert parsed("mistral", sliding_window=None).sliding_window is None
    assert parsed("qwen2", sliding_window=16).sliding_window is None
    assert parsed("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=2).sliding_window is None
    assert parsed("qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=0).sliding_window == 16


def test_biases_are_where_each_family_has_them() -> None:
    def biases(config: ModelConfig) -> tuple[bool, bool, bool]:
        return config.qkv_bias, config.output_bias, config.mlp_bias

    assert biases(parsed("llama3")) == biases(parsed("mistral")) == biases(parsed("qwen3")) == (False, False, False)
    assert biases(parsed("llama-linear")) == (True, True, True)
    assert biases(parsed("qwen2")) == (True, False, False)


def test_a_model_type_stands_in_for_missing_architectures() -> None:
    assert parsed("qwen3", architectures=None).architecture == "qwen3"
    with pytest.raises(ModelError, match="architecture gemma is not supported"):
        parsed("qwen3", architectures=None, model_type="gemma")
