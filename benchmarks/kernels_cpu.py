"""The native CPU kernels beside XLA: attention of one layer, all products of SmolLM2-135M, all its layers in one call.

    python -m benchmarks.kernels_cpu [--realtime]

Prints the smallest of `--repeats` runs in milliseconds. `--realtime` (root) puts the measured threads before all other
work of the machine, so that numbers hold on a busy one; the machine stalls meanwhile.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from engine.execution.kv_pool import attention_shape
from engine.kernels.attention import AttentionBackend, AttentionShape, PrefillLayout
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import DecoderStep, allocate_stack, run_decoder, stack_layers
from engine.kernels.cpu.library import NativeUnavailable, native_library
from engine.kernels.cpu.products import pack_bf16, pack_int8, pack_q4_1, pack_q8_0
from engine.kernels.products import product, quantize_int8
from engine.kernels.xla_attention import XlaAttention
from engine.model.checkpoint import load_model
from engine.model.config import ModelConfig
from engine.model.layers import rope_tables
from engine.model.native import native_gguf_params, native_params
from engine.model.params import Params
from engine.model.transformer import embed, logits
from engine.wire import DEFAULT_MODEL

SMOLLM2 = AttentionShape(9, 3, 64, 16, 0.125)
MATRICES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49_152, 576)
NUM_LAYERS = 30
ROWS = (1, 2, 8, 16, 32, 64, 256)
KV_DTYPES = ("bfloat16", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    library = native_library()
    if isinstance(library, NativeUnavailable):
        raise SystemExit(f"no native kernels: {library.reason}")
    best = partial(smallest_ms, repeats=options.repeats, realtime=options.realtime)
    print(f"instruction sets: {', '.join(library.isa_names.values())}")
    native = CpuNativeAttention(library)
    for rows, context in ((8, 256), (32, 256), (32, 1024), (16, 1600)):
        for kv_dtype in KV_DTYPES:
            ms = [best(*decode_call(backend, rows, context, kv_dtype)) for backend in (XlaAttention(), native)]
            print(f"attention, one layer, {rows:3} rows x {context:5}, {kv_dtype:8} KV: xla {ms[0]:7.2f}  native {ms[1]:7.2f}", flush=True)
    show_products(library.level(), best)
    config, dense = load_model(DEFAULT_MODEL)
    level = library.level()
    forms = {
        "bf16": native_params(dense, level, int8=False),
        "int8": native_params(dense, level, int8=True),
        "gguf": native_gguf_params(DEFAULT_MODEL, level)[1],
    }
    for rows, context in ((1, 128), (8, 128), (32, 128), (16, 1600)):
        for kv_dtype in KV_DTYPES:
            ms = [best(*decoder_call(config, params, native, rows, context, kv_dtype)) for params in forms.values()]
            shown = "  ".join(f"{name} {value:7.2f}" for name, value in zip(forms, ms, strict=True))
            print(f"layers and head, one call, {rows:3} rows x {context:5}, {kv_dtype:8} KV: {shown}", flush=True)


def smallest_ms(call: Callable[[], object], *, repeats: int, realtime: bool) -> float:
    jax.block_until_ready(call())
    seconds = []
    with realtime_threads() if realtime else no_change():
        for _ in range(repeats):
            started_s = time.perf_counter()
            jax.block_until_ready(call())
            seconds.append(time.perf_counter() - started_s)
    return min(seconds) * 1e3


@contextmanager
def no_change() -> Iterator[None]:
    yield


@contextmanager
def realtime_threads() -> Iterator[None]:
    """All threads of this process in the real-time class."""
    set_scheduling(os.SCHED_RR, 1)
    try:
        yield
    finally:
        set_scheduling(os.SCHED_OTHER, 0)


def set_scheduling(policy: int, priority: int) -> None:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def tables_of(rows: int, context: int) -> tuple[jax.Array, jax.Array, int]:
    """Page tables, lengths, and the number of pages that they take."""
    pages = -(-context // SMOLLM2.page_size)
    tables = np.random.default_rng(0).permutation(rows * pages).reshape(rows, pages)
    return jnp.asarray(tables, jnp.int32), jnp.full(rows, context, jnp.int32), rows * pages


def decode_call(backend: AttentionBackend, rows: int, context: int, kv_dtype: str) -> tuple[Callable[[], object]]:
    tables, lengths, pages = tables_of(rows, context)
    cache = backend.allocate(SMOLLM2, pages, kv_dtype)
    q = jnp.ones((rows, SMOLLM2.num_heads, SMOLLM2.head_dim), jnp.bfloat16)
    decode = jax.jit(lambda cache, q, tables, lengths: backend.decode(SMOLLM2, cache, q, tables, lengths))
    return (lambda: decode(cache, q, tables, lengths),)


def show_products(level: int, best: Callable[..., float]) -> None:
    """Every matrix of the model once, in memory of its own, so that nothing stays in a cache that would not."""
    draw = np.random.default_rng(0)
    forms: dict[str, Callable[[np.ndarray], object]] = {
        "xla bf16": lambda matrix: jnp.asarray(matrix, jnp.bfloat16),
        "xla int8": lambda matrix: quantize_int8(jnp.asarray(matrix)),
        "bf16": lambda matrix: pack_bf16(matrix.astype(jnp.bfloat16), level),
        "int8": lambda matrix: pack_int8(matrix, level),
        "q4": lambda matrix: pack_q4_1(gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q4_1), level),
    }
    for name, pack in forms.items():
        dense = [(draw.standard_normal(size) * 0.05).astype(np.float32) for size in (*MATRICES, HEAD)]
        layer = [pack(matrix) for matrix in dense[:-1]]
        layers = [jax.tree.map(jnp.copy, layer) for _ in range(NUM_LAYERS)]
        q8_head = pack_q8_0(gguf.quants.quantize(dense[-1], gguf.GGMLQuantizationType.Q8_0), level) if name == "q4" else None
        weights = (layers, q8_head or pack(dense[-1]))
        run = jax.jit(all_products)
        ms = {rows: best(partial(run, weights, jnp.ones((rows, HEAD[1]), jnp.bfloat16))) for rows in ROWS}
        shown = "  ".join(f"{rows}: {value:.1f}" for rows, value in ms.items())
        print(f"products of {NUM_LAYERS} layers and head, {name:8} rows {shown}", flush=True)


def all_products(weights: tuple[Sequence[Sequence[object]], object], x: jax.Array) -> jax.Array:
    layers, head = weights
    for qkv, output, gate_up, down in layers:
        x = x + product(product(x, qkv)[:, :576], output)
        x = x + product(product(x, gate_up)[:, :1536], down)
    return product(x, head, out_dtype=jnp.float32)


def decoder_call(
    config: ModelConfig, params: Params, backend: CpuNativeAttention, rows: int, context: int, kv_dtype: str
) -> tuple[Callable[[], object]]:
    """A decode step without its sampler; the caches go round."""
    shape = attention_shape(config, SMOLLM2.page_size)
    tables, lengths, pages = tables_of(rows, context)
    none = jnp.zeros(0, jnp.int32)
    layout = PrefillLayout(jnp.zeros((0, tables.shape[1]), jnp.int32), none, none, none, none)
    params = params._replace(layers=stack_layers(params.layers))
    held = {"caches": allocate_stack(backend, shape, config.num_layers, pages, kv_dtype)}

    def step(params: Params, caches: Sequence[jax.Array], tables: jax.Array, lengths: jax.Array) -> tuple[jax.Array, Sequence[jax.Array]]:
        cos, sin = rope_tables(config.rope, config.head_dim, lengths - 1)
        slots = tables[:, -1] * shape.page_size
        hidden = embed(config, params, jnp.zeros(rows, jnp.int32))
        hidden, caches = run_decoder(
            shape, config.rms_norm_eps, params.layers, hidden, DecoderStep(cos, sin, slots, tables, lengths, layout), caches
        )
        return logits(config, params, hidden), caches

    run = jax.jit(step, donate_argnums=1)

    def call() -> jax.Array:
        out, held["caches"] = run(params, held["caches"], tables, lengths)
        return out

    return (call,)


if __name__ == "__main__":
    main()
