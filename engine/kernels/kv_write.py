"""Stores a step's K and V into their pages (Triton), in place, quantising on the way.

Separate from attention: a chunk's programs read each other's tokens, so a fused write would race.
Twin: `engine.kernels.reference.write`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from engine.kernels.paged_cache import QUANTISED_MAX, PagedCache
from engine.kernels.tiling import next_power_of_two


@functools.partial(jax.jit, static_argnames="interpret")
def kv_write(cache: PagedCache, k: jax.Array, v: jax.Array, slots: jax.Array, *, interpret: bool = False) -> PagedCache:
    """Stores k, v [T, K, D] at `slots` i32 [T] (page * S + offset; -1 is skipped), each slot named at most once.

    The cache is aliased to the result: no copy where the outermost jit donates it.
    An 8-bit cache keeps a scale for every token and head: its largest magnitude over the type's largest.
    """
    inputs, structure = jax.tree.flatten(cache)
    outputs = pl.pallas_call(
        functools.partial(_write_kernel, num_arrays=len(inputs)),
        grid=(k.shape[0],),
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs],
        input_output_aliases={index: index for index in range(len(inputs))},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="kv_write",
    )(*inputs, k, v, slots)
    return jax.tree.unflatten(structure, outputs)


def _write_kernel(*refs: Any, num_arrays: int) -> None:
    k_ref, v_ref, slots_ref = refs[num_arrays : num_arrays + 3]  # [T, K, D], [T, K, D], i32 [T]
    cache: Any = PagedCache(*refs[num_arrays + 3 :])
    token = pl.program_id(0)
    slot = slots_ref[token]

    @pl.when(slot >= 0)
    def _() -> None:
        _, page_size, num_kv_heads, head_dim = cache.k.shape
        heads, dims = jnp.arange(next_power_of_two(num_kv_heads)), jnp.arange(next_power_of_two(head_dim))
        page, offset = slot // page_size, slot % page_size
        lanes = (heads < num_kv_heads)[:, None] & (dims < head_dim)[None, :]
        for source, pages, scales in ((k_ref, cache.k, cache.k_scale), (v_ref, cache.v, cache.v_scale)):
            x = plgpu.load(source.at[token, heads[:, None], dims[None, :]], mask=lanes, other=jnp.zeros((), source.dtype))
            if scales is not None:
                x, scale = quantise(x, pages.dtype)
                plgpu.store(scales.at[page, heads, offset], scale, mask=heads < num_kv_heads)
            plgpu.store(pages.at[page, offset, heads[:, None], dims[None, :]], x.astype(pages.dtype), mask=lanes)


def quantise(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """x [..., D] to 8 bits with one scale a vector: (x / scale, f32 scale [...]). A zero vector has scale 0."""
    largest = QUANTISED_MAX[jnp.dtype(dtype).name]
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / largest
    # the reciprocal of the scale could push the largest element past the type's end
    scaled = jnp.clip(wide / jnp.where(scale == 0.0, 1.0, scale)[..., None], -largest, largest)
    # Triton has no rounding to nearest; the cast alone would cut towards zero
    return (jnp.floor(scaled + 0.5) if dtype == jnp.int8 else scaled).astype(dtype), scale
