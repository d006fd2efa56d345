"""The network of the Llama kind: one pure function for every use, told from outside how to attend.

The paged engine hands in an `attend` that writes pages and runs decode rows and prefill chunks; the dense reference
(`dense_attend`, for tests and parity runs) hands in plain causal attention. Layers are unrolled and their caches are
separate arrays: one stacked cache scanned over layers would be copied whole every step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int

from engine.kernels.attention import LayerCache
from engine.kernels.products import OwnRows, product
from engine.model.config import ModelConfig
from engine.model.devices import gather_vocabulary, own_tokens, sum_over_devices
from engine.model.layers import gated_mlp, linear, rms_norm, rope_tables, rotate
from engine.model.params import LayerParams, Params


@runtime_checkable
class Attend(Protocol):
    """How one layer attends: stores k and v wherever it keeps them and answers for every token of the step."""

    def __call__(
        self,
        q: Float[Array, "T H D"],
        k: Float[Array, "T K D"],
        v: Float[Array, "T K D"],
        cache: LayerCache,
    ) -> tuple[Float[Array, "T H D"], LayerCache]: ...


def forward(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, " T"],
    positions: Int[Array, " T"],
    attend: Attend,
    caches: Sequence[LayerCache],
) -> tuple[Float[Array, "T hidden"], tuple[LayerCache, ...]]:
    """Hidden states before the final norm (which `logits` applies, at sampled rows only) and the new caches.

    Residual stream and result have the type of `params.embed`. Token ids must lie in the vocabulary: the gather clamps.
    """
    cos, sin = rope_tables(config.rope, config.head_dim, positions)
    hidden = embed(config, params, tokens)
    join = partial(sum_over_devices, config)

    @jax.jit  # traced once, not once a layer: a warm start is mostly tracing
    def block(layer: LayerParams, hidden: jax.Array, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        normed = rms_norm(hidden, layer.input_norm, config.rms_norm_eps)
        q, k, v = _project(config, layer, normed, cos, sin)
        attended, cache = attend(q, k, v, cache)
        hidden = hidden + linear(attended.reshape(hidden.shape[0], -1), layer.output, layer.output_bias, join)
        normed = rms_norm(hidden, layer.post_norm, config.rms_norm_eps)
        hidden = hidden + gated_mlp(normed, layer.gate_up, layer.gate_up_bias, layer.down, layer.down_bias, join)
        return hidden, cache

    new_caches = []
    for layer, cache in zip(params.layers, caches, strict=True):
        hidden, cache = block(layer, hidden, cache)
        new_caches.append(cache)
    return hidden, tuple(new_caches)


def embed(config: ModelConfig, params: Params, tokens: Int[Array, " T"]) -> Float[Array, "T hidden"]:
    """Rows of the embedding; a packed one, shared with the head, unpacks its own. Of a split one each device adds what it has."""
    if isinstance(params.embed, OwnRows):
        return params.embed.rows(tokens)
    if config.split_over == 1:
        return jnp.take(params.embed, tokens, axis=0, mode="clip")
    rows, is_own = own_tokens(tokens, params.embed.shape[0])
    found = jnp.take(params.embed, rows, axis=0, mode="clip")
    return sum_over_devices(config, jnp.where(is_own[:, None], found, 0))


def _project(
    config: ModelConfig, layer: LayerParams, x: Float[Array, "T hidden"], cos: jax.Array, sin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [T, H, D], k and v [T, K, D]: one product, then norms where the family has them, then the rotation."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    qkv = linear(x, layer.qkv, layer.qkv_bias).reshape(x.shape[0], heads + 2 * kv_heads, config.head_dim)
    q, k, v = jnp.split(qkv, [heads, heads + kv_heads], axis=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
        k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def logits(
    config: ModelConfig, params: Params, hidden_rows: Float[Array, "N hidden"], live: Bool[Array, " N"] | None = None
) -> Float32[Array, "N V"]:
    """Final norm and head at the rows that sample, accumulated and returned in f32. Nobody reads the rows that are not `live`."""
    normed = rms_norm(hidden_rows, params.final_norm, config.rms_norm_eps)
    head = params.embed if params.head is None else params.head
    return gather_vocabulary(config, product(normed, head, out_dtype=jnp.float32, live=live))


def dense_attend(config: ModelConfig) -> Attend:
    """Causal attention over the step's own T tokens, no cache: the reference that the paged engine is compared with."""
    group = config.num_heads // config.num_kv_heads

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, cache: LayerCache) -> tuple[jax.Array, LayerCache]:
        num_tokens = q.shape[0]
        distance = jnp.arange(num_tokens)[:, None] - jnp.arange(num_tokens)[None, :]
        visible = distance >= 0
        if config.sliding_window is not None:
            visible &= distance < config.sliding_window
        grouped = q.reshape(num_tokens, config.num_kv_heads, group, config.head_dim)
        scores = jnp.einsum("tkgd,skd->kgts", grouped, k, preferred_element_type=jnp.float32) * config.head_dim**-0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
        return jnp.einsum("kgts,skd->tkgd", weights, v).reshape(q.shape), cache

    return attend
