"""Random weights of tiny models, one a family, the same on every machine: numpy's frozen generator, nothing else.

Used by our tests and by `python -m benchmarks.reference.make_reference`, which runs on an older Python with torch: both sides
read the same Hugging Face folder. Imports neither the engine nor jax.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

TINY_VOCAB_SIZE = 512
WINDOW_TOKENS = 24

BASE: dict[str, Any] = {
    "vocab_size": TINY_VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-linear": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": 4,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "attention_bias": True,
        "mlp_bias": True,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "head_dim": 32,
        "sliding_window": WINDOW_TOKENS,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 32},
}
"""`config.json` of each family, over `BASE`."""


def tiny_config(family: str, **changes: Any) -> dict[str, Any]:
    return {**BASE, **FAMILIES[family], **changes}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Hugging Face checkpoint of this configuration."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    out_of = {"q": config["num_attention_heads"] * head_dim, "k": config["num_key_value_heads"] * head_dim}
    out_of["v"] = out_of["k"]
    attention_bias = config.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes[layer + "input_layernorm.weight"] = shapes[layer + "post_attention_layernorm.weight"] = (hidden,)
        for name, out in out_of.items():
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (out, hidden)
            if attention_bias or config["model_type"] == "qwen2":
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (out,)
        shapes[layer + "self_attn.o_proj.weight"] = (hidden, out_of["q"])
        if attention_bias:
            shapes[layer + "self_attn.o_proj.bias"] = (hidden,)
        if config["model_type"] == "qwen3":
            shapes[layer + "self_attn.q_norm.weight"] = shapes[layer + "self_attn.k_norm.weight"] = (head_dim,)
        for name, (out, width) in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            shapes[f"{layer}mlp.{name}_proj.weight"] = (out, width)
            if config.get("mlp_bias", False):
                shapes[f"{layer}mlp.{name}_proj.bias"] = (out,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def random_tensors(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """f32 tensors, scaled so that every part of the network matters to the logits."""
    draw = np.random.RandomState(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = draw.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = 1 + 0.1 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        elif "embed" in name:
            values = 0.2 * values  # small beside what the layers add, or a tied head would only repeat its input
        else:
            values = values / np.sqrt(shape[-1])
        tensors[name] = values.astype(np.float32)
    return tensors


def write_tiny_weights(folder: Path, config: dict[str, Any], seed: int = 0, shards: int = 1) -> None:
    """Write `config.json` and the weights, in one file or in `shards` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = random_tensors(config, seed)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
