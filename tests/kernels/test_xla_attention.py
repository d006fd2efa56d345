"""The XLA backend against its plain twin, over lengths, tables, groups and windows at page and block edges."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import reference
from engine.kernels.attention import MAX_QUERY_TOKENS, AttentionShape
from engine.kernels.xla_attention import PagedKv, XlaAttention, quantize_rows
from tests.kernels.paged import chunk_rows, prefill_layout, random_pages, random_tables

SHAPES = {
    "gqa": AttentionShape(num_heads=6, num_kv_heads=2, head_dim=16, page_size=16, scale=0.25),
    "multi-head": AttentionShape(num_heads=3, num_kv_heads=3, head_dim=8, page_size=16, scale=0.3),
    "multi-query": AttentionShape(num_heads=4, num_kv_heads=1, head_dim=16, page_size=64, scale=0.25),
    "window": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, page_size=16, scale=0.35, sliding_window=40),
    "wide-window": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, page_size=16, scale=0.35, sliding_window=300),
    "soft-cap": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, page_size=16, scale=2.0, soft_cap=3.0),
}
CONTEXT = 640
EDGES = st.sampled_from([1, 15, 16, 17, 39, 40, 41, 255, 256, 257, 299, 300, 301, 512, 600]) | st.integers(0, 624)
BACKEND = XlaAttention()


@functools.cache
def compiled(shape: AttentionShape, part: str):
    return jax.jit(functools.partial(getattr(BACKEND, part), shape))


def pages_and_tables(shape: AttentionShape, rows: int, seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    table_pages = CONTEXT // shape.page_size
    keys, values = random_pages(shape, rows * table_pages + 3, draw)
    return draw, keys, values, random_tables(rows, table_pages, keys.shape[0], draw)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(EDGES, min_size=11, max_size=11), seed=st.integers(0, 99))
def test_decode_equals_the_twin(name: str, lengths: list[int], seed: int) -> None:
    shape = SHAPES[name]
    draw, keys, values, tables = pages_and_tables(shape, 11, seed)
    ordered = np.array(sorted(lengths, reverse=True), np.int32)
    q = draw.standard_normal((11, shape.num_heads, shape.head_dim), np.float32)
    got = compiled(shape, "decode")(PagedKv(keys, values), q, tables, ordered)
    want = reference.decode(shape, keys, values, q, tables, ordered)
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(EDGES, min_size=9, max_size=9), queries=st.sampled_from([2, MAX_QUERY_TOKENS]), seed=st.integers(0, 99))
def test_decode_of_several_tokens_a_row_equals_the_twin(name: str, lengths: list[int], queries: int, seed: int) -> None:
    shape = SHAPES[name]
    draw, keys, values, tables = pages_and_tables(shape, 9, seed)
    ordered = np.array(sorted((length and max(length, queries) for length in lengths), reverse=True), np.int32)
    q = draw.standard_normal((9, queries, shape.num_heads, shape.head_dim), np.float32)
    got = compiled(shape, "decode")(PagedKv(keys, values), q, tables, ordered)
    np.testing.assert_allclose(got, reference.decode(shape, keys, values, q, tables, ordered), atol=2e-5)


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=12, deadline=None)
@given(
    chunks=st.lists(st.tuples(EDGES, st.sampled_from([1, 15, 16, 17, 31, 32]) | st.integers(1, 47)), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_prefill_of_several_chunks_equals_the_twin(name: str, chunks: list[tuple[int, int]], seed: int) -> None:
    shape = SHAPES[name]
    fitting = [(min(before, CONTEXT - tokens), tokens) for before, tokens in chunks]
    compare_prefill(shape, fitting, 192, seed)


@pytest.mark.parametrize("chunks", [[(0, 512)], [(100, 500)], [(0, 129), (3, 257)], [(128, 1)]])
@pytest.mark.parametrize("name", ["gqa", "window"])
def test_prefill_of_long_chunks_equals_the_twin(name: str, chunks: list[tuple[int, int]]) -> None:
    compare_prefill(SHAPES[name], chunks, 512, 0)


def compare_prefill(shape: AttentionShape, chunks: list[tuple[int, int]], num_rows: int, seed: int) -> None:
    draw, keys, values, tables = pages_and_tables(shape, 4, seed)
    layout = prefill_layout(tables, chunks, num_rows)
    q = draw.standard_normal((num_rows, shape.num_heads, shape.head_dim), np.float32)
    got = np.asarray(compiled(shape, "prefill")(PagedKv(keys, values), q, layout))
    want = np.asarray(reference.prefill(shape, keys, values, q, layout))
    rows = chunk_rows(layout)
    np.testing.assert_allclose(got[rows], want[rows], atol=2e-5)


def test_a_nan_behind_a_sequences_end_reaches_nobody() -> None:
    shape = SHAPES["gqa"]
    draw, keys, values, tables = pages_and_tables(shape, 2, 0)
    keys[tables[0, 1], 3:] = np.nan
    values[tables[0, 1], 3:] = np.nan
    q = draw.standard_normal((2, shape.num_heads, shape.head_dim), np.float32)
    got = compiled(shape, "decode")(PagedKv(keys, values), q, tables, np.array([19, 5], np.int32))
    assert np.isfinite(got).all()
    layout = prefill_layout(tables, [(10, 9), (0, 5)], 192)
    wide = np.resize(q, (192, *q.shape[1:]))
    rows = np.asarray(compiled(shape, "prefill")(PagedKv(keys, values), wide, layout))[chunk_rows(layout)]
    assert np.isfinite(rows).all()


def test_a_nan_scale_of_8_bit_pages_behind_a_sequences_end_reaches_nobody() -> None:
    shape = SHAPES["gqa"]
    draw, keys, values, tables = pages_and_tables(shape, 2, 0)
    keys[tables[0, 1], 3:] = np.nan
    values[tables[0, 1], 3:] = np.nan
    pages, k, v = narrow_pages(keys, values, "int8")
    assert all(np.isnan(np.asarray(scale)).any() for scale in (pages.k_scale, pages.v_scale))
    q = draw.standard_normal((2, 3, shape.num_heads, shape.head_dim), np.float32)
    lengths = np.array([19, 5], np.int32)
    np.testing.assert_allclose(
        compiled(shape, "decode")(pages, q, tables, lengths),
        reference.decode(shape, np.nan_to_num(k), np.nan_to_num(v), q, tables, lengths),
        atol=2e-5,
    )
    layout = prefill_layout(tables, [(10, 9), (0, 5)], 192)
    wide = np.resize(q, (192, *q.shape[2:]))
    rows = np.asarray(compiled(shape, "prefill")(pages, wide, layout))[chunk_rows(layout)]
    assert np.isfinite(rows).all()


@settings(max_examples=20, deadline=None)
@given(slots=st.lists(st.integers(-1, 63), min_size=6, max_size=6, unique_by=lambda slot: slot if slot >= 0 else object()))
def test_write_equals_the_twin_and_skips_minus_one(slots: list[int]) -> None:
    shape = SHAPES["gqa"]
    draw = np.random.default_rng(1)
    keys, values = random_pages(shape, 4, draw)
    k, v = draw.standard_normal((2, 6, shape.num_kv_heads, shape.head_dim), np.float32)
    where = np.array(slots, np.int32)
    got = compiled(shape, "write")(PagedKv(keys, values), k, v, where)
    want = reference.write(keys, values, k, v, where)
    np.testing.assert_array_equal(got.k, want[0])
    np.testing.assert_array_equal(got.v, want[1])


def test_bfloat16_pages_come_near_the_twin() -> None:
    shape = SHAPES["gqa"]
    draw, keys, values, tables = pages_and_tables(shape, 4, 3)
    pages = PagedKv(jnp.asarray(keys, jnp.bfloat16), jnp.asarray(values, jnp.bfloat16))
    q = jnp.asarray(draw.standard_normal((4, shape.num_heads, shape.head_dim)), jnp.bfloat16)
    lengths = np.array([600, 300, 17, 1], np.int32)
    got = jax.jit(functools.partial(BACKEND.decode, shape))(pages, q, tables, lengths)
    want = reference.decode(shape, np.asarray(pages.k), np.asarray(pages.v), np.asarray(q), tables, lengths)
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.02)


def narrow_pages(keys: np.ndarray, values: np.ndarray, kv_dtype: str) -> tuple[PagedKv, np.ndarray, np.ndarray]:
    """A cache of 8 bits, and its keys and values as the twins read them."""
    (k, k_scale), (v, v_scale) = reference.quantize(keys, kv_dtype), reference.quantize(values, kv_dtype)
    return PagedKv(*map(jnp.asarray, (k, v, k_scale, v_scale))), reference.dequantize(k, k_scale), reference.dequantize(v, v_scale)


@pytest.mark.parametrize(("name", "kv_dtype"), [*((name, "int8") for name in SHAPES), ("gqa", "float8_e4m3fn")])
@settings(max_examples=6, deadline=None)
@given(lengths=st.lists(EDGES, min_size=11, max_size=11), seed=st.integers(0, 99))
def test_decode_of_8_bit_pages_equals_the_twin(name: str, kv_dtype: str, lengths: list[int], seed: int) -> None:
    shape = SHAPES[name]
    draw, keys, values, tables = pages_and_tables(shape, 11, seed)
    pages, k, v = narrow_pages(keys, values, kv_dtype)
    ordered = np.array(sorted(lengths, reverse=True), np.int32)
    q = draw.standard_normal((11, shape.num_heads, shape.head_dim), np.float32)
    got = compiled(shape, "decode")(pages, q, tables, ordered)
    np.testing.assert_allclose(got, reference.decode(shape, k, v, q, tables, ordered), atol=2e-5)


@pytest.mark.parametrize(("name", "kv_dtype"), [("gqa", "int8"), ("window", "int8"), ("gqa", "float8_e4m3fn")])
def test_prefill_of_8_bit_pages_equals_the_twin(name: str, kv_dtype: str) -> None:
    shape = SHAPES[name]
    draw, keys, values, tables = pages_and_tables(shape, 4, 0)
    pages, k, v = narrow_pages(keys, values, kv_dtype)
    layout = prefill_layout(tables, [(0, 129), (300, 47), (3, 17)], 256)
    q = draw.standard_normal((256, shape.num_heads, shape.head_dim), np.float32)
    rows = chunk_rows(layout)
    got = np.asarray(compiled(shape, "prefill")(pages, q, layout))[rows]
    np.testing.assert_allclose(got, reference.prefill(shape, k, v, q, layout)[rows], atol=2e-5)


@pytest.mark.parametrize(("kv_dtype", "step"), [("int8", 1.0), ("float8_e4m3fn", 32.0)])
def test_rows_are_quantised_as_the_twin_does_it_and_what_is_not_finite_gets_a_nan_for_its_scale(kv_dtype: str, step: float) -> None:
    rows = np.random.default_rng(2).standard_normal((40, 2, 16)).astype(np.float32)
    rows[0], rows[1], rows[2, 0, 3], rows[3, 1, 5] = 0, 1e-31, np.nan, -np.inf
    got, scale = map(np.asarray, jax.jit(quantize_rows, static_argnums=1)(rows, jnp.dtype(kv_dtype)))
    want, want_scale = reference.quantize(rows, kv_dtype)
    assert np.abs(got.astype(np.float32) - want.astype(np.float32)).max() <= step  # XLA may divide by multiplying
    np.testing.assert_allclose(scale, want_scale, rtol=1e-6)
    assert np.isnan(scale[2, 0]) and np.isnan(scale[3, 1]) and np.isnan(scale).sum() == 2
    assert not scale[:2].any()


@pytest.mark.parametrize(("kv_dtype", "error"), [("int8", 0.02), ("float8_e4m3fn", 0.13)])
def test_8_bit_pages_are_written_with_their_scales_and_minus_one_writes_nothing(kv_dtype: str, error: float) -> None:
    shape = SHAPES["gqa"]
    draw = np.random.default_rng(1)
    k, v = draw.standard_normal((2, 6, shape.num_kv_heads, shape.head_dim), np.float32)
    where = np.array([5, -1, 63, 0, -1, 17], np.int32)
    got = compiled(shape, "write")(BACKEND.allocate(shape, 4, kv_dtype), k, v, where)
    for values, scales, rows in ((got.k, got.k_scale, k), (got.v, got.v_scale, v)):
        stored = reference.dequantize(np.asarray(values), np.asarray(scales)).reshape(64, shape.num_kv_heads, shape.head_dim)
        np.testing.assert_allclose(stored[[5, 63, 0, 17]], rows[[0, 2, 3, 5]], atol=error)
        assert not np.delete(stored, [5, 63, 0, 17], 0).any()
