"""A GGUF file's metadata as a `ModelConfig`, and the names and row order of its tensors."""

from typing import Literal, cast

import numpy as np

from engine.errors import ModelError
from engine.model.config import ModelConfig, RopeConfig
from engine.model.gguf_file import GgufFile, GgufTensor

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_ROPE_DIVISORS = "rope_freqs.weight"

_OUTER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def config_from_gguf(file: GgufFile, name: str) -> ModelConfig:
    """ModelError names an unsupported architecture or a missing key."""
    if file.architecture not in _ARCHITECTURES:
        raise ModelError(f"{file.path}: architecture '{file.architecture}' is not supported; supported are {', '.join(_ARCHITECTURES)}")
    num_heads = _required(file, "attention.head_count")
    hidden_size = _required(file, "embedding_length")
    head_dim = file.setting("attention.key_length", hidden_size // num_heads)
    if file.setting("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{file.path}: rotation over a part of the head's dimensions is not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing; the file is not a whole model")
    eos_keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return ModelConfig(
        name=name,
        architecture=cast(Literal["llama", "qwen2", "qwen3"], file.architecture),
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=_required(file, "feed_forward_length"),
        num_layers=_required(file, "block_count"),
        num_heads=num_heads,
        num_kv_heads=file.setting("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=float(file.setting("attention.layer_norm_rms_epsilon", 1e-5)),
        max_position=_required(file, "context_length"),
        rope=_rope(file),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=file.setting("attention.sliding_window") or None,
        bos_token_id=file.fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(sorted({file.fields[key] for key in eos_keys if key in file.fields})),
    )


def _required(file: GgufFile, key: str) -> int:
    value = file.setting(key)
    if not isinstance(value, int):
        raise ModelError(
            f"{file.path}: key {file.architecture}.{key} is {value!r} and must be a whole number; the file is damaged or not supported"
        )
    return value


def _rope(file: GgufFile) -> RopeConfig:
    theta = float(file.setting("rope.freq_base", 10_000.0))
    if _ROPE_DIVISORS in file.tensors:
        tensor = file.tensors[_ROPE_DIVISORS]
        divisors = np.empty(tensor.shape, np.float32)
        tensor.read_into(divisors)
        return RopeConfig(theta=theta, scaling="divisors", divisors=tuple(divisors.tolist()))
    scaling = file.setting("rope.scaling.type", "none")
    if scaling == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=float(file.setting("rope.scaling.factor", 1.0)))
    if scaling != "none":
        raise ModelError(f"{file.path}: RoPE scaling '{scaling}' is not supported; supported are none, linear and Llama 3's")
    return RopeConfig(theta=theta)


def gguf_name(name: str) -> str:
    """GGUF's name of a tensor that Hugging Face calls `name`."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER_NAMES:
        return f"{_OUTER_NAMES[stem]}.{kind}"
    _, _, index, part = stem.split(".", 3)
    return f"blk.{index}.{_LAYER_NAMES[part]}.{kind}"


def find_tensor(file: GgufFile, config: ModelConfig, name: str) -> GgufTensor | None:
    """The tensor of this Hugging Face name, still quantised, its rows in Hugging Face's order; None if there is none.

    llama.cpp pairs neighbouring dimensions in the rotation, so its converter interleaves the two halves of each head
    of q and k for the architecture `llama` (not for qwen2 and qwen3). A row permutation undoes it, blocks untouched.
    """
    tensor = file.tensors.get(gguf_name(name))
    if tensor is None or file.architecture != "llama" or ("q_proj" not in name and "k_proj" not in name):
        return tensor
    num_heads = config.num_heads if "q_proj" in name else config.num_kv_heads
    order = np.arange(num_heads * config.head_dim).reshape(num_heads, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
    return tensor.take_rows(order)
