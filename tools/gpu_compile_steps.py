"""The engine's real steps of real models, compiled for cards that are not there: random weights are not even made."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from engine.execution.batch import Limits, buffer_size, step_shape
from engine.execution.command_buffers import compiler_options
from engine.execution.kv_pool import allocate, attention_shape, whole_state
from engine.execution.step import run_step
from engine.kernels.gpu_backends import backends_of
from engine.kernels.select import choose_backend
from engine.model.config import ModelConfig, RopeConfig
from engine.model.devices import LAYER_CUT, VOCABULARY_CUT, WHOLE, Devices, share_of
from engine.model.params import LayerParams, Params
from engine.scheduling.buckets import buckets_of
from engine.scheduling.plan import Bucket
from engine.wire import EngineConfig
from tools.gpu_compile_target import Target

PAGE_TOKENS = 16
MAX_SEQUENCES = 256
MEMORY_SHARE = 0.75
"""Of the card, for weights, pages and 4 GiB of temporaries. XLA plans with 80 %; above that it recomputes to save memory."""

_LLAMA_3_ROPE = RopeConfig(theta=500_000.0, scaling="llama3", factor=8.0)

MODELS = {
    "qwen3-0.6b": ModelConfig(
        name="qwen3-0.6b", architecture="qwen3", vocab_size=151_936, hidden_size=1_024, intermediate_size=3_072, num_layers=28,
        num_heads=16, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-6, max_position=40_960, rope=RopeConfig(theta=1e6),
        tie_embeddings=True, qk_norm=True,
    ),
    "llama-3-8b": ModelConfig(
        name="llama-3-8b", architecture="llama", vocab_size=128_256, hidden_size=4_096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, max_position=131_072, rope=_LLAMA_3_ROPE, tie_embeddings=False,
    ),
    "mistral-7b": ModelConfig(
        name="mistral-7b", architecture="mistral", vocab_size=32_000, hidden_size=4_096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, max_position=32_768, rope=RopeConfig(), tie_embeddings=False,
        sliding_window=4_096,
    ),
    "llama-3-70b": ModelConfig(
        name="llama-3-70b", architecture="llama", vocab_size=128_256, hidden_size=8_192, intermediate_size=28_672, num_layers=80,
        num_heads=64, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, max_position=131_072, rope=_LLAMA_3_ROPE, tie_embeddings=False,
    ),
}  # fmt: skip

DEVICES = {"llama-3-70b": 8}
"""Cards that a model is split over; the others have one."""

BUCKETS = buckets_of(EngineConfig(max_num_seqs=MAX_SEQUENCES, max_num_batched_tokens=2_048)).all()
"""Those that the engine makes for these limits: the smallest is d2, the largest p2048."""

KV_DTYPES = ("bfloat16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """One bucket of one model, for the longest context of that model."""

    model: str
    bucket: Bucket
    kv_dtype: str
    target: str

    @property
    def name(self) -> str:
        return f"step/{self.model}/{self.kv_dtype}/{self.bucket}"


def step_cases(target: str) -> Iterator[StepCase]:
    """For Hopper and Ampere."""
    if target not in ("h200", "a100"):
        return
    for model, kv_dtype, bucket in itertools.product(MODELS, KV_DTYPES, BUCKETS):
        yield StepCase(model=model, bucket=bucket, kv_dtype=kv_dtype, target=target)


def param_avals(config: ModelConfig) -> Params:
    """bf16 weights as shapes."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads

    def matrix(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16)

    def norm(size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), jnp.float32)

    head_norm = norm(dim) if config.qk_norm else None
    layer = LayerParams(
        input_norm=norm(hidden),
        qkv=matrix((heads + 2 * kv_heads) * dim, hidden),
        qkv_bias=None,
        q_norm=head_norm,
        k_norm=head_norm,
        output=matrix(hidden, heads * dim),
        output_bias=None,
        post_norm=norm(hidden),
        gate_up=matrix(2 * inner, hidden),
        gate_up_bias=None,
        down=matrix(hidden, inner),
        down_bias=None,
    )
    head = None if config.tie_embeddings else matrix(config.vocab_size, hidden)
    return Params(matrix(config.vocab_size, hidden), (layer,) * config.num_layers, norm(hidden), head)


def whole_params(devices: Devices, part: Params) -> Params:
    """Shapes and places over all devices, from one's."""

    def whole_layer(layer: LayerParams) -> LayerParams:
        return LayerParams(*(None if array is None else devices.whole_of(array, cut) for array, cut in zip(layer, LAYER_CUT, strict=True)))

    head = None if part.head is None else devices.whole_of(part.head, VOCABULARY_CUT)
    embed, final_norm = devices.whole_of(part.embed, VOCABULARY_CUT), devices.whole_of(part.final_norm, WHOLE)
    return Params(embed, tuple(map(whole_layer, part.layers)), final_norm, head)


def num_pages(config: ModelConfig, kv_dtype: str, memory_bytes: int) -> int:
    """As many as fit beside the weights and 4 GiB of temporaries, as far as one array can be addressed."""
    weights = array_bytes(param_avals(config))
    vector_bytes = config.head_dim * jnp.dtype(kv_dtype).itemsize + (4 if kv_dtype == "int8" else 0)
    page_bytes = 2 * config.num_layers * config.num_kv_heads * PAGE_TOKENS * vector_bytes
    most = (2**31 - 1) // (PAGE_TOKENS * config.num_kv_heads * config.head_dim)
    return min(most, int(memory_bytes * MEMORY_SHARE - weights - 4 * 2**30) // page_bytes)


def array_bytes(tree: Any) -> int:
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def compile_step(case: StepCase, target: Target) -> dict[str, Any]:
    """Record of a step: its worst kernel, bytes on each card, copies of the cache (none), sums over the cards, CUDA graphs and how many
    launches the host makes in all; of a decode step, how many more than the one of its graph.

    Raises:
        AssertionError: it does not fit, copies what should be donated, calls back to the host, or sums more than it must.
    """
    count = DEVICES.get(case.model, 1)
    share = share_of(MODELS[case.model], count)
    backends, attention = backends_of(target.card.capability), attention_shape(share, PAGE_TOKENS)
    backend = choose_backend("auto", backends, attention, case.kv_dtype).backend
    pages = num_pages(share, case.kv_dtype, target.card.memory_bytes)
    limits = Limits(MAX_SEQUENCES, share.max_position, 16, pages, PAGE_TOKENS)
    shape = step_shape(case.bucket, limits)
    devices = Devices(target.mesh if count > 1 else None)
    params = whole_params(devices, param_avals(share))
    part = jax.eval_shape(lambda: allocate(share, limits, backend, case.kv_dtype))
    state = whole_state(devices, share, limits, backend, case.kv_dtype)
    buffer = jax.ShapeDtypeStruct((buffer_size(shape),), jnp.int32)
    function = partial(run_step, share, limits, backend, shape)
    step = devices.jit(function, (params, state, buffer), (state, buffer), donate_argnums=(1,))
    options = compiler_options(case.bucket, "gpu", enforce_eager=False)
    compiled = target.compile_jitted(step, params, state, buffer, options=options)
    device_bytes = compiled.argument_bytes + compiled.temp_bytes + compiled.output_bytes - compiled.alias_bytes
    all_reduces, all_gathers = compiled.count_of("all-reduce"), compiled.count_of("all-gather")
    assert compiled.alias_bytes >= array_bytes(part.caches), "the cache is not donated"
    assert device_bytes < target.card.memory_bytes, f"{case.name} takes {device_bytes} bytes"
    assert "callback" not in compiled.text, f"{case.name} calls back to the host"
    assert compiled.widest_sort < share.vocab_size // 2, f"{case.name} sorts {compiled.widest_sort} columns"
    wanted = (2 * share.num_layers + 1, 1) if count > 1 else (0, 0)
    assert (all_reduces, all_gathers) == wanted, f"{case.name} sums {all_reduces} times and gathers {all_gathers}: wanted are {wanted}"
    return {
        "name": case.name,
        "target": case.target,
        "devices": count,
        "backend": backend.name,
        "registers": max(k.registers for k in compiled.kernels),
        "spill_bytes": max(k.spill_bytes for k in compiled.kernels),
        "smem_bytes": max(k.smem_bytes for k in compiled.kernels),
        "seconds": round(compiled.seconds, 2),
        "serialised_wgmma": compiled.serialised_wgmma,
        "cache_copies": compiled.copies_of(part.caches[0].k),
        "widest_sort": compiled.widest_sort,
        "command_buffers": compiled.command_buffers,
        "launches": compiled.launches,
        "eager_launches": 0 if case.bucket.prefill_tokens else compiled.launches - 1,
        "pages": pages,
        "temp_bytes": compiled.temp_bytes,
        "device_bytes": device_bytes,
        "all_reduces": all_reduces,
        "all_gathers": all_gathers,
    }
