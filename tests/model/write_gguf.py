"""Writes a tiny model as a GGUF file the way llama.cpp's converter does, q and k interleaved for the architecture llama."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine.model.config import RopeConfig
from engine.model.gguf_config import gguf_name
from engine.model.layers import rope_frequencies
from tests.tiny_weights import random_tensors

Q8_0 = gguf.GGMLQuantizationType.Q8_0
F32 = gguf.GGMLQuantizationType.F32


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The converter's permutation: halves of each head, (0, D/2), (1, D/2 + 1), ..."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, config: dict[str, Any], *, seed: int = 0, quantise: bool = False, leave_out: str = "") -> Path:
    """`quantise` stores matrices as Q8_0; `leave_out` names a tensor that is not written."""
    architecture = config["model_type"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in random_tensors(config, seed).items():
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            values = interleaved(values, heads[part])
        kind = Q8_0 if quantise and values.ndim == 2 else F32
        if name != leave_out:
            writer.add_tensor(gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_divisors(config: dict[str, Any]) -> np.ndarray:
    """What the converter stores instead of Llama 3's scaling parameters."""
    scaling, head_dim = config["rope_scaling"], config["hidden_size"] // config["num_attention_heads"]
    scaled = RopeConfig(
        theta=config["rope_theta"],
        scaling="llama3",
        factor=scaling["factor"],
        low_freq_factor=scaling["low_freq_factor"],
        high_freq_factor=scaling["high_freq_factor"],
        original_max_position=scaling["original_max_position_embeddings"],
    )
    return rope_frequencies(RopeConfig(theta=config["rope_theta"]), head_dim) / rope_frequencies(scaled, head_dim)
