"""Milliseconds of whole steps (layers, head, sampler, both transfers), by decode rows x context and by prefill tokens.

    python -m benchmarks.step_time --model smollm2-135m-instruct --dtype bfloat16 --backend xla

Prints the smallest and the middle of `--repeats` runs: on a machine that does other things too, the smallest is the one to compare.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from engine.config import resolve_cache_dir
from engine.execution.backends import stacked_params
from engine.execution.batch import Limits
from engine.execution.kv_pool import attention_shape
from engine.execution.runner import DeviceRunner
from engine.execution.warmup import use_compile_cache, warm_up
from engine.kernels.attention import AttentionBackend
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.library import NativeLibrary, native_library
from engine.kernels.products import quantize_int8
from engine.kernels.select import choose_backend
from engine.kernels.xla_attention import XlaAttention
from engine.model.checkpoint import load_model
from engine.model.native import native_gguf_params, native_params
from engine.model.params import LayerParams, Params
from engine.scheduling.plan import Admitted, Bucket, DecodeRow, PrefillChunk, StepPlan
from engine.wire import DEFAULT_MODEL, EngineConfig, Sampling

PAGE_SIZE = 16
MATRICES = ("qkv", "output", "gate_up", "down")


def main() -> None:
    options = parse_options()
    use_compile_cache(resolve_cache_dir(EngineConfig(), {}))
    config, params = load_model(options.model, load_format=options.load_format, dtype=options.dtype)
    limits = Limits(max(options.rows), max(options.contexts) + 512, 4, 16 + sum_pages(options), PAGE_SIZE)
    chosen = choose_backend(options.backend, backends(), attention_shape(config, PAGE_SIZE), options.dtype)
    params = in_form(options.weights, chosen.backend, options.model, params)
    if isinstance(chosen.backend, CpuNativeAttention):
        params = stacked_params(params, attention_shape(config, PAGE_SIZE), options.dtype)
    buckets = [*(Bucket(rows, 0) for rows in options.rows), *(Bucket(0, tokens) for tokens in options.prefill)]
    warmed = warm_up(config, params, limits, chosen.backend, buckets, options.dtype, lambda *_: None)
    print(f"{config.name} {options.dtype} weights {options.weights}, {chosen.backend.name} ({chosen.reason})")
    print("start: " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in warmed.seconds.items()))
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p)
    for context in options.contexts:
        for rows in options.rows:
            show(f"decode {rows:3} rows x {context:5} context", time_decode(warmed.runner, rows, context, sampling, options.repeats))
    for tokens in options.prefill:
        show(f"prefill {tokens:4} tokens", time_prefill(warmed.runner, tokens, sampling, options.repeats))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_time", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--weights", default="dense", choices=["dense", "int8", "gguf"], help="with cpu-native packed for its products")
    parser.add_argument("--backend", default="xla")
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--prefill", type=int, nargs="+", default=[80, 512])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=20)
    return parser.parse_args()


def sum_pages(options: argparse.Namespace) -> int:
    """Pages that the largest run takes."""
    return max(max(options.rows) * -(-(max(options.contexts) + options.repeats + 8) // PAGE_SIZE), max(options.prefill) // PAGE_SIZE)


def backends() -> Sequence[AttentionBackend]:
    library = native_library()
    return (*([CpuNativeAttention(library)] if isinstance(library, NativeLibrary) else []), XlaAttention())


def in_form(weights: str, backend: AttentionBackend, model: str, params: Params) -> Params:
    """Weights as the backend multiplies them fastest."""
    if isinstance(backend, CpuNativeAttention):
        level = backend.library.level()
        return native_gguf_params(model, level)[1] if weights == "gguf" else native_params(params, level, int8=weights == "int8")
    return to_int8(params) if weights == "int8" else params


def to_int8(params: Params) -> Params:
    """Layers' matrices and a copy of the tied head, rounded."""

    def layer(dense: LayerParams) -> LayerParams:
        return dense._replace(**{name: quantize(getattr(dense, name)) for name in MATRICES})

    quantize = jax.jit(quantize_int8)
    head = params.embed if params.head is None else params.head
    return params._replace(layers=tuple(map(layer, params.layers)), head=quantize(jnp.asarray(head)))


def time_decode(runner: DeviceRunner, rows: int, context: int, sampling: Sampling, repeats: int) -> list[float]:
    """Steps one after another, each waiting for the last, as contexts grow by one."""
    table = -(-(context + repeats + 8) // PAGE_SIZE)
    admitted = tuple(Admitted(slot, slot, [1] * context, context, sampling) for slot in range(rows))
    seconds = []
    for step in range(repeats + 3):
        pages = [tuple(range(slot * table, (slot + 1) * table)) if step == 0 else () for slot in range(rows)]
        decodes = tuple(DecodeRow(slot, slot, context + step, pages[slot]) for slot in range(rows))
        seconds.append(time_step(runner, StepPlan(step, Bucket(rows, 0), admitted if step == 0 else (), decodes, ())))
    return seconds[3:]


def time_prefill(runner: DeviceRunner, tokens: int, sampling: Sampling, repeats: int) -> list[float]:
    """One prompt that fills the bucket."""
    pages = tuple(range(-(-tokens // PAGE_SIZE)))
    prompt = tuple(range(1, tokens + 1))
    chunk = PrefillChunk(0, 0, 0, prompt, pages, samples=True)
    plan = StepPlan(0, Bucket(0, tokens), (Admitted(0, 0, prompt, tokens, sampling),), (), (chunk,))
    return [time_step(runner, plan) for _ in range(repeats // 2 + 2)][2:]


def time_step(runner: DeviceRunner, plan: StepPlan) -> float:
    started_s = time.perf_counter()
    runner.collect(runner.dispatch(plan))
    return time.perf_counter() - started_s


def show(name: str, seconds: Sequence[float]) -> None:
    print(f"{name}: smallest {min(seconds) * 1e3:6.1f} ms, median {statistics.median(seconds) * 1e3:6.1f} ms", flush=True)


if __name__ == "__main__":
    main()
