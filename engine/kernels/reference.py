"""Plain twins of the attention kernels: dense gathers, one softmax, f32, in numpy. Tests compare every backend with these.

They take pages as [P, S, K, D] arrays, whatever layout the backend itself keeps; pages of 8 bits are quantised
and dequantised beside them.
"""

import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.paged_cache import QUANTISED_MAX


def write(k_pages: np.ndarray, v_pages: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Store k, v [T, K, D] at `slots` i32 [T] of pages [P, S, K, D]; -1 is skipped. Answers new pages."""
    stored = slots >= 0
    new_pages = []
    for pages, rows in ((k_pages, k), (v_pages, v)):
        flat = np.array(pages).reshape(-1, *pages.shape[2:])
        flat[slots[stored]] = np.asarray(rows)[stored].astype(flat.dtype)
        new_pages.append(flat.reshape(pages.shape))
    return new_pages[0], new_pages[1]


def quantize(x: np.ndarray, kv_dtype: str = "int8") -> tuple[np.ndarray, np.ndarray]:
    """x [..., D] -> int8 or fp8 [..., D] and f32 scales [...]: the largest magnitude becomes the type's, halves go to even.

    A vector below 1e-30 is zeros with scale 0; one that is not finite is zeros with scale NaN.
    """
    wide = np.asarray(x, np.float32)
    highest = np.abs(wide).max(axis=-1)
    used = np.isfinite(wide).all(axis=-1) & (highest >= np.float32(1e-30))
    largest = np.float32(QUANTISED_MAX[kv_dtype])
    inverse = largest / np.where(used, highest, np.float32(1))
    scaled = np.clip(np.where(used[..., None], wide, 0) * inverse[..., None], -largest, largest)
    values = (np.rint(scaled) if kv_dtype == "int8" else scaled).astype(kv_dtype)
    return values, np.where(used, highest / largest, np.where(np.isfinite(wide).all(axis=-1), np.float32(0), np.float32(np.nan)))


def dequantize(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The inverse of `quantize`, but for what it rounded away: f32 [..., D]."""
    return values.astype(np.float32) * scales[..., None]


def attend_one(
    shape: AttentionShape, k_pages: np.ndarray, v_pages: np.ndarray, q: np.ndarray, table: np.ndarray, first_position: int
) -> np.ndarray:
    """Queries q [n, H, D] of one sequence at first_position, first_position + 1, ...; table i32 [M] -> f32 [n, H, D]."""
    end = first_position + q.shape[0]
    group = shape.num_heads // shape.num_kv_heads
    k, v = (_dense(shape, pages, table)[:end].repeat(group, axis=1) for pages in (k_pages, v_pages))
    scores = np.einsum("nhd,shd->nhs", np.asarray(q, np.float32), k) * np.float32(shape.scale)
    if shape.soft_cap is not None:
        scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
    distance = np.arange(first_position, end)[:, None] - np.arange(end)[None, :]
    visible = distance >= 0
    if shape.sliding_window is not None:
        visible &= distance < shape.sliding_window
    scores = np.where(visible[:, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("nhs,shd->nhd", weights / weights.sum(axis=-1, keepdims=True), v)


def _dense(shape: AttentionShape, pages: np.ndarray, table: np.ndarray) -> np.ndarray:
    """One sequence's keys or values, f32 [M * S, K, D]."""
    return np.asarray(pages)[np.asarray(table)].reshape(-1, shape.num_kv_heads, shape.head_dim).astype(np.float32)


def decode(
    shape: AttentionShape, k_pages: np.ndarray, v_pages: np.ndarray, q: np.ndarray, tables: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """As `AttentionBackend.decode`: q [B, H, D] or [B, Q, H, D] -> f32 of the same shape; rows of length 0 answer 0."""
    queries = q if q.ndim == 4 else q[:, None]
    out = np.zeros(queries.shape, np.float32)
    for row, length in enumerate(lengths.tolist()):
        if length:
            out[row] = attend_one(shape, k_pages, v_pages, queries[row], tables[row], length - queries.shape[1])
    return out.reshape(q.shape)


def prefill(shape: AttentionShape, k_pages: np.ndarray, v_pages: np.ndarray, q: np.ndarray, layout: PrefillLayout) -> np.ndarray:
    """As `AttentionBackend.prefill`: q [T, H, D] -> f32 [T, H, D]; rows that belong to no chunk answer 0."""
    out = np.zeros(q.shape, np.float32)
    block_tokens = q.shape[0] // layout.block_sequence.shape[0]
    for sequence, tokens in enumerate(layout.chunk_tokens.tolist()):
        start = int(layout.row_start[sequence])
        blocks = layout.block_sequence[start // block_tokens : -(-(start + tokens) // block_tokens)]
        assert all(owner == sequence for owner in blocks.tolist()), "a chunk's query blocks name its sequence"
        if tokens:
            context = int(layout.context_tokens[sequence])
            rows = slice(start, start + tokens)
            out[rows] = attend_one(shape, k_pages, v_pages, q[rows], layout.tables[sequence], context)
    return out
