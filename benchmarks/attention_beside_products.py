"""Decode attention on a CPU beside XLA's matrix products of the same layers: SmolLM2's shapes, 32 rows, 1,024 tokens of context.

    python -m benchmarks.attention_beside_products [--rows 32] [--context 1024] [--repeats 15]

KV in bf16 and in int8, attention of XLA and of the native kernels. Pages lie scattered, as in a pool that has been in use.

Every layer has its own weights and its own pages, as in a step, so that no cache holds what it would not. All are called in turn and
the quickest of the repeats counts. The bar: attention takes no longer than the products.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernels_cpu import HEAD, KV_DTYPES, MATRICES, SMOLLM2, tables_of
from benchmarks.record import keep
from benchmarks.tail.case import Figure
from engine.kernels.attention import AttentionBackend
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.library import NativeUnavailable, native_library
from engine.kernels.products import product
from engine.kernels.xla_attention import XlaAttention

NUM_LAYERS = 10
MOST_RATIO = 1.0

type Call = Callable[[], jax.Array]


def products_call(rows: int) -> Call:
    """The four products of each layer, bf16, in XLA."""
    draw = np.random.default_rng(0)
    layers = [[jnp.asarray(draw.standard_normal(size, np.float32) * 0.05, jnp.bfloat16) for size in MATRICES] for _ in range(NUM_LAYERS)]

    @jax.jit
    def run(layers: list[list[jax.Array]], x: jax.Array) -> jax.Array:
        for qkv, output, gate_up, down in layers:
            x = x + product(product(x, qkv)[:, : output.shape[1]], output)
            x = x + product(product(x, gate_up)[:, : down.shape[1]], down)
        return x

    x = jnp.ones((rows, HEAD[1]), jnp.bfloat16)
    return lambda: run(layers, x)


def attention_call(backend: AttentionBackend, rows: int, context: int, kv_dtype: str) -> Call:
    """Attention of each layer, its answer the next one's queries. What the pages hold is written as a step writes it."""
    tables, lengths, pages = tables_of(rows, context)
    draw = np.random.default_rng(1)
    write = jax.jit(partial(backend.write, SMOLLM2), donate_argnums=0)
    slots = jnp.arange(pages * SMOLLM2.page_size, dtype=jnp.int32)
    caches = []
    for _ in range(NUM_LAYERS):
        drawn = draw.standard_normal((2, slots.size, SMOLLM2.num_kv_heads, SMOLLM2.head_dim), np.float32)
        k, v = jnp.asarray(drawn, jnp.bfloat16)
        caches.append(write(backend.allocate(SMOLLM2, pages, kv_dtype), k, v, slots))

    @jax.jit
    def run(caches: list[object], q: jax.Array, tables: jax.Array, lengths: jax.Array) -> jax.Array:
        for cache in caches:
            q = backend.decode(SMOLLM2, cache, q, tables, lengths)
        return q

    q = jnp.ones((rows, SMOLLM2.num_heads, SMOLLM2.head_dim), jnp.bfloat16)
    return lambda: run(caches, q, tables, lengths)


def quickest_ms(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Of one layer; all calls in turn, so that whatever else the machine does meets each of them."""
    best = dict.fromkeys(calls, float("inf"))
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            started_s = time.perf_counter()
            jax.block_until_ready(call())
            if repeat:
                best[name] = min(best[name], 1e3 * (time.perf_counter() - started_s) / NUM_LAYERS)
    return best


def measure(rows: int, context: int, repeats: int) -> dict[str, float]:
    """Milliseconds of one layer."""
    library = native_library()
    native = () if isinstance(library, NativeUnavailable) else (CpuNativeAttention(library),)
    calls = {"xla products": products_call(rows)}
    for backend, kv_dtype in itertools.product((XlaAttention(), *native), KV_DTYPES):
        calls[f"{backend.name} attention, {kv_dtype} KV"] = attention_call(backend, rows, context, kv_dtype)
    return quickest_ms(calls, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attention_beside_products", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=1_024)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    ms = measure(options.rows, options.context, options.repeats)
    ratios = {name: value / ms["xla products"] for name, value in ms.items() if " attention" in name}
    figures = [Figure(f"{name}, share of the products' time", ratio, bar=MOST_RATIO) for name, ratio in ratios.items()]
    keep("attention", figures, {"rows": options.rows, "context": options.context, "ms_a_layer": ms})


if __name__ == "__main__":
    main()
