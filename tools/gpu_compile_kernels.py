"""The kernels that are compiled for cards that are not there: which shapes, and what is written down of each."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
from tools.gpu_compile_target import Compiled, KernelStats, Target

from engine.kernels.attention import AttentionShape, PrefillLayout
from engine.kernels.kv_write import kv_write
from engine.kernels.paged_decode import paged_decode
from engine.kernels.paged_prefill import paged_prefill
from engine.kernels.pallas_triton import PallasTritonBackend
from engine.kernels.tiling import decode_tiling, prefill_tiling

PAGE_TOKENS = 16
NUM_PAGES, BATCH, TABLE_PAGES, CHUNK_ROWS, CHUNKS = 1_024, 16, 512, 512, 8
REGISTERS_PER_CORE, MAX_THREADS_PER_CORE = 65_536, 2_048

HEADS = {
    "mha": (16, 16, 128),  # Llama-2-7B's group
    "qwen3-0.6b": (16, 8, 128),
    "llama-3-8b": (32, 8, 128),  # and Mistral-7B
    "llama-3-70b": (64, 8, 128),
    "group-16": (16, 1, 128),
    "llama-3.2-1b": (32, 8, 64),
    "head-80": (32, 32, 80),
    "head-96": (32, 32, 96),
    "gemma-2": (16, 8, 256),
    "group-16-256": (16, 1, 256),
}
"""Query heads, KV heads, head dim: every group and head dim that the backend says it takes, at an end or in the middle."""

KV_DTYPES = ("bfloat16", "int8", "float8_e4m3fn")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel of one shape for one card."""

    kernel: str
    heads: str
    kv_dtype: str
    target: str

    @property
    def name(self) -> str:
        return f"triton/{self.kernel}/{self.heads}/{self.kv_dtype}"


def triton_cases(targets: tuple[str, ...]) -> Iterator[KernelCase]:
    for target in targets:
        for heads in HEADS:
            for kv_dtype in KV_DTYPES:
                for kernel in ("decode", "verify", "prefill", "write"):
                    if kernel != "write" or heads in ("llama-3-8b", "head-80"):
                        yield KernelCase(kernel=kernel, heads=heads, kv_dtype=kv_dtype, target=target)


def attention_shape(heads: str) -> AttentionShape:
    num_heads, num_kv_heads, head_dim = HEADS[heads]
    soft_cap = 50.0 if heads == "gemma-2" else None
    return AttentionShape(num_heads, num_kv_heads, head_dim, PAGE_TOKENS, head_dim**-0.5, soft_cap=soft_cap)


def compile_case(case: KernelCase, target: Target) -> Compiled | None:
    """None where the card cannot do it (fp8 before 8.9)."""
    shape = attention_shape(case.heads)
    backend = PallasTritonBackend(target.card.capability)
    if not backend.supports(shape, case.kv_dtype):
        return None
    cache = jax.eval_shape(lambda: backend.allocate(shape, NUM_PAGES, case.kv_dtype))

    def array(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype)

    if case.kernel in ("decode", "verify"):
        queries = 1 if case.kernel == "decode" else 8
        tiling = decode_tiling(shape, TABLE_PAGES, cache.k.dtype.itemsize, queries)
        q, tables = array(jnp.bfloat16, BATCH, queries, shape.num_heads, shape.head_dim), array(jnp.int32, BATCH, TABLE_PAGES)
        return target.compile(lambda *args: paged_decode(shape, *args, tiling=tiling), cache, q, tables, array(jnp.int32, BATCH))
    if case.kernel == "prefill":
        layout = PrefillLayout(
            array(jnp.int32, CHUNKS, TABLE_PAGES), array(jnp.int32, CHUNK_ROWS // 16), *(array(jnp.int32, CHUNKS) for _ in range(3))
        )
        q = array(jnp.bfloat16, CHUNK_ROWS, shape.num_heads, shape.head_dim)
        tiling = prefill_tiling(shape, cache.k.dtype.itemsize)
        return target.compile(lambda *args: paged_prefill(shape, *args, tiling=tiling), cache, q, layout)
    rows = array(jnp.bfloat16, CHUNK_ROWS, shape.num_kv_heads, shape.head_dim)
    return target.compile(kv_write, cache, rows, rows, array(jnp.int32, CHUNK_ROWS), donate_argnums=(0,))


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


def record(case: KernelCase, compiled: Compiled, target: Target) -> dict[str, Any]:
    """What `var/gpu-compile.json` and the committed table hold of a kernel."""
    kernel = main_kernel(compiled)
    stats = asdict(kernel) | {"programs_per_core": programs_per_core(kernel, target)}
    stats.pop("name")
    return {"name": case.name, "target": case.target, **stats, "seconds": round(compiled.seconds, 2)}
