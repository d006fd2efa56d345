"""What a decoder-only transformer of the Llama kind is made of, whatever file it came from."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions. `llama3` scaling is Meta's (low/high frequency factors), `linear` divides positions, `divisors`
    divides the frequency of each pair by its own factor (how a GGUF file stores Llama 3's scaling)."""

    theta: float = 10_000.0
    scaling: Literal["none", "linear", "llama3", "divisors"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8_192
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shapes and constants. Letters: H query heads, K KV heads, D head dim, V vocabulary (ARCHITECTURE.md)."""

    name: str
    architecture: Literal["llama", "mistral", "qwen2", "qwen3"]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each head of q and k before the rotation (Qwen3)."""
    sliding_window: int | None = None
    """Tokens a position sees, itself included; None sees all."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    split_over: int = 1
    """Devices that share each matrix: heads and MLP width are then one device's (`engine.model.devices.share_of`)."""
