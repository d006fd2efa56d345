"""The one interface of the attention backends (`xla`, `cpu-native`, `pallas-triton`, `pallas-mosaic`).

A layer's cache is a pytree that only its backend looks into (pages [P, S, K, D] of K and of V for `xla`; a native
backend may choose another page layout); the page is the first axis of every array, so that whole pages can be copied.
A token's *slot in the cache* is `page * S + offset`; -1 writes nothing.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

type LayerCache = Any

MAX_QUERY_TOKENS = 8
"""Of one row of a decode: its own token and the drafts that one step verifies."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Static facts of one layer's attention. `scale` multiplies q·k (usually D ** -0.5); nothing is hidden."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None


class PrefillLayout(NamedTuple):
    """Where the chunks of a step lie in its T prefill rows. N sequences, query blocks of 16 rows.

    A block belongs to one sequence; rows behind a chunk's end in its last block are padding. Unused sequences have
    `chunk_tokens` 0; unused blocks carry `block_sequence` N - 1 and lie behind every chunk's end.
    """

    tables: jax.Array  # i32 [N, M] page ids
    block_sequence: jax.Array  # i32 [T / 16]
    row_start: jax.Array  # i32 [N] first row of the chunk in T
    chunk_tokens: jax.Array  # i32 [N]
    context_tokens: jax.Array  # i32 [N] tokens before the chunk, already in the cache


class AttentionBackend(Protocol):
    """Write first, then attend: K and V of the step's own tokens are in the cache when attention runs."""

    @property
    def name(self) -> str: ...

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        """Whether this backend can do the shape on this machine; the caller falls back to `xla` with a log line."""
        ...

    def allocate(self, shape: AttentionShape, num_pages: int, kv_dtype: str) -> LayerCache:
        """Zeroed cache of one layer."""
        ...

    def write(self, shape: AttentionShape, cache: LayerCache, k: jax.Array, v: jax.Array, slots: jax.Array) -> LayerCache:
        """Store k, v [T, K, D] at `slots` i32 [T]; -1 is skipped. In place when the cache is donated."""
        ...

    def decode(self, shape: AttentionShape, cache: LayerCache, q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        """q [B, H, D], tables i32 [B, M], lengths i32 [B] (tokens to read, own included; 0: padding) -> [B, H, D].

        Or q [B, Q, H, D] -> [B, Q, H, D]: each row's last Q tokens in order, 1 to `MAX_QUERY_TOKENS`, of which the last sees
        `lengths` tokens (at least Q, or 0) and each one before it one fewer. The caller passes rows sorted by length, longest
        first, so that groups of rows share a loop bound.
        """
        ...

    def prefill(self, shape: AttentionShape, cache: LayerCache, q: jax.Array, layout: PrefillLayout) -> jax.Array:
        """q [T, H, D], causal within the chunk, everything before it visible -> [T, H, D]."""
        ...
