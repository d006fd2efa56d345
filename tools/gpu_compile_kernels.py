"""The kernels that are compiled for cards that are not there: which shapes, and what is written down of each."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from engine.kernels.attention import MAX_QUERY_TOKENS, AttentionShape, PrefillLayout
from engine.kernels.kv_write import kv_write
from engine.kernels.mosaic_decode import mosaic_decode, mosaic_decode_tiling, mosaic_max_query_tokens
from engine.kernels.mosaic_prefill import mosaic_prefill, mosaic_prefill_ring
from engine.kernels.paged_cache import PagedCache
from engine.kernels.paged_decode import paged_decode
from engine.kernels.paged_prefill import paged_prefill
from engine.kernels.pallas_mosaic import PallasMosaicBackend
from engine.kernels.pallas_triton import PallasTritonBackend
from engine.kernels.tiling import decode_tiling, max_query_tokens, prefill_tiling
from tools.gpu_compile_target import CARDS, Compiled, KernelStats, Target

NUM_PAGES, BATCH, TABLE_PAGES, CHUNK_ROWS, CHUNKS = 1_024, 16, 512, 512, 8
REGISTERS_PER_CORE, MAX_THREADS_PER_CORE = 65_536, 2_048

HEADS = {
    "mha-128": (16, 16, 128),
    "llama-3-8b": (32, 8, 128),  # and Mistral-7B
    "llama-3-70b": (64, 8, 128),
    "group-16": (16, 1, 128),
    "llama-3.2-1b": (32, 8, 64),
    "head-80": (32, 32, 80),
    "phi-3-mini": (32, 32, 96),
    "qwen2.5-7b": (28, 4, 128),  # a group of 7
    "gemma-2": (16, 8, 256),  # with its soft cap
    "group-16-256": (16, 1, 256),
}
"""Query heads, KV heads, head dim: the ends of what the backend takes, and the models in between."""

MAIN_HEADS = ("llama-3-8b", "gemma-2")
"""Compiled for every card; the others for Hopper and Ampere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel of one shape for one card."""

    kernel: str
    heads: str
    kv_dtype: str
    target: str
    backend: str = "triton"
    page_tokens: int = 16

    @property
    def name(self) -> str:
        return f"{self.backend}/{self.kernel}/{self.heads}/{self.kv_dtype}/page{self.page_tokens}"

    @property
    def key(self) -> dict[str, Any]:
        """What a kernel's registers depend on, whatever model it is for."""
        num_heads, num_kv_heads, head_dim = HEADS[self.heads]
        major, minor = CARDS[self.target].capability
        sizes = {"head_dim": head_dim, "group": num_heads // num_kv_heads, "page_tokens": self.page_tokens}
        return {"arch": f"sm_{major}{minor}", "kv_dtype": self.kv_dtype, **sizes}


def triton_cases(target: str) -> Iterator[KernelCase]:
    """Kernels: `decode` has one query token, `verify` eight (speculation), or as many as fit a tile."""
    for heads in HEADS:
        main = heads in MAIN_HEADS
        if target == "b200" and not main:
            continue
        for kv_dtype in ("bfloat16", "int8") if target == "a100" else ("bfloat16", "int8", "float8_e4m3fn"):
            for kernel in ("decode", "verify", "prefill", "write") if main or heads == "head-80" else ("decode", "verify", "prefill"):
                yield KernelCase(kernel=kernel, heads=heads, kv_dtype=kv_dtype, target=target)


def mosaic_cases(target: str) -> Iterator[KernelCase]:
    """On Hopper, with pages of 16 and of 64."""
    if target != "h200":
        return
    for heads in ("mha-128", "llama-3-8b", "llama-3-70b", "group-16", "llama-3.2-1b", "gemma-2"):
        for page_tokens, kv_dtype, kernel in itertools.product((16, 64), ("bfloat16", "int8"), ("decode", "verify", "prefill")):
            case = KernelCase(kernel=kernel, heads=heads, kv_dtype=kv_dtype, target=target, backend="mosaic", page_tokens=page_tokens)
            if PallasMosaicBackend(CARDS[target].capability).supports(attention_shape(heads, page_tokens), kv_dtype):
                yield case


def attention_shape(heads: str, page_tokens: int) -> AttentionShape:
    num_heads, num_kv_heads, head_dim = HEADS[heads]
    soft_cap = 50.0 if heads == "gemma-2" else None
    return AttentionShape(num_heads, num_kv_heads, head_dim, page_tokens, head_dim**-0.5, soft_cap=soft_cap)


def compile_case(case: KernelCase, target: Target) -> dict[str, Any]:
    """What `var/gpu-compile.json` holds of a kernel."""
    shape = attention_shape(case.heads, case.page_tokens)
    backend = (PallasMosaicBackend if case.backend == "mosaic" else PallasTritonBackend)(target.card.capability)
    assert backend.supports(shape, case.kv_dtype), f"{case.name} is not for {case.target}"
    cache = jax.eval_shape(lambda: backend.allocate(shape, NUM_PAGES, case.kv_dtype))
    function, arguments = _program(case, shape, cache)
    compiled = target.compile(function, cache, *arguments, donate_argnums=(0,) if case.kernel == "write" else ())
    kernel = main_kernel(compiled)
    return asdict(kernel) | {
        "name": case.name,
        "target": case.target,
        **case.key,
        "programs_per_core": programs_per_core(kernel, target),
        "serialised_wgmma": compiled.serialised_wgmma,
        "cache_copies": compiled.copies_of(cache.k),
        "seconds": round(compiled.seconds, 2),
    }


def _program(case: KernelCase, shape: AttentionShape, cache: PagedCache) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and what it takes behind the cache."""
    kernel, kv_bytes, is_mosaic = case.kernel, cache.k.dtype.itemsize, case.backend == "mosaic"
    if kernel in ("decode", "verify"):
        queries = 1 if kernel == "decode" else min(MAX_QUERY_TOKENS, (mosaic_max_query_tokens if is_mosaic else max_query_tokens)(shape))
        q = _array(jnp.bfloat16, BATCH, queries, shape.num_heads, shape.head_dim)
        if is_mosaic:
            function = partial(mosaic_decode, shape, tiling=mosaic_decode_tiling(shape, TABLE_PAGES, kv_bytes, queries))
        else:
            function = partial(paged_decode, shape, tiling=decode_tiling(shape, TABLE_PAGES, kv_bytes, queries))
        return function, (q, _array(jnp.int32, BATCH, TABLE_PAGES), _array(jnp.int32, BATCH))
    if kernel == "prefill":
        per_chunk = _array(jnp.int32, CHUNKS)
        layout = PrefillLayout(_array(jnp.int32, CHUNKS, TABLE_PAGES), _array(jnp.int32, CHUNK_ROWS // 16), per_chunk, per_chunk, per_chunk)
        q = _array(jnp.bfloat16, CHUNK_ROWS, shape.num_heads, shape.head_dim)
        if is_mosaic:
            return partial(mosaic_prefill, shape, ring=mosaic_prefill_ring(shape, kv_bytes)), (q, layout)
        return partial(paged_prefill, shape, tiling=prefill_tiling(shape, kv_bytes, CARDS[case.target].capability)), (q, layout)
    rows = _array(jnp.bfloat16, CHUNK_ROWS, shape.num_kv_heads, shape.head_dim)
    return kv_write, (rows, rows, _array(jnp.int32, CHUNK_ROWS))


def _array(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def main_kernel(compiled: Compiled) -> KernelStats:
    """Ours, not the little ones that XLA makes around it, nor the merge."""
    ours = [k for k in compiled.kernels if k.name.startswith(("paged_", "kv_write", "mosaic")) and "merge" not in k.name]
    assert len(ours) == 1, [k.name for k in compiled.kernels]
    return ours[0]


def programs_per_core(kernel: KernelStats, target: Target) -> int:
    """How many programs of a kernel one core holds, by registers, shared memory and threads."""
    registers = max(1, -(-kernel.registers // 8) * 8) * kernel.threads
    by_memory = target.card.shared_core_bytes // (kernel.smem_bytes + 1_024)
    return min(REGISTERS_PER_CORE // registers, MAX_THREADS_PER_CORE // kernel.threads, by_memory)
