"""A Hugging Face folder's `config.json` as a `ModelConfig`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from engine.errors import ModelError
from engine.model.config import ModelConfig, RopeConfig

type Json = Mapping[str, Any]

_ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}


def read_json(path: Path) -> Json:
    """ModelError if the file is missing or is no JSON object."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; the folder must be a whole Hugging Face model") from None
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content


def config_from_folder(folder: Path, name: str) -> ModelConfig:
    """ModelError names an unsupported architecture, activation or rotation, or a missing key."""
    content = read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    return parse_config(content, generation, name)


def parse_config(content: Json, generation: Json, name: str) -> ModelConfig:
    """`generation` is `generation_config.json`: its end tokens win, for chat models add theirs there."""
    architecture = _architecture(content)
    if content.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act '{content['hidden_act']}' is not supported; only silu is")
    if "quantization_config" in content:
        raise ModelError(
            "quantised safetensors (quantization_config in config.json) are not supported; use the original weights or a GGUF file"
        )
    hidden_size, num_heads = _required(content, "hidden_size"), _required(content, "num_attention_heads")
    qwen2, llama = architecture == "qwen2", architecture == "llama"
    attention_bias = bool(content.get("attention_bias", False))
    bos = content.get("bos_token_id")
    return ModelConfig(
        name=name,
        architecture=cast(Literal["llama", "mistral", "qwen2", "qwen3"], architecture),
        vocab_size=_required(content, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_required(content, "intermediate_size"),
        num_layers=_required(content, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=content.get("num_key_value_heads") or num_heads,
        head_dim=content.get("head_dim") or hidden_size // num_heads,
        rms_norm_eps=content.get("rms_norm_eps", 1e-6),
        max_position=_required(content, "max_position_embeddings"),
        rope=_rope(content),
        tie_embeddings=bool(content.get("tie_word_embeddings", False)),
        qkv_bias=qwen2 or attention_bias,
        output_bias=attention_bias and not qwen2,
        mlp_bias=llama and bool(content.get("mlp_bias", False)),
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(content, architecture),
        bos_token_id=bos if isinstance(bos, int) else None,
        eos_token_ids=_eos_token_ids(content, generation),
    )


def _architecture(content: Json) -> str:
    named = content.get("architectures") or []
    for architecture in named:
        if architecture in _ARCHITECTURES:
            return _ARCHITECTURES[architecture]
    if not named and content.get("model_type") in _ARCHITECTURES.values():
        return str(content["model_type"])
    found = ", ".join(named) or content.get("model_type") or "none named"
    raise ModelError(f"architecture {found} is not supported; supported are {', '.join(_ARCHITECTURES)}")


def _required(content: Json, key: str) -> int:
    value = content.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ModelError(f"config.json: '{key}' must be a positive integer, is {value!r}")
    return value


def _rope(content: Json) -> RopeConfig:
    """Both spellings: `rope_theta` + `rope_scaling`, and transformers 5's `rope_parameters`, which holds both."""
    parameters = content.get("rope_parameters") or content.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or content.get("rope_theta") or 10_000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling="linear", factor=float(parameters["factor"]))
    if kind != "llama3":
        raise ModelError(f"RoPE scaling '{kind}' is not supported; supported are default, linear and llama3")
    return RopeConfig(
        theta=theta,
        scaling="llama3",
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_position=int(parameters["original_max_position_embeddings"]),
    )


def _sliding_window(content: Json, architecture: str) -> int | None:
    """Mistral's window holds in every layer; Qwen's is off unless switched on, and then only from some layer up."""
    window = content.get("sliding_window")
    if not window or architecture == "llama":
        return None
    if architecture == "mistral":
        return int(window)
    if not content.get("use_sliding_window", False) or content.get("max_window_layers", 0) >= content["num_hidden_layers"]:
        return None
    if content.get("max_window_layers", 0) > 0:
        raise ModelError("a sliding window in some layers only (max_window_layers) is not supported; set use_sliding_window to false")
    return int(window)


def _eos_token_ids(content: Json, generation: Json) -> tuple[int, ...]:
    found = generation.get("eos_token_id", content.get("eos_token_id"))
    if found is None:
        return ()
    return tuple(sorted(found)) if isinstance(found, list) else (found,)
