"""Names and shapes of every tensor a model has, as Hugging Face names them."""

from engine.model.config import ModelConfig


def layer_name(index: int, part: str, kind: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight`."""
    return f"model.layers.{index}.{part}.{kind}"


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """All tensors of a checkpoint, [out, in] for matrices."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for index in range(config.num_layers):
        for part, kind, shape in _layer_tensors(config):
            shapes[layer_name(index, part, kind)] = shape
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_tensors(config: ModelConfig) -> list[tuple[str, str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = [
        ("self_attn.q_proj", q_width, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_width, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_width, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ]
    found: list[tuple[str, str, tuple[int, ...]]] = [
        (norm, "weight", (hidden,)) for norm in ("input_layernorm", "post_attention_layernorm")
    ]
    if config.qk_norm:
        found += [(norm, "weight", (config.head_dim,)) for norm in ("self_attn.q_norm", "self_attn.k_norm")]
    for part, out, width, has_bias in matrices:
        found.append((part, "weight", (out, width)))
        if has_bias:
            found.append((part, "bias", (out,)))
    return found
