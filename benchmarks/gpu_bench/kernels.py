"""Attention and KV write on the clock, at the shape of Llama-3-8B."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_bench.clock import Bench, Measurement, Row
from engine.kernels.attention import AttentionBackend, AttentionShape
from engine.kernels.paged_cache import QUANTISED_MAX, PagedCache
from tests.kernels_gpu.paged import Chunk, layout_of

KV_DTYPES = ("bfloat16", "int8", "float8_e4m3fn")
POOL_PAGES = 2**17 - 1
"""2 M tokens, 4 GiB of K and of V in bf16; 256 sequences of 32,768 tokens read them four times."""
ROTATED_BYTES = 256 * 2**20
"""Page tables change from call to call until this much was read, so that no L2 (50 to 130 MB) holds a small case."""
BATCHES, CONTEXTS = (1, 16, 64, 256), (1_024, 8_192, 32_768)
PREFILLS = ((4_096, 0), (16_384, 0), (2_048, 30_720))
"""Tokens, and tokens before them: long prompts, and a chunk behind a long prefix."""
WRITTEN_TOKENS = (256, 8_192)
"""A decode step's, and a prefill step's."""


def filled_cache(backend: AttentionBackend, shape: AttentionShape, pages: int, kv_dtype: str) -> PagedCache:
    """Not zeros: a card computes faster on them."""
    cache = jax.jit(lambda: backend.allocate(shape, pages, kv_dtype))()
    return jax.tree.map(lambda a: jnp.full_like(a, 3 if a.dtype == jnp.int8 else 0.25), cache)


def token_bytes(shape: AttentionShape, kv_dtype: str) -> int:
    """K and V of one token in all heads, scales included."""
    scale_bytes = 4 if kv_dtype in QUANTISED_MAX else 0
    return 2 * shape.num_kv_heads * (shape.head_dim * jnp.dtype(kv_dtype).itemsize + scale_bytes)


# ---- decode -------------------------------------------------------------------------------------------------------------


type Paging = Literal["one page", "in order", "scattered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCase:
    """`pages`: a sequence is one page (contiguous KV), its pages lie one behind the other, or anywhere in the pool."""

    backend: AttentionBackend
    kv_dtype: str
    batch: int
    context: int
    queries: int = 1
    pages: Paging = "scattered"

    def shape(self, bench: Bench) -> AttentionShape:
        return replace(bench.shape, page_size=self.context) if self.pages == "one page" else bench.shape


def decode(bench: Bench) -> Iterator[Measurement]:
    """Bytes of K and V read over time."""
    sizes = [(2, 64)] if bench.tiny else itertools.product(BATCHES, CONTEXTS)
    for (batch, context), backend, kv_dtype in itertools.product(sizes, bench.backends, KV_DTYPES):
        if (batch, context) == (64, 8_192) or kv_dtype != "float8_e4m3fn":
            yield from _decode(bench, DecodeCase(backend=backend, kv_dtype=kv_dtype, batch=batch, context=context))


def contiguous(bench: Bench) -> Iterator[Measurement]:
    """One sequence as one page (which Mosaic does not take), with its pages in order, and scattered: paging should cost at most 2 %."""
    context, kinds = 64 if bench.tiny else CONTEXTS[-1], get_args(Paging.__value__)
    for backend, pages in itertools.product(bench.backends, kinds):
        yield from _decode(bench, DecodeCase(backend=backend, kv_dtype="bfloat16", batch=1, context=context, pages=pages))


def verify(bench: Bench) -> Iterator[Measurement]:
    """Several query tokens a row, as speculation asks: the bytes are those of one."""
    sizes = [(2, 64, 2)] if bench.tiny else [(batch, 8_192, queries) for batch in (1, 64) for queries in (2, 4, 8)]
    for (batch, context, queries), backend in itertools.product(sizes, bench.backends):
        yield from _decode(bench, DecodeCase(backend=backend, kv_dtype="bfloat16", batch=batch, context=context, queries=queries))


def _decode(bench: Bench, case: DecodeCase) -> Iterator[Measurement]:
    if case.backend.supports(case.shape(bench), case.kv_dtype):
        call_bytes = case.batch * case.context * token_bytes(bench.shape, case.kv_dtype)
        yield Measurement(bench.estimate_s(call_bytes), partial(_time_decode, bench, case, call_bytes))


def _time_decode(bench: Bench, case: DecodeCase, call_bytes: int) -> Row:
    shape = case.shape(bench)
    pages = case.context // shape.page_size
    pool_pages = (256 if bench.tiny else POOL_PAGES) * bench.shape.page_size // shape.page_size
    cache = filled_cache(case.backend, shape, pool_pages, case.kv_dtype)
    rng, tables = np.random.default_rng(0), []
    for turn in range(1 if bench.tiny else max(1, min(64, ROTATED_BYTES // call_bytes))):
        places = np.arange(case.batch * pages) + turn * case.batch * pages
        ids = places % pool_pages if case.pages == "in order" else rng.permutation(pool_pages)[places % pool_pages]
        tables.append(jnp.asarray(ids.reshape(case.batch, pages), jnp.int32))
    q = jnp.ones((case.batch, case.queries, shape.num_heads, shape.head_dim), jnp.bfloat16)
    lengths = jnp.full((case.batch,), case.context, jnp.int32)
    run = jax.jit(partial(case.backend.decode, shape))
    seconds = bench.seconds(lambda n: run(cache, q, tables[n % len(tables)], lengths))
    row = {"backend": case.backend.name, "kv_dtype": case.kv_dtype, "batch": case.batch, "context": case.context}
    row |= {"queries": case.queries, "pages": case.pages, "us": round(seconds * 1e6, 1)}
    return row | {"gb_s": round(call_bytes / seconds / 1e9, 1), "bandwidth_percent": bench.bandwidth_percent(call_bytes / seconds)}


# ---- prefill ------------------------------------------------------------------------------------------------------------


def prefill(bench: Bench) -> Iterator[Measurement]:
    """FLOPs of both products below the diagonal over time, with KV in bf16 and int8."""
    sizes = [(64, 32)] if bench.tiny else PREFILLS
    for (tokens, context), backend, kv_dtype in itertools.product(sizes, bench.backends, ("bfloat16", "int8")):
        if backend.supports(bench.shape, kv_dtype):
            flops = 4 * bench.shape.num_heads * bench.shape.head_dim * tokens * (context + tokens / 2)
            run = partial(_time_prefill, bench, backend, kv_dtype, tokens, context, flops)
            yield Measurement(bench.estimate_s(call_flops=flops, calls=5), run)


def _time_prefill(bench: Bench, backend: AttentionBackend, kv_dtype: str, tokens: int, context: int, flops: float) -> Row:
    shape, pages = bench.shape, (tokens + context) // bench.shape.page_size
    cache = filled_cache(backend, shape, pages, kv_dtype)
    layout = layout_of([Chunk(context, tokens)], np.random.default_rng(0).permutation(pages)[None], tokens)
    q = jnp.full((tokens, shape.num_heads, shape.head_dim), 0.25, jnp.bfloat16)
    run = jax.jit(partial(backend.prefill, shape))
    seconds = bench.seconds(lambda _: run(cache, q, layout), calls=5)
    row = {"backend": backend.name, "kv_dtype": kv_dtype, "tokens": tokens, "context": context, "us": round(seconds * 1e6, 1)}
    return row | {"tflops": round(flops / seconds / 1e12, 1), "flops_percent": bench.flops_percent(flops / seconds)}


# ---- write --------------------------------------------------------------------------------------------------------------


def write(bench: Bench) -> Iterator[Measurement]:
    """Bytes read and written over time."""
    backend = bench.backends[-1]  # all write with the same kernel
    for tokens, kv_dtype in itertools.product((16,) if bench.tiny else WRITTEN_TOKENS, KV_DTYPES):
        if backend.supports(bench.shape, kv_dtype):
            read_bytes = 2 * tokens * bench.shape.num_kv_heads * bench.shape.head_dim * 2
            moved = read_bytes + tokens * token_bytes(bench.shape, kv_dtype)
            yield Measurement(bench.estimate_s(moved), partial(_time_write, bench, backend, kv_dtype, tokens, moved))


def _time_write(bench: Bench, backend: AttentionBackend, kv_dtype: str, tokens: int, moved: int) -> Row:
    shape = bench.shape
    rows = jnp.full((tokens, shape.num_kv_heads, shape.head_dim), 0.25, jnp.bfloat16)
    slots = jnp.asarray(np.random.default_rng(0).permutation(4 * tokens)[:tokens], jnp.int32)
    run = jax.jit(partial(backend.write, shape), donate_argnums=0)
    caches = [filled_cache(backend, shape, 4 * tokens // shape.page_size, kv_dtype)]

    def call(_: int) -> Any:
        caches[0] = run(caches[0], rows, rows, slots)
        return caches[0].k

    seconds = bench.seconds(call)
    row = {"backend": backend.name, "kv_dtype": kv_dtype, "tokens": tokens, "us": round(seconds * 1e6, 1)}
    return row | {"gb_s": round(moved / seconds / 1e9, 1), "bandwidth_percent": bench.bandwidth_percent(moved / seconds)}
