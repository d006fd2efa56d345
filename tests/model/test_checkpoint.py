"""Every source gives the same weights, in their final type; what can not be loaded says what is missing."""

import json
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.errors import ModelError
from engine.model.checkpoint import load_gguf_blocks, load_model
from engine.model.params import Params
from engine.wire import DEFAULT_MODEL
from tests.model.dense import dense_logits
from tests.model.write_gguf import write_gguf
from tests.tiny_models import write_family_model
from tests.tiny_weights import tiny_config


def assert_same(one: Params, other: Params) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_weights_of_the_hugging_face_folder_it_was_made_from(family: str, tmp_path: Path) -> None:
    folder = write_family_model(tmp_path / "hf", family)
    hf_config, hf_params = load_model(str(folder), dtype="float32")
    config, params = load_model(str(write_gguf(tmp_path / "model.gguf", tiny_config(family))), dtype="float32")
    assert_same(params, hf_params)
    prompt = list(range(3, 103))  # beyond the 64 positions that Llama 3's scaling leaves alone
    np.testing.assert_allclose(dense_logits(config, params, prompt, [99]), dense_logits(hf_config, hf_params, prompt, [99]), atol=1e-4)


def test_shards_give_the_weights_of_the_single_file(tmp_path: Path) -> None:
    one = load_model(str(write_family_model(tmp_path / "one", "llama3")))
    assert_same(load_model(str(write_family_model(tmp_path / "three", "llama3", shards=3)))[1], one[1])


def test_matrices_take_the_wanted_type_and_norms_stay_in_f32() -> None:
    _, params = load_model(DEFAULT_MODEL)
    layer = params.layers[0]
    assert {array.dtype for array in (params.embed, layer.qkv, layer.output, layer.gate_up, layer.down)} == {jnp.dtype(jnp.bfloat16)}
    assert {array.dtype for array in (params.final_norm, layer.input_norm, layer.post_norm)} == {jnp.dtype(jnp.float32)}
    assert params.head is None


def test_loading_reports_each_layer(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    load_model(str(write_family_model(tmp_path, "llama3")), progress=lambda done, total, detail: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_quantised_blocks_stay_as_in_the_file_with_q_rows_in_hugging_face_order(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tiny_config("llama3"), quantise=True)
    config, blocks = load_gguf_blocks(str(path))
    q = blocks["model.layers.0.self_attn.q_proj.weight"]
    assert q.kind == gguf.GGMLQuantizationType.Q8_0
    assert (q.shape, q.rows.shape, q.rows.dtype) == ((64, 64), (64, 2 * 34), np.uint8)
    _, params = load_model(str(path), dtype="float32")
    np.testing.assert_array_equal(gguf.dequantize(q.rows, q.kind), np.asarray(params.layers[0].qkv[: config.num_heads * config.head_dim]))


def test_quantised_blocks_of_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a GGUF file"):
        load_gguf_blocks(str(write_family_model(tmp_path, "llama3")))


def test_dummy_weights_need_only_a_configuration_and_follow_the_seed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("qwen3")))
    first, again, other = (load_model(str(tmp_path), load_format="dummy", seed=seed)[1] for seed in (1, 1, 2))
    assert_same(first, again)
    assert not np.array_equal(np.asarray(first.embed), np.asarray(other.embed))
    assert not np.array_equal(np.asarray(first.layers[0].down), np.asarray(first.layers[1].down))


CONFIG_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported are LlamaForCausalLM"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"hidden_size": None}, "'hidden_size' must be a positive integer, is None"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "RoPE scaling 'yarn' is not supported"),
    ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    ({"num_hidden_layers": 3}, "9 of 30 tensors are missing: model.layers.2.input_layernorm.weight"),
    ({"intermediate_size": 96}, r"gate_proj.weight has shape \(128, 64\), the configuration asks for \(96, 64\)"),
]


@pytest.mark.parametrize(("changes", "message"), CONFIG_FAULTS, ids=[next(iter(changes)) for changes, _ in CONFIG_FAULTS])
def test_a_folder_that_can_not_be_loaded_says_why(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_family_model(tmp_path, "llama3")
    (folder / "config.json").write_text(json.dumps(tiny_config("llama3", **changes)))
    with pytest.raises(ModelError, match=message):
        load_model(str(folder))


def test_windows_in_some_layers_only_are_refused(tmp_path: Path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    with pytest.raises(ModelError, match="max_window_layers"):
        load_model(str(write_family_model(tmp_path, "qwen2", **changes)))


def test_a_model_that_is_nowhere_says_what_can_be_given() -> None:
    with pytest.raises(ModelError, match=f"no such file or folder. Known by name is only {DEFAULT_MODEL}"):
        load_model("meta-llama/Llama-3.1-8B")


def test_a_folder_without_configuration_weights_or_a_shard_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config.json is missing"):
        load_model(str(tmp_path))
    folder = write_family_model(tmp_path / "model", "llama3", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 shards are missing: model-00002-of-00002\.safetensors"):
        load_model(str(folder))
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no \.safetensors file"):
        load_model(str(folder))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_files_cut_short_are_called_damaged(share: float, tmp_path: Path) -> None:
    folder = write_family_model(tmp_path, "llama3")
    for path in (folder / "model.safetensors", write_gguf(tmp_path / "model.gguf", tiny_config("llama3"))):
        content = path.read_bytes()
        path.write_bytes(content[: max(4, int(len(content) * share))])
        with pytest.raises(ModelError, match="damaged or cut short"):
            load_model(str(path if path.suffix == ".gguf" else folder))


def test_other_files_are_not_taken_for_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match="not a GGUF file"):
        load_model(str(path))


def test_a_gguf_file_of_another_architecture_or_with_a_tensor_missing_is_refused_by_name(tmp_path: Path) -> None:
    other = tiny_config("llama3", model_type="falcon")
    with pytest.raises(ModelError, match="architecture 'falcon' is not supported; supported are llama, qwen2, qwen3"):
        load_model(str(write_gguf(tmp_path / "other.gguf", other)))
    part = write_gguf(tmp_path / "part.gguf", tiny_config("llama3"), leave_out="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"tensors are missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(part))
