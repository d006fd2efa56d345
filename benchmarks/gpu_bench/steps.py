"""Whole steps with dummy weights, sampling included, and what follows from them for a workload."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_bench.clock import Bench, Measurement, Row
from engine.execution.batch import Limits, SlotArrays, pack, step_shape
from engine.execution.command_buffers import compiler_options
from engine.execution.kv_pool import allocate, attention_shape
from engine.execution.step import run_step
from engine.kernels.attention import AttentionBackend
from engine.kernels.select import choose_backend
from engine.model.config import ModelConfig
from engine.model.kv_size import kv_bytes_per_token
from engine.scheduling.plan import Bucket, DecodeRow, PrefillChunk, StepPlan
from tools.gpu_compile_steps import MAX_SEQUENCES, MODELS, array_bytes, num_pages, param_avals

STEP_MODELS = ("qwen3-0.6b", "llama-3-8b")
MEAN_TOKENS = 562
"""Of 100 to 1,024 tokens in, and as many out: the workload that nano-vllm and mini-sglang publish, 256 sequences at once."""
CONTEXT, CHUNK_TOKENS = 600, 4_096
OVERHEAD_ROWS = 64
"""Decode rows of the step whose time outside of its kernels is measured."""
CALLS, COMPILE_STEPS_S = 10, 22.0
"""The three programs of a model: gpu-compile takes 2 to 6 s for each."""


def steps(bench: Bench) -> Iterator[Measurement]:
    """Decode of 256 rows at 600 tokens, 4,096 tokens of prefill. `workload_tokens_s`: 256 sequences from their first to their last token,
    all at once, as these two steps would serve them. `overhead_percent`: of a decode step of 64 rows that is waited for, the share that
    steps in a row hide (a decode step is one CUDA graph, so in a row the card does nothing but its kernels)."""
    for model in STEP_MODELS[: 1 if bench.tiny else None]:
        config = MODELS[model]
        weight_bytes = array_bytes(param_avals(config))
        decode_bytes = weight_bytes + MAX_SEQUENCES * CONTEXT * kv_bytes_per_token(config, "bfloat16")
        prefill_flops = weight_bytes * CHUNK_TOKENS  # two a weight, which has two bytes
        estimate_s = bench.estimate_s(decode_bytes, calls=CALLS, compile_s=COMPILE_STEPS_S)
        estimate_s += 2 * bench.estimate_s(weight_bytes, calls=CALLS, compile_s=0.0)  # of 64 rows, in a row and one by one
        yield Measurement(
            estimate_s + bench.estimate_s(call_flops=prefill_flops, calls=CALLS, compile_s=0.0), partial(_time_steps, bench, model)
        )


def _time_steps(bench: Bench, model: str) -> Row:
    config = MODELS[model]
    if bench.tiny:
        config = replace(
            config, num_layers=1, hidden_size=64, intermediate_size=64, vocab_size=256, num_heads=4, num_kv_heads=2, head_dim=64
        )
    rows, chunk, context = (2, 16, 20) if bench.tiny else (MAX_SEQUENCES, CHUNK_TOKENS, CONTEXT)
    pages = 8 if bench.tiny else min(num_pages(config, "bfloat16", bench.memory_bytes), rows * 64 + 1)
    limits = Limits(rows, 32 if bench.tiny else 1_024, 16, pages, 16)
    backend = choose_backend("auto", bench.backends, attention_shape(config, limits.page_size), "bfloat16").backend
    params = jax.tree.map(lambda a: jnp.full(a.shape, 0.01, a.dtype), param_avals(config))
    full, few, prompts = Bucket(rows, 0), Bucket(min(rows, OVERHEAD_ROWS), 0), Bucket(0, chunk)
    timers = {full: [bench.seconds], few: [bench.seconds, bench.seconds_alone], prompts: [bench.seconds]}
    seconds = {bucket: _time_step(config, limits, backend, params, context, bucket, used) for bucket, used in timers.items()}
    (full_s, *_), (few_s, alone_s), (prompts_s,) = seconds[full], seconds[few], seconds[prompts]
    total_s = MEAN_TOKENS * full_s + rows * MEAN_TOKENS / chunk * prompts_s
    shown = {f"{bucket}_ms": round(first_s * 1e3, 2) for bucket, (first_s, *_) in seconds.items()}
    shown |= {f"{few}_alone_ms": round(alone_s * 1e3, 2), "overhead_percent": round(100 * max(0.0, 1 - few_s / alone_s), 1)}
    row = {"model": model, "backend": backend.name, **shown, "decode_tokens_s": round(rows / full_s)}
    return row | {"workload_tokens_s": round(rows * MEAN_TOKENS / total_s)}


type _Timer = Callable[[Callable[[int], jax.Array], int], float]


def _time_step(
    config: ModelConfig, limits: Limits, backend: AttentionBackend, params: Any, context: int, bucket: Bucket, timers: Sequence[_Timer]
) -> list[float]:
    """Seconds by each timer, with the compiler's options of the engine. The step's pages, most of the card, go when it is done."""
    shape = step_shape(bucket, limits)
    held = [allocate(config, limits, backend, "bfloat16")]
    buffer = jnp.asarray(pack(shape, plan_of(bucket, context, limits.num_pages), SlotArrays(limits)).buffer)
    step = jax.jit(partial(run_step, config, limits, backend, shape), donate_argnums=1).lower(params, held[0], buffer)
    run = step.compile(compiler_options=compiler_options(bucket, jax.default_backend(), enforce_eager=False))

    def call(_: int) -> jax.Array:
        held[0], packed = run(params, held[0], buffer)
        return packed

    return [timer(call, CALLS) for timer in timers]


def plan_of(bucket: Bucket, context: int, pages: int) -> StepPlan:
    """Every decode row at `context`, or prompts of up to 512 tokens that fill the bucket. Rows have their own pages while they last."""

    def pages_of(slot: int, tokens: int) -> tuple[int, ...]:
        count = -(-tokens // 16)
        return tuple((slot * count + number) % pages for number in range(count))

    tokens = min(512, bucket.prefill_tokens)
    decodes = tuple(DecodeRow(slot, slot, context, pages_of(slot, context + 1)) for slot in range(bucket.decode_rows))
    prompts = range(bucket.prefill_tokens // tokens) if tokens else range(0)
    prefills = tuple(PrefillChunk(slot, slot, 0, (0,) * tokens, pages_of(slot, tokens), samples=True) for slot in prompts)
    return StepPlan(0, bucket, (), decodes, prefills)
