"""The native attention backend against the plain twins, and what a row's result may not depend on."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kernels import reference
from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.cpu.attention import CpuNativeAttention, pack_cache, unpack_cache
from engine.kernels.cpu.library import NativeLibrary
from engine.kernels.xla_attention import PagedKv
from tests.kernels.paged import prefill_layout, random_pages, random_tables

TABLE_PAGES = 40
NUM_PAGES = 330
ROWS = 8
DTYPES = ["float32", "bfloat16", "int8", "int8 beside float32"]
"""Of the cache; the rows are of the same type, or beside int8 bfloat16 unless it says otherwise."""
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.2e-2, "int8": 1.2e-2, "int8 beside float32": 2e-4}

SHAPES = [
    AttentionShape(9, 3, 64, 16, 0.125),
    AttentionShape(8, 1, 128, 16, 0.09, sliding_window=100),
    AttentionShape(4, 4, 80, 16, 0.11, soft_cap=20.0),
    AttentionShape(10, 2, 256, 32, 0.0625, sliding_window=300),
    AttentionShape(14, 2, 96, 16, 0.1),
    AttentionShape(2, 1, 64, 64, 0.125, soft_cap=5.0, sliding_window=17),
]

EDGES = [0, 1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 271, 272, 273, 511, 512, 513, 640]

lengths_lists = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 640)), min_size=ROWS, max_size=ROWS)
shapes = st.sampled_from(SHAPES)
dtypes = st.sampled_from(DTYPES)
relaxed = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def backend(library: NativeLibrary, isa: str) -> CpuNativeAttention:
    return CpuNativeAttention(library, isa)


def row_dtype(dtype: str) -> jnp.dtype:
    return jnp.dtype("bfloat16" if dtype == "int8" else dtype.removeprefix("int8 beside "))


def stored(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, ...]:
    """Values as the cache holds them, and in int8 their scales."""
    return reference.quantize(rows) if dtype.startswith("int8") else (rows.astype(jnp.dtype(dtype)),)


def as_read(values: np.ndarray, *scales: np.ndarray) -> np.ndarray:
    return reference.dequantize(values, *scales) if scales else values


def packed(k: np.ndarray, v: np.ndarray, dtype: str) -> jax.Array:
    """The cache of pages f32 [P, S, K, D]."""
    (k_values, *k_scale), (v_values, *v_scale) = stored(k, dtype), stored(v, dtype)
    return pack_cache(PagedKv(*map(jnp.asarray, (k_values, v_values, *k_scale, *v_scale))))


def plain(k: np.ndarray, v: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The same pages as the twins read them."""
    return as_read(*stored(k, dtype)), as_read(*stored(v, dtype))


def queries(shape: AttentionShape, dtype: str, rows: int, draw: np.random.Generator) -> np.ndarray:
    return draw.standard_normal((rows, shape.num_heads, shape.head_dim), np.float32).astype(row_dtype(dtype))


def width(shape: AttentionShape) -> int:
    return TABLE_PAGES * 16 // shape.page_size


def close(got: jax.Array, expected: np.ndarray, dtype: str) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float32), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@relaxed
@given(shape=shapes, dtype=dtypes, lengths=lengths_lists, seed=st.integers(0, 999))
def test_decode_equals_its_twin_at_every_length(
    backend: CpuNativeAttention, shape: AttentionShape, dtype: str, lengths: list[int], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    k, v = random_pages(shape, NUM_PAGES, draw)
    tables = random_tables(ROWS, width(shape), NUM_PAGES, draw)
    q, sizes = queries(shape, dtype, ROWS, draw), np.array(lengths, np.int32)
    got = backend.decode(shape, packed(k, v, dtype), jnp.asarray(q), jnp.asarray(tables), jnp.asarray(sizes))
    close(got, reference.decode(shape, *plain(k, v, dtype), q, tables, sizes), dtype)


@relaxed
@given(
    shape=shapes,
    dtype=dtypes,
    chunks=st.lists(st.tuples(st.one_of(st.sampled_from(EDGES[:-3]), st.integers(0, 500)), st.integers(0, 48)), min_size=3, max_size=3),
    seed=st.integers(0, 999),
)
def test_prefill_equals_its_twin_for_chunks_anywhere(
    backend: CpuNativeAttention, shape: AttentionShape, dtype: str, chunks: list[tuple[int, int]], seed: int
) -> None:
    draw = np.random.default_rng(seed)
    k, v = random_pages(shape, NUM_PAGES, draw)
    layout = prefill_layout(random_tables(4, width(shape), NUM_PAGES, draw), chunks, 160)
    q = queries(shape, dtype, 160, draw)
    got = backend.prefill(shape, packed(k, v, dtype), jnp.asarray(q), PrefillLayout(*map(jnp.asarray, layout)))
    close(got, reference.prefill(shape, *plain(k, v, dtype), q, layout), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_write_equals_its_twin_and_skips_negative_slots(backend: CpuNativeAttention, shape: AttentionShape, dtype: str) -> None:
    draw = np.random.default_rng(3)
    k_pages, v_pages = random_pages(shape, NUM_PAGES, draw)
    slots = draw.permutation(NUM_PAGES * shape.page_size)[:50].astype(np.int32)
    slots[[0, 7, 49]] = -1
    k, v = (draw.standard_normal((50, shape.num_kv_heads, shape.head_dim), np.float32).astype(row_dtype(dtype)) for _ in range(2))
    k[3], v[4], v[5, 0, 1] = 0, 1e-31, 1e30
    cache = backend.write(shape, packed(k_pages, v_pages, dtype), jnp.asarray(k), jnp.asarray(v), jnp.asarray(slots))
    got = unpack_cache(shape, cache)
    written = zip(stored(k_pages, dtype), stored(v_pages, dtype), stored(k, dtype), stored(v, dtype), strict=True)
    for mine, (k_old, v_old, k_new, v_new) in zip((got[:2], got[2:]), written, strict=False):  # values, then scales
        for one, expected in zip(mine, reference.write(k_old, v_old, k_new, v_new, slots), strict=True):
            np.testing.assert_array_equal(np.asarray(one), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_write_happens_in_place_when_the_cache_is_donated(backend: CpuNativeAttention, dtype: str) -> None:
    shape = SHAPES[0]
    kv = jax.ShapeDtypeStruct((2, shape.num_kv_heads, shape.head_dim), jnp.bfloat16)
    cache = backend.allocate(shape, 64, dtype)
    write = jax.jit(lambda cache, k, v, slots: backend.write(shape, cache, k, v, slots), donate_argnums=0)
    compiled = write.lower(cache, kv, kv, jax.ShapeDtypeStruct((2,), jnp.int32)).compile()
    assert " copy(" not in (compiled.as_text() or "copy(")
    before = cache.unsafe_buffer_pointer()
    zeros = jnp.zeros(kv.shape, kv.dtype)
    assert write(cache, zeros, zeros, jnp.array([0, 17])).unsafe_buffer_pointer() == before


def test_caches_pack_and_unpack_to_the_same_pages() -> None:
    for shape in SHAPES:
        for dtype in ("float32", "bfloat16", "int8"):
            k, v = random_pages(shape, NUM_PAGES, np.random.default_rng(0))
            got = unpack_cache(shape, packed(k, v, dtype))
            for mine, expected in zip((got[:2], got[2:]), zip(stored(k, dtype), stored(v, dtype), strict=True), strict=False):
                for one, other in zip(mine, expected, strict=True):
                    np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_alone_in_a_batch_and_in_any_chunk_answers_bit_for_bit_the_same(
    backend: CpuNativeAttention, shape: AttentionShape, dtype: str
) -> None:
    draw = np.random.default_rng(11)
    k, v = random_pages(shape, NUM_PAGES, draw)
    cache = packed(k, v, dtype)
    tables = random_tables(ROWS, width(shape), NUM_PAGES, draw)
    length = 600
    q = queries(shape, dtype, length, draw)

    def chunked(sizes: list[int]) -> np.ndarray:
        parts, start = [], 0
        for size in sizes:
            rows = -(-size // 16) * 16
            padded = np.zeros((rows, *q.shape[1:]), q.dtype)
            padded[:size] = q[start : start + size]
            layout = prefill_layout(tables[:2], [(start, size)], rows)
            out = backend.prefill(shape, cache, jnp.asarray(padded), PrefillLayout(*map(jnp.asarray, layout)))
            parts.append(np.asarray(out)[:size])
            start += size
        return np.concatenate(parts)

    whole = chunked([600])
    np.testing.assert_array_equal(chunked([16, 64, 1, 255, 200, 64]), whole)
    for position in (0, 15, 16, 255, 256, 599):
        alone = backend.decode(shape, cache, jnp.asarray(q[position : position + 1]), jnp.asarray(tables[:1]), jnp.array([position + 1]))
        np.testing.assert_array_equal(np.asarray(alone)[0], whole[position])
    others = np.array([640, 600, 512, 300, 17, 1, 0, 0], np.int32)
    batch = np.concatenate([q[[0]], q[[599]], q[1:7]])
    together = backend.decode(shape, cache, jnp.asarray(batch), jnp.asarray(tables[[1, 0, 2, 3, 4, 5, 6, 7]]), jnp.asarray(others))
    np.testing.assert_array_equal(np.asarray(together)[1], whole[599])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_decode_takes_several_query_tokens_a_row_as_prefill_would(backend: CpuNativeAttention, dtype: str) -> None:
    shape, draw = SHAPES[0], np.random.default_rng(5)
    k, v = random_pages(shape, NUM_PAGES, draw)
    cache = packed(k, v, dtype)
    tables = random_tables(2, width(shape), NUM_PAGES, draw)
    for count in (1, 2, 5, 8):
        q = queries(shape, dtype, 2 * count, draw).reshape(2, count, shape.num_heads, shape.head_dim)
        lengths = np.array([300, 258], np.int32)
        got = np.asarray(backend.decode(shape, cache, jnp.asarray(q), jnp.asarray(tables), jnp.asarray(lengths)))
        for row in range(2):
            for token in range(count):
                seen = jnp.array([lengths[row] - count + 1 + token])
                one = backend.decode(shape, cache, jnp.asarray(q[row, token : token + 1]), jnp.asarray(tables[row : row + 1]), seen)
                np.testing.assert_array_equal(got[row, token], np.asarray(one)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_own_row_and_is_not_read_behind_a_rows_end(
    backend: CpuNativeAttention, dtype: str, bad: float
) -> None:
    shape, draw = SHAPES[0], np.random.default_rng(7)
    k, v = random_pages(shape, NUM_PAGES, draw)
    tables = random_tables(ROWS, width(shape), NUM_PAGES, draw)
    q = queries(shape, dtype, ROWS, draw)
    lengths = np.array([300, 290, 280, 33, 17, 16, 5, 0], np.int32)
    clean = backend.decode(shape, packed(k, v, dtype), jnp.asarray(q), jnp.asarray(tables), jnp.asarray(lengths))
    for row, length in enumerate(lengths):  # stale values behind every row's end
        page, offset = divmod(int(length), shape.page_size)
        k[tables[row, page], offset:] = bad
        v[tables[row, page], offset:] = bad
        k[tables[row, page + 1 :]] = bad
        v[tables[row, page + 1 :]] = bad
    cache = packed(k, v, dtype)
    np.testing.assert_array_equal(
        np.asarray(clean), np.asarray(backend.decode(shape, cache, jnp.asarray(q), jnp.asarray(tables), jnp.asarray(lengths)))
    )
    k[tables[1, 2], 3] = bad  # and one that row 1 does read
    cache = packed(k, v, dtype)
    got = np.asarray(backend.decode(shape, cache, jnp.asarray(q), jnp.asarray(tables), jnp.asarray(lengths)), np.float32)
    assert np.isnan(got[1]).any()
    np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(np.asarray(clean, np.float32), 1, 0))


def test_a_page_outside_the_cache_is_an_error_and_not_a_wild_read(backend: CpuNativeAttention) -> None:
    shape = SHAPES[0]
    cache = backend.allocate(shape, 4, "bfloat16")
    q = jnp.zeros((1, shape.num_heads, shape.head_dim), jnp.bfloat16)
    for table, length in (([0, 4], 20), ([0, -1], 20), ([0, 1], 33)):
        with pytest.raises(jax.errors.JaxRuntimeError, match="outside its page table or the cache"):
            jax.block_until_ready(backend.decode(shape, cache, q, jnp.array([table]), jnp.array([length])))
    kv = jnp.zeros((1, shape.num_kv_heads, shape.head_dim), jnp.bfloat16)
    with pytest.raises(jax.errors.JaxRuntimeError, match="slot outside the cache"):
        jax.block_until_ready(backend.write(shape, cache, kv, kv, jnp.array([64])))


def test_backend_says_which_shapes_it_can_not_do(library: NativeLibrary) -> None:
    backend, shape = CpuNativeAttention(library), SHAPES[0]
    for dtype in ("bfloat16", "float32", "int8"):
        assert backend.supports(shape, dtype)
    assert not backend.supports(shape, "float8_e4m3fn")
    assert not backend.supports(replace(shape, head_dim=72), "bfloat16")
    assert not backend.supports(replace(shape, head_dim=512), "bfloat16")
    assert not backend.supports(replace(shape, page_size=8), "bfloat16")
