"""The Triton kernels under Pallas's interpreter, against the f32 twins. What a card makes of them is `make gpu-bench`'s to say."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels import reference
from engine.kernels.attention import MAX_QUERY_TOKENS, AttentionBackend, AttentionShape
from engine.kernels.kv_write import kv_write
from engine.kernels.paged_cache import PagedCache, allocate
from engine.kernels.paged_decode import paged_decode
from engine.kernels.paged_prefill import paged_prefill
from engine.kernels.pallas_triton import PallasTritonBackend
from engine.kernels.tiling import decode_tiling, prefill_tiling
from tests.kernels_gpu.paged import (
    TOLERANCE,
    Chunk,
    layout_of,
    plain_pages,
    query_dtype,
    random_cache,
    random_tables,
    relative_error,
)

PLAIN = AttentionShape(num_heads=8, num_kv_heads=2, head_dim=64, page_size=16, scale=0.125)
PAGES_EACH, NUM_PAGES = 20, 48
PAGE_EDGES = st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 319, 320]) | st.integers(0, PAGES_EACH * 16)

decode = jax.jit(functools.partial(paged_decode, interpret=True), static_argnums=0, static_argnames="tiling")
prefill = jax.jit(functools.partial(paged_prefill, interpret=True), static_argnums=0, static_argnames="tiling")
write = jax.jit(functools.partial(kv_write, interpret=True))


def check_decode(shape: AttentionShape, kv_dtype: str, lengths: list[int], queries: int = 1, splits: int | None = None) -> None:
    rng = np.random.default_rng(sum(lengths) + queries)
    cache = random_cache(shape, NUM_PAGES, kv_dtype, rng)
    tables = random_tables(len(lengths), PAGES_EACH, NUM_PAGES, rng)
    q = jnp.asarray(rng.normal(size=(len(lengths), queries, shape.num_heads, shape.head_dim)), query_dtype(kv_dtype))
    tiling = decode_tiling(shape, PAGES_EACH, cache.k.dtype.itemsize, queries)
    if splits:
        tiling = replace(tiling, splits=splits)
    counts = np.asarray([length and max(length, queries) for length in lengths], np.int32)
    got = decode(shape, cache, q, jnp.asarray(tables), jnp.asarray(counts), tiling=tiling)
    wanted = reference.decode(shape, *plain_pages(cache), np.asarray(q, np.float32), tables, counts)
    assert relative_error(got, wanted) < TOLERANCE[kv_dtype]


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(PAGE_EDGES, min_size=4, max_size=4))
def test_decode_equals_its_twin_at_every_page_and_block_edge(lengths: list[int]) -> None:
    check_decode(PLAIN, "float32", lengths)


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(PAGE_EDGES, min_size=2, max_size=2))
def test_decode_with_one_split_equals_its_twin(lengths: list[int]) -> None:
    check_decode(PLAIN, "float32", lengths, splits=1)


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(PAGE_EDGES, min_size=2, max_size=2))
def test_decode_of_several_tokens_under_a_window_equals_its_twin(lengths: list[int]) -> None:
    check_decode(replace(PLAIN, sliding_window=70), "float32", lengths, queries=5)


HEAD_DIMS, KV_TYPES = (64, 80, 96, 128, 256), ("float32", "bfloat16", "int8", "float8_e4m3fn")
SHAPES = [(group, HEAD_DIMS[group % 5], KV_TYPES[group % 4]) for group in range(1, 17)]
"""Every group; every head dim with three of them or four, and with as many types."""


@pytest.mark.parametrize(("group", "head_dim", "kv_dtype"), SHAPES)
def test_decode_takes_every_group_head_dim_and_kv_type(group: int, head_dim: int, kv_dtype: str) -> None:
    heads = 2 if group < 4 else 1
    shape = replace(PLAIN, num_heads=heads * group, num_kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5)
    check_decode(shape, kv_dtype, [290, 0, 17])


def test_decode_takes_pages_of_any_size_so_contiguous_kv_too() -> None:
    check_decode(replace(PLAIN, page_size=320), "float32", [319, 321, 0, 700])


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "queries"), [(9, 3, 8), (14, 2, 2), (16, 1, 8)])
def test_decode_takes_up_to_8_tokens_a_row(num_heads: int, num_kv_heads: int, queries: int) -> None:
    check_decode(replace(PLAIN, num_heads=num_heads, num_kv_heads=num_kv_heads), "float32", [290, 40], queries=queries)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_decode_under_a_soft_cap_reads_narrow_caches(kv_dtype: str) -> None:
    check_decode(replace(PLAIN, soft_cap=20.0), kv_dtype, [320, 0, 33])


def test_one_long_row_is_split_though_its_neighbours_are_short() -> None:
    assert decode_tiling(PLAIN, 8_192, 2).splits == 32
    check_decode(PLAIN, "float32", [320, 1, 1, 1], splits=32)


def check_prefill(shape: AttentionShape, kv_dtype: str, chunks: list[Chunk], num_rows: int) -> None:
    rng = np.random.default_rng(sum(c.tokens + c.context for c in chunks))
    cache = random_cache(shape, NUM_PAGES, kv_dtype, rng)
    layout = layout_of(chunks, random_tables(len(chunks), PAGES_EACH, NUM_PAGES, rng), num_rows)
    q = jnp.asarray(rng.normal(size=(num_rows, shape.num_heads, shape.head_dim)), query_dtype(kv_dtype))
    got = prefill(shape, cache, q, layout, tiling=prefill_tiling(shape, cache.k.dtype.itemsize, (9, 0)))
    plain_layout = layout._replace(**{name: np.asarray(value) for name, value in layout._asdict().items()})
    wanted = reference.prefill(shape, *plain_pages(cache), np.asarray(q, np.float32), plain_layout)
    assert relative_error(got, wanted) < TOLERANCE[kv_dtype]


CHUNKS = st.builds(Chunk, context=st.sampled_from([0, 1, 15, 16, 63, 64, 65, 200]) | st.integers(0, 220), tokens=st.integers(0, 48))


@settings(max_examples=25, deadline=None)
@given(chunks=st.lists(CHUNKS, min_size=3, max_size=3))
def test_prefill_of_several_chunks_equals_its_twin_and_other_rows_answer_0(chunks: list[Chunk]) -> None:
    check_prefill(PLAIN, "float32", chunks, 144)


@settings(max_examples=15, deadline=None)
@given(chunks=st.lists(CHUNKS, min_size=2, max_size=2))
def test_prefill_of_wide_tiles_under_a_window_equals_its_twin(chunks: list[Chunk]) -> None:
    check_prefill(replace(PLAIN, num_heads=2, sliding_window=50), "float32", chunks, 96)


@pytest.mark.parametrize(("group", "head_dim", "kv_dtype"), SHAPES[::3])
def test_prefill_takes_small_and_large_groups_every_head_dim_and_kv_type(group: int, head_dim: int, kv_dtype: str) -> None:
    heads = 2 if group < 4 else 1
    shape = replace(PLAIN, num_heads=heads * group, num_kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5, soft_cap=30.0)
    check_prefill(shape, kv_dtype, [Chunk(100, 20), Chunk(0, 37)], 80)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_write_stores_what_its_twin_stores_and_skips_minus_one(data: st.DataObject) -> None:
    num_stored = data.draw(st.integers(0, 12))
    stored = data.draw(st.lists(st.integers(0, 6 * 16 - 1), min_size=num_stored, max_size=num_stored, unique=True))
    slots = data.draw(st.permutations(stored + [-1] * (12 - num_stored)))
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(12, 2, 64)).astype(np.float32) for _ in range(2))
    before = random_cache(PLAIN, 6, "float32", rng)
    after = write(before, jnp.asarray(k), jnp.asarray(v), jnp.asarray(slots, jnp.int32))
    wanted = reference.write(np.asarray(before.k), np.asarray(before.v), k, v, np.asarray(slots))
    assert all(np.array_equal(np.asarray(got), want) for got, want in zip(after[:2], wanted, strict=True))


@pytest.mark.parametrize(("kv_dtype", "step"), [("int8", 1 / 127), ("float8_e4m3fn", 32 / 448)])
def test_write_quantises_each_vector_by_its_own_largest_element(kv_dtype: str, step: float) -> None:
    shape = replace(PLAIN, num_heads=3, num_kv_heads=3, head_dim=80)
    rng = np.random.default_rng(1)
    k, v = (rng.normal(size=(5, 3, 80)).astype(np.float32) * 10.0 ** rng.integers(-3, 3, size=(5, 3, 1)) for _ in range(2))
    k[2] = 0.0
    slots = np.asarray([3, 40, 17, -1, 0], np.int32)
    cache = write(allocate(shape, 3, kv_dtype), jnp.asarray(k), jnp.asarray(v), jnp.asarray(slots))
    for pages, rows in zip(plain_pages(cache), (k, v), strict=True):
        flat = pages.reshape(-1, 3, 80)
        stored = slots >= 0
        largest = np.abs(rows[stored]).max(axis=-1, keepdims=True)
        assert np.all(np.abs(flat[slots[stored]] - rows[stored]) <= largest * step / 2 + 1e-6 * largest)
        assert np.count_nonzero(np.abs(flat).sum(axis=(1, 2))) <= stored.sum()


def test_backend_writes_then_decodes_what_it_wrote() -> None:
    backend: AttentionBackend = PallasTritonBackend((9, 0), interpret=True)
    rng = np.random.default_rng(2)
    cache: PagedCache = backend.allocate(PLAIN, 4, "float32")
    k, v = (jnp.asarray(rng.normal(size=(20, 2, 64)), jnp.float32) for _ in range(2))
    cache = backend.write(PLAIN, cache, k, v, jnp.arange(16, 36, dtype=jnp.int32))
    q = jnp.asarray(rng.normal(size=(2, 8, 64)), jnp.float32)
    tables, lengths = np.asarray([[1, 2], [0, 0]], np.int32), np.asarray([20, 0], np.int32)
    got = backend.decode(PLAIN, cache, q, jnp.asarray(tables), jnp.asarray(lengths))
    assert relative_error(got, reference.decode(PLAIN, *plain_pages(cache), np.asarray(q), tables, lengths)) < 2e-6


@pytest.mark.parametrize(("num_heads", "head_dim"), [(6, 64), (16, 256)], ids=["in one tile", "in two parts"])
def test_backend_takes_as_many_tokens_a_row_as_the_interface_says(num_heads: int, head_dim: int) -> None:
    shape = AttentionShape(num_heads, 1, head_dim, 16, head_dim**-0.5, sliding_window=50)
    backend, rng = PallasTritonBackend((9, 0), interpret=True), np.random.default_rng(3)
    cache, tables = random_cache(shape, 12, "bfloat16", rng), random_tables(4, 6, 12, rng)
    lengths = np.asarray([90, 65, 8, 0], np.int32)
    q = jnp.asarray(rng.normal(size=(4, MAX_QUERY_TOKENS, num_heads, head_dim)), jnp.bfloat16)
    got = backend.decode(shape, cache, q, jnp.asarray(tables), jnp.asarray(lengths))
    wanted = reference.decode(shape, *plain_pages(cache), np.asarray(q, np.float32), tables, lengths)
    assert relative_error(got, wanted) < TOLERANCE["bfloat16"]


def test_backend_refuses_what_the_card_or_the_kernels_cannot_do() -> None:
    ampere, hopper = PallasTritonBackend((8, 0)), PallasTritonBackend((9, 0))
    assert ampere.supports(PLAIN, "int8")
    assert hopper.supports(PLAIN, "float8_e4m3fn")
    assert not ampere.supports(PLAIN, "float8_e4m3fn")
    assert not PallasTritonBackend((7, 5)).supports(PLAIN, "bfloat16")
    assert not hopper.supports(replace(PLAIN, head_dim=72), "bfloat16")
    assert not hopper.supports(replace(PLAIN, num_heads=34), "bfloat16")
    assert not hopper.supports(PLAIN, "int4")


def test_a_cache_beyond_32_bit_addresses_is_refused() -> None:
    with pytest.raises(ValueError, match="use fewer pages"):
        allocate(PLAIN, 2**20 + 1, "int8")
