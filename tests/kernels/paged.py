"""Random paged caches and layouts for kernel tests: any backend is checked against `engine.kernels.reference` with them."""

from collections.abc import Sequence

import numpy as np

from engine.kernels.attention import AttentionShape, PrefillLayout

QUERY_BLOCK = 16


def random_pages(shape: AttentionShape, num_pages: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """K and V pages [P, S, K, D], f32."""
    dims = (num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim)
    return draw.standard_normal(dims, np.float32), draw.standard_normal(dims, np.float32)


def random_tables(num_rows: int, table_pages: int, num_pages: int, draw: np.random.Generator) -> np.ndarray:
    """Every row its own pages, in no order."""
    return draw.permutation(num_pages)[: num_rows * table_pages].reshape(num_rows, table_pages).astype(np.int32)


def prefill_layout(tables: np.ndarray, chunks: Sequence[tuple[int, int]], num_rows: int) -> PrefillLayout:
    """Chunks given as (tokens before, tokens) lie one behind the other at multiples of the query block."""
    sequences = tables.shape[0]
    owner = np.full(num_rows // QUERY_BLOCK, sequences - 1, np.int32)
    starts, tokens, context = np.zeros((3, sequences), np.int32)
    row = 0
    for index, (before, length) in enumerate(chunks):
        blocks = -(-length // QUERY_BLOCK)
        owner[row // QUERY_BLOCK : row // QUERY_BLOCK + blocks] = index
        starts[index], tokens[index], context[index] = row, length, before
        row += blocks * QUERY_BLOCK
    assert row <= num_rows
    return PrefillLayout(tables, owner, starts, tokens, context)


def chunk_rows(layout: PrefillLayout) -> np.ndarray:
    """Indices of the rows that belong to chunks."""
    spans = zip(layout.row_start.tolist(), layout.chunk_tokens.tolist(), strict=True)
    return np.concatenate([np.arange(start, start + tokens) for start, tokens in spans])
