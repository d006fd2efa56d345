"""`make gpu-bench`: the GPU kernels and whole steps on the clock of a real card. Never yet run on one: see docs/gpu.md.

usage: python -m benchmarks.gpu_bench [--sections NAME,...] [--out FOLDER] [--fresh] [--dry-run]

Sections, in order: correctness (every kernel against its twin on this device: a fast wrong kernel is worth nothing),
decode, contiguous (the same with pages in order, which shows what paging costs), prefill, write, steps. Each writes FOLDER/<section>.json
when it is done and is not run again unless --fresh, so an interrupted run is taken up where it stopped.
`--dry-run` runs tiny shapes in Pallas's interpreter on any machine, to see that the script works; its times mean nothing.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.execution.batch import Limits, SlotArrays, pack, step_shape
from engine.execution.kv_pool import allocate
from engine.execution.step import run_step
from engine.kernels import reference
from engine.kernels.attention import AttentionBackend, AttentionShape
from engine.kernels.gpu_backends import gpu_backends
from engine.kernels.paged_cache import PagedCache
from engine.kernels.pallas_triton import PallasTritonBackend
from engine.scheduling.plan import Bucket, DecodeRow, PrefillChunk, StepPlan
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
from tools.gpu_compile_steps import MAX_SEQUENCES, MODELS, num_pages, param_avals

BANDWIDTH_BYTES_S = {"NVIDIA H200": 4.8e12, "NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA A100-SXM4-80GB": 2.039e12, "NVIDIA B200": 7.67e12}
BF16_FLOPS = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA B200": 2_250e12}
"""Of the data sheets, dense. A card that is not here gets no share."""

LLAMA_8B = AttentionShape(num_heads=32, num_kv_heads=8, head_dim=128, page_size=16, scale=128**-0.5)
TINY = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=64, page_size=16, scale=0.125)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and at which size."""

    backends: tuple[AttentionBackend, ...]
    device: Any  # jax.Device
    dry_run: bool

    @property
    def shape(self) -> AttentionShape:
        return TINY if self.dry_run else LLAMA_8B

    def share(self, of: dict[str, float], rate: float) -> float | None:
        """Part of the card's own rate, in per cent."""
        return round(100 * rate / of[self.device.device_kind], 1) if self.device.device_kind in of else None

    def seconds(self, call: Callable[[int], Any], calls: int = 20, rounds: int = 3) -> float:
        """Of one call: the best of some rounds of calls in a row, so that launches overlap as they do in the engine."""
        if self.dry_run:
            calls, rounds = 1, 1
        last = jax.block_until_ready(call(0))
        best = float("inf")
        for _ in range(rounds):
            started_s = time.perf_counter()
            for number in range(calls):
                last = call(number)
            jax.block_until_ready(last)
            best = min(best, (time.perf_counter() - started_s) / calls)
        return best


def correctness(bench: Bench) -> Iterator[dict[str, Any]]:
    """Head dims, groups, KV types, windows and caps against the f32 twins. The caller stops at the first that is wrong."""
    heads_of = [(4, 2, 64), (7, 1, 80), (4, 4, 96), (16, 2, 128), (8, 1, 256), (16, 1, 128)]
    for backend in bench.backends:
        for (heads, kv_heads, dim), kv_dtype in itertools.product(heads_of, ("bfloat16", "int8", "float8_e4m3fn", "float32")):
            shape = AttentionShape(heads, kv_heads, dim, 16, dim**-0.5, 70 if heads == 4 else None, 30.0 if heads == 7 else None)
            if not backend.supports(shape, kv_dtype) or (bench.dry_run and dim != 64):
                continue
            for kernel, error_of in (("decode", _decode_error), ("prefill", _prefill_error)):
                error = error_of(backend, shape, kv_dtype)
                facts = {"kernel": kernel, "backend": backend.name, "shape": f"{heads}/{kv_heads}x{dim}", "kv_dtype": kv_dtype}
                yield facts | {"error": error, "ok": error < max(TOLERANCE[kv_dtype], 1e-5)}


def _decode_error(backend: AttentionBackend, shape: AttentionShape, kv_dtype: str) -> float:
    rng = np.random.default_rng(0)
    cache, tables = random_cache(shape, 96, kv_dtype, rng), random_tables(6, 40, 96, rng)
    lengths = np.asarray([640, 321, 64, 17, 1, 0], np.int32)
    q = jnp.asarray(rng.normal(size=(6, shape.num_heads, shape.head_dim)), query_dtype(kv_dtype))
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


def _filled_cache(backend: AttentionBackend, shape: AttentionShape, pages: int, kv_dtype: str) -> PagedCache:
    """Not zeros: a card computes faster on them."""
    cache = backend.allocate(shape, pages, kv_dtype)
    return jax.tree.map(lambda a: jnp.full_like(a, 3 if a.dtype == jnp.int8 else 0.25), cache)


def decode(bench: Bench, *, in_order: bool = False) -> Iterator[dict[str, Any]]:
    """Bytes of K and V read over time. Tables change from call to call, so that no L2 holds a small case."""
    shape = bench.shape
    sizes = [(2, 64)] if bench.dry_run else [(batch, context) for batch in (1, 16, 64, 256) for context in (1_024, 8_192, 32_768)]
    pool_pages = 256 if bench.dry_run else 2**17 - 1  # 2 M tokens, 4 GiB of K and of V in bf16; 256 x 32k read them four times
    rng = np.random.default_rng(0)
    for backend in bench.backends:
        for kv_dtype in ("bfloat16",) if in_order or bench.dry_run else ("bfloat16", "int8"):
            if not backend.supports(shape, kv_dtype):
                continue
            cache = _filled_cache(backend, shape, pool_pages, kv_dtype)
            for batch, context in [(1, sizes[-1][1])] if in_order else sizes:
                pages, rotations = context // shape.page_size, 1 if bench.dry_run else 8
                drawn = [np.arange(batch * pages) + start * batch * pages for start in range(rotations)]
                if not in_order:
                    drawn = [rng.permutation(pool_pages)[np.arange(batch * pages) % pool_pages] for _ in range(rotations)]
                tables = [jnp.asarray(ids.reshape(batch, pages) % pool_pages, jnp.int32) for ids in drawn]
                q = jnp.ones((batch, shape.num_heads, shape.head_dim), jnp.bfloat16)
                run, lengths = partial(jax.jit(partial(backend.decode, shape)), cache, q), jnp.full((batch,), context, jnp.int32)
                seconds = bench.seconds(lambda n, run=run, tables=tables, lengths=lengths: run(tables[n % len(tables)], lengths))
                vector_bytes = shape.head_dim * cache.k.dtype.itemsize + (4 if cache.k_scale is not None else 0)
                rate = 2 * batch * context * shape.num_kv_heads * vector_bytes / seconds
                facts = {"backend": backend.name, "kv_dtype": kv_dtype, "batch": batch, "context": context, "us": round(seconds * 1e6, 1)}
                yield facts | {"gb_s": round(rate / 1e9, 1), "bandwidth_percent": bench.share(BANDWIDTH_BYTES_S, rate)}


def prefill(bench: Bench) -> Iterator[dict[str, Any]]:
    """FLOPs of both products below the diagonal over time: one long prompt, and a chunk behind a long prefix."""
    shape = bench.shape
    sizes = [(64, 32)] if bench.dry_run else [(4_096, 0), (16_384, 0), (2_048, 30_720)]
    for backend in bench.backends:
        if not backend.supports(shape, "bfloat16"):
            continue
        for tokens, context in sizes:
            pages = (tokens + context) // shape.page_size
            cache = _filled_cache(backend, shape, pages, "bfloat16")
            layout = layout_of([Chunk(context, tokens)], np.random.default_rng(0).permutation(pages)[None], tokens)
            q = jnp.full((tokens, shape.num_heads, shape.head_dim), 0.25, jnp.bfloat16)
            run = jax.jit(partial(backend.prefill, shape))
            seconds = bench.seconds(lambda _, run=run, cache=cache, q=q, layout=layout: run(cache, q, layout), calls=5)
            rate = 4 * shape.num_heads * shape.head_dim * tokens * (context + tokens / 2) / seconds
            facts = {"backend": backend.name, "tokens": tokens, "context": context, "us": round(seconds * 1e6, 1)}
            yield facts | {"tflops": round(rate / 1e12, 1), "flops_percent": bench.share(BF16_FLOPS, rate)}


def write(bench: Bench) -> Iterator[dict[str, Any]]:
    """Bytes read and written over time, one token's and a chunk's worth."""
    shape, backend = bench.shape, bench.backends[-1]
    for kv_dtype in ("bfloat16", "int8"):
        for tokens in (16,) if bench.dry_run else (256, 8_192):
            rows = jnp.full((tokens, shape.num_kv_heads, shape.head_dim), 0.25, jnp.bfloat16)
            slots = jnp.asarray(np.random.default_rng(0).permutation(4 * tokens)[:tokens], jnp.int32)
            run = jax.jit(partial(backend.write, shape), donate_argnums=0)
            caches = [_filled_cache(backend, shape, 4 * tokens // shape.page_size, kv_dtype)]

            def call(_: int, run: Any = run, rows: Any = rows, slots: Any = slots, caches: Any = caches) -> Any:
                caches[0] = run(caches[0], rows, rows, slots)
                return caches[0].k

            seconds = bench.seconds(call)
            moved = 2 * rows.size * (2 + jnp.dtype(kv_dtype).itemsize)
            yield {
                "backend": backend.name,
                "kv_dtype": kv_dtype,
                "tokens": tokens,
                "us": round(seconds * 1e6, 1),
                "gb_s": round(moved / seconds / 1e9, 1),
            }


def steps(bench: Bench) -> Iterator[dict[str, Any]]:
    """Whole steps with dummy weights, sampling included: decode of 256 rows at 600 tokens, and 4,096 tokens of prefill.

    `workload_tokens_s` follows from both for 256 sequences of 100 to 1,024 tokens in and out (562 on average), all at once.
    """
    memory = bench.device.memory_stats()["bytes_limit"] if not bench.dry_run else 0
    for model in ("qwen3-0.6b", "llama-3-8b"):
        config, backend = MODELS[model], bench.backends[0]
        if bench.dry_run:
            config = replace(
                config, num_layers=1, hidden_size=64, intermediate_size=64, vocab_size=256, num_heads=4, num_kv_heads=2, head_dim=64
            )
        rows, chunk, context = (2, 16, 20) if bench.dry_run else (MAX_SEQUENCES, 4_096, 600)
        pages = 8 if bench.dry_run else min(num_pages(config, "bfloat16", memory), rows * 64 + 1)
        limits = Limits(rows, 32 if bench.dry_run else 1_024, 16, pages, 16)
        params = jax.tree.map(lambda a: jnp.full(a.shape, 0.01, a.dtype), param_avals(config))
        seconds = {}
        for bucket in (Bucket(rows, 0), Bucket(0, chunk)):
            shape = step_shape(bucket, limits)
            run = jax.jit(partial(run_step, config, limits, backend, shape), donate_argnums=1)
            held = [allocate(config, limits, backend, "bfloat16")]
            buffer = jnp.asarray(pack(shape, _plan(bucket, context, pages), SlotArrays(limits)).buffer)

            def call(_: int, run: Any = run, params: Any = params, held: Any = held, buffer: Any = buffer) -> Any:
                held[0], packed = run(params, held[0], buffer)
                return packed

            seconds[str(bucket)] = bench.seconds(call, calls=10)
        decode_s, prefill_s = seconds.values()
        total_s = 562 * decode_s + rows * 562 / chunk * prefill_s
        times = {f"{name}_ms": round(value * 1e3, 2) for name, value in seconds.items()}
        facts = {"model": model, "backend": backend.name, **times, "decode_tokens_s": round(rows / decode_s)}
        yield facts | {"workload_tokens_s": round(rows * 562 / total_s)}


def _plan(bucket: Bucket, context: int, pages: int) -> StepPlan:
    """Every decode row at `context`, or prompts of up to 512 tokens that fill the bucket. Rows have their own pages while they last."""

    def pages_of(slot: int, tokens: int) -> tuple[int, ...]:
        count = -(-tokens // 16)
        return tuple((slot * count + number) % pages for number in range(count))

    tokens = min(512, bucket.prefill_tokens)
    decodes = tuple(DecodeRow(slot, slot, context, pages_of(slot, context + 1)) for slot in range(bucket.decode_rows))
    prompts = range(bucket.prefill_tokens // tokens) if tokens else range(0)
    prefills = tuple(PrefillChunk(slot, slot, 0, (0,) * tokens, pages_of(slot, tokens), samples=True) for slot in prompts)
    return StepPlan(0, bucket, (), decodes, prefills)


SECTIONS: dict[str, Callable[[Bench], Iterator[dict[str, Any]]]] = {
    "correctness": correctness,
    "decode": decode,
    "contiguous": partial(decode, in_order=True),
    "prefill": prefill,
    "write": write,
    "steps": steps,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path("var/gpu-bench"))
    parser.add_argument("--fresh", action="store_true", help="run sections again that are done")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes in the interpreter, on any machine")
    options = parser.parse_args(arguments)
    device = jax.devices()[0]
    backends = (PallasTritonBackend((9, 0), interpret=True),) if options.dry_run else gpu_backends(device)
    if not backends:
        print(f"{device.device_kind} is no NVIDIA GPU that the kernels run on; --dry-run shows that the script works", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"device": device.device_kind, "jax": jax.__version__, "platform": device.client.platform_version, "dry_run": options.dry_run}
    for name in options.sections.split(","):
        path = options.out / f"{name}.json"
        if path.exists() and not options.fresh:
            print(f"{name}: done before, see {path}")
            continue
        started_s, rows = time.perf_counter(), []
        for row in SECTIONS[name](Bench(backends, device, options.dry_run)):
            rows.append(row)
            print(f"{name:12}", "  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        if not all(row.get("ok", True) for row in rows):
            print("a kernel is wrong on this device: nothing is measured", file=sys.stderr)
            return 1
        path.write_text(json.dumps(about | {"seconds": round(time.perf_counter() - started_s, 1), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
