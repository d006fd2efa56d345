"""Every kernel against its f32 twin on the device itself: a fast wrong kernel is worth nothing."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_bench.clock import COMPILE_S, Bench, Measurement, Row
from engine.kernels import reference
from engine.kernels.attention import MAX_QUERY_TOKENS, AttentionBackend, AttentionShape
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

HEADS = ((4, 2, 64), (7, 1, 80), (4, 4, 96), (16, 2, 128), (8, 1, 256), (16, 1, 128))
"""Query heads, KV heads, head dim; those of 4 query heads with a sliding window, those of 7 with a soft cap."""
KV_DTYPES = ("bfloat16", "int8", "float8_e4m3fn", "float32")
WRITE_STEP = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 1 / 127, "float8_e4m3fn": 32 / 448}
"""Of the largest element of a vector: twice what rounding may do."""


def correctness(bench: Bench) -> Iterator[Measurement]:
    """Head dims, groups, KV types, windows and caps. Rows have `ok`; the caller stops at a section with one that is not."""
    for backend, (heads, kv_heads, dim), kv_dtype in itertools.product(bench.backends, HEADS, KV_DTYPES):
        shape = AttentionShape(heads, kv_heads, dim, 16, dim**-0.5, 70 if heads == 4 else None, 30.0 if heads == 7 else None)
        if not backend.supports(shape, kv_dtype) or (bench.tiny and (dim, kv_dtype) != (64, "int8")):
            continue
        for kernel, error_of in _ERRORS.items():
            if kernel != "write" or backend is bench.backends[-1]:  # all backends write with the same kernel
                yield Measurement(COMPILE_S, partial(_check, kernel, error_of, backend, shape, kv_dtype))


type _ErrorOf = Callable[[AttentionBackend, AttentionShape, str], float]


def _check(kernel: str, error_of: _ErrorOf, backend: AttentionBackend, shape: AttentionShape, kv_dtype: str) -> Row:
    error = error_of(backend, shape, kv_dtype)
    allowed = WRITE_STEP[kv_dtype] if kernel == "write" else max(TOLERANCE[kv_dtype], 1e-5)
    heads = f"{shape.num_heads}/{shape.num_kv_heads}x{shape.head_dim}"
    facts = {"kernel": kernel, "backend": backend.name, "shape": heads, "kv_dtype": kv_dtype}
    return facts | {"error": error, "ok": error < allowed}


def _decode_error(backend: AttentionBackend, shape: AttentionShape, kv_dtype: str, queries: int = 1) -> float:
    rng = np.random.default_rng(0)
    cache, tables = random_cache(shape, 96, kv_dtype, rng), random_tables(6, 40, 96, rng)
    lengths = np.asarray([640, 321, 64, 17, max(1, queries), 0], np.int32)
    q = jnp.asarray(rng.normal(size=(6, queries, shape.num_heads, shape.head_dim)), query_dtype(kv_dtype))
    got = jax.jit(partial(backend.decode, shape))(cache, q, jnp.asarray(tables), jnp.asarray(lengths))
    return relative_error(got, reference.decode(shape, *plain_pages(cache), np.asarray(q, np.float32), tables, lengths))


def _prefill_error(backend: AttentionBackend, shape: AttentionShape, kv_dtype: str) -> float:
    rng = np.random.default_rng(1)
    cache = random_cache(shape, 96, kv_dtype, rng)
    layout = layout_of([Chunk(200, 90), Chunk(0, 0), Chunk(0, 33), Chunk(65, 1)], random_tables(4, 24, 96, rng), 160)
    q = jnp.asarray(rng.normal(size=(160, shape.num_heads, shape.head_dim)), query_dtype(kv_dtype))
    got = jax.jit(partial(backend.prefill, shape))(cache, q, layout)
    plain_layout = layout._replace(**{name: np.asarray(value) for name, value in layout._asdict().items()})
    return relative_error(got, reference.prefill(shape, *plain_pages(cache), np.asarray(q, np.float32), plain_layout))


def _write_error(backend: AttentionBackend, shape: AttentionShape, kv_dtype: str) -> float:
    """Of a vector's largest element; infinite where a page that no slot names is not zero."""
    rng = np.random.default_rng(2)
    slots = np.asarray([*rng.permutation(6 * 16)[:40], -1, -1], np.int32)
    k, v = (rng.normal(size=(slots.size, shape.num_kv_heads, shape.head_dim)).astype(np.float32) for _ in range(2))
    cache = jax.jit(lambda: backend.allocate(shape, 6, kv_dtype))()
    rows = (jnp.asarray(k, query_dtype(kv_dtype)), jnp.asarray(v, query_dtype(kv_dtype)))
    cache = jax.jit(partial(backend.write, shape))(cache, *rows, jnp.asarray(slots))
    stored, error = slots >= 0, 0.0
    for pages, given in zip(plain_pages(cache), rows, strict=True):
        flat, wanted = pages.reshape(-1, *pages.shape[2:]), np.asarray(given, np.float32)[stored]
        off = np.abs(flat[slots[stored]] - wanted) / np.abs(wanted).max(axis=-1, keepdims=True)
        error = max(error, float(off.max()))
        if np.delete(flat, slots[stored], axis=0).any():
            return np.inf
    return error


_ERRORS: dict[str, _ErrorOf] = {
    "decode": _decode_error,
    "verify": partial(_decode_error, queries=MAX_QUERY_TOKENS),
    "prefill": _prefill_error,
    "write": _write_error,
}
