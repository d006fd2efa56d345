"""The text of `fairlane model info MODEL`: what a model weighs and what fits on which card."""

from engine.model.config import ModelConfig
from engine.model.kv_size import BYTES_OF, SCALED, kv_bytes_per_token
from engine.model.memory import gigabytes, weight_bytes
from engine.model.source import open_source

CARD_GB = (24, 40, 80, 141, 192)
"""Memory of common cards, in 10^9 bytes (RTX 4090, A100, H100, H200, B200)."""
USABLE_SHARE = 0.9
"""What is left of a card for weights and KV, the rest being activations, programs and the driver."""
LENGTHS_TOKENS = (1_024, 4_096, 8_192, 32_768, 131_072)


def describe_model(model: str, *, dtype: str = "bfloat16", quantization: str = "none", kv_dtype: str = "bfloat16") -> str:
    """Several lines of text. ModelError if the model can not be found or is not supported."""
    source = open_source(model)
    config = source.config
    weights, per_token = weight_bytes(source, dtype=dtype, quantization=quantization), kv_bytes_per_token(config, kv_dtype)
    stored = dtype if quantization == "none" else quantization
    shape = (
        f"{config.name}: {config.architecture}, {config.num_layers} layers, hidden {config.hidden_size}, "
        f"{config.num_heads} query and {config.num_kv_heads} KV heads of {config.head_dim}, "
        f"vocabulary {config.vocab_size:,}, context {config.max_position:,}"
    )
    vector = f"{config.head_dim} head dim x {BYTES_OF[kv_dtype]} bytes"
    vector = f"({vector} + a scale of 4)" if kv_dtype in SCALED else vector
    factors = f"{config.num_layers} layers x {config.num_kv_heads} KV heads x {vector}"
    lines = [
        shape,
        f"weights       {gigabytes(weights)} ({stored})",
        f"KV per token  {per_token:,} bytes = {per_token / 1e6:.3g} MB (2 x {factors})",
        "",
        f"sequences that fit with {USABLE_SHARE:.0%} of the card used:",
        *_fit_table(config, weights, per_token),
    ]
    return "\n".join(lines)


def sequences_that_fit(card_bytes: int, weights: int, per_token: int, length_tokens: int) -> int:
    """Sequences of this length whose KV fits beside the weights; 0 when even the weights do not."""
    return max(0, int(card_bytes * USABLE_SHARE) - weights) // (per_token * length_tokens)


def _fit_table(config: ModelConfig, weights: int, per_token: int) -> list[str]:
    lengths = [length for length in LENGTHS_TOKENS if length < config.max_position] + [config.max_position]
    header = f"{'card':>8}" + "".join(f"{length:>12,}" for length in lengths) + "  tokens each"
    rows = []
    for card_gb in CARD_GB:
        counts = [sequences_that_fit(card_gb * 10**9, weights, per_token, length) for length in lengths]
        rows.append(f"{card_gb:>5} GB" + "".join(f"{count:>12,}" if count else f"{'-':>12}" for count in counts))
    return [header, *rows]
