"""How many bytes cached keys and values take: arithmetic on a configuration, no device and no files."""

from engine.model.config import ModelConfig

BYTES_OF = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
"""Bytes of one value."""

SCALED = ("int8", "float8_e4m3fn")
"""KV types with an f32 scale for each token and head."""
SCALE_BYTES = 4


def kv_vector_bytes(head_dim: int, kv_dtype: str) -> int:
    """One token's K, or V, in one head: its values, and of a type of 8 bits their f32 scale."""
    return head_dim * BYTES_OF[kv_dtype] + (SCALE_BYTES if kv_dtype in SCALED else 0)


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str) -> int:
    """2 (K and V) x layers x KV heads x bytes of a head's vector. Not hidden size: query heads share KV heads."""
    return 2 * config.num_layers * config.num_kv_heads * kv_vector_bytes(config.head_dim, kv_dtype)
