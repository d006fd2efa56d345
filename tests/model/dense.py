"""Whole texts through the network with dense attention: what tests of the network and its weights share."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from engine.model.config import ModelConfig
from engine.model.params import Params
from engine.model.transformer import dense_attend, forward, logits

PADDED_TOKENS = (128, 384, 2048)
"""Texts are padded behind their end to one of these, which causal attention does not see: few programs to compile."""

_HEAD_ROWS = 128


def dense_hidden(config: ModelConfig, params: Params, token_ids: Sequence[int]) -> jax.Array:
    """Hidden states of every token, [T, hidden]."""
    size = next(size for size in PADDED_TOKENS if size >= len(token_ids))
    tokens = jnp.array(list(token_ids) + [0] * (size - len(token_ids)))
    return _forward(config, params, tokens)[: len(token_ids)]


def dense_logits(config: ModelConfig, params: Params, token_ids: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """f32 [N, V] at N positions."""
    hidden = dense_hidden(config, params, token_ids)
    return np.asarray(_logits(config, params, hidden[jnp.array(positions)]))


def dense_scores(config: ModelConfig, params: Params, token_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """For each token after the first its NLL, [T - 1], and after every token the most likely next one, [T]."""
    hidden = _row_groups(dense_hidden(config, params, token_ids))
    targets = _row_groups(jnp.array([*token_ids[1:], 0]))
    groups = [_scores(config, params, rows, target) for rows, target in zip(hidden, targets, strict=True)]
    nll, best = (np.concatenate([np.asarray(group[part]) for group in groups])[: len(token_ids)] for part in (0, 1))
    return nll[:-1], best


def _row_groups(rows: jax.Array) -> list[jax.Array]:
    padding = -len(rows) % _HEAD_ROWS
    padded = jnp.pad(rows, [(0, padding)] + [(0, 0)] * (rows.ndim - 1))
    return list(jnp.split(padded, len(padded) // _HEAD_ROWS))


@jax.jit(static_argnums=0)
def _forward(config: ModelConfig, params: Params, tokens: jax.Array) -> jax.Array:
    caches = (None,) * config.num_layers
    return forward(config, params, tokens, jnp.arange(len(tokens)), dense_attend(config), caches)[0]


@jax.jit(static_argnums=0)
def _logits(config: ModelConfig, params: Params, rows: jax.Array) -> jax.Array:
    return logits(config, params, rows)


@jax.jit(static_argnums=0)
def _scores(config: ModelConfig, params: Params, rows: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    log_probs = jax.nn.log_softmax(logits(config, params, rows))
    return -jnp.take_along_axis(log_probs, targets[:, None], axis=1)[:, 0], jnp.argmax(log_probs, axis=1)
