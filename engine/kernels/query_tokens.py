"""Several query tokens a row where a kernel's tile holds fewer: the tokens go through it a few at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def by_query_tokens(attend: Callable[[jax.Array, jax.Array], jax.Array], q: jax.Array, lengths: jax.Array, most_tokens: int) -> jax.Array:
    """`AttentionBackend.decode`, q [B, H, D] or [B, Q, H, D], by means of `attend`(q [B, n, H, D], lengths) with n <= most_tokens.

    Each part reads the context anew, but for the tokens behind its own.
    """
    queries = q if q.ndim == 4 else q[:, None]
    count = queries.shape[1]
    parts = []
    for start in range(0, count, most_tokens):
        end = min(start + most_tokens, count)
        parts.append(attend(queries[:, start:end], jnp.maximum(lengths - (count - end), 0)))
    return jnp.concatenate(parts, axis=1).reshape(q.shape)
