"""What the Mosaic GPU decode and prefill kernels share: stages of K and V in shared memory, their producer, products."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


class KvStages(NamedTuple):
    """A ring of blocks. Per stage: its pages' copies arrive at `loaded`, every reading warpgroup at `consumed`."""

    k: Any  # [stages, t, D]
    v: Any  # [stages, t, D]
    k_loaded: Any
    v_loaded: Any
    k_consumed: Any
    v_consumed: Any


def swizzled(*dims: int) -> Any:
    """bf16 shared memory in the layout that wgmma reads; the last dim a multiple of 64."""
    transforms = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)  # pyright: ignore[reportAbstractUsage]
    return plgpu.SMEM(dims, jnp.bfloat16, transforms=transforms)


def kv_stages(stages: int, block_tokens: int, head_dim: int, page_size: int, *, readers: int) -> KvStages:
    """Scratch types of a ring that `readers` warpgroups read."""
    loaded = plgpu.Barrier(num_arrivals=block_tokens // page_size, num_barriers=stages)
    consumed = plgpu.Barrier(num_arrivals=readers, num_barriers=stages)
    return KvStages(*[swizzled(stages, block_tokens, head_dim)] * 2, *[loaded] * 2, *[consumed] * 2)


def produce(k_ref: Any, v_ref: Any, ring: KvStages, kv_head: Any, start: Any, num_blocks: Any, page_of: Callable[[Any], Any]) -> None:
    """Pages of each block into the next stage, K and V apart, so that scores can start while V is on its way.

    `page_of` a token must be a page that exists for any token of the blocks: TMA fills zeros from one that does not.
    """
    page_size = k_ref.shape[1]
    stages, block, _ = ring.k.shape
    streams = ((k_ref, ring.k, ring.k_loaded, ring.k_consumed), (v_ref, ring.v, ring.v_loaded, ring.v_consumed))

    @pl.loop(0, num_blocks)
    def _(index: jax.Array) -> None:
        slot = jax.lax.rem(index, jnp.int32(stages))
        pages = [page_of(start + index * block + offset) for offset in range(0, block, page_size)]
        for source, target, loaded, consumed in streams:
            pl.when(index >= stages)(functools.partial(plgpu.barrier_wait, consumed.at[slot]))
            for number, page in enumerate(pages):
                place = target.at[slot, pl.ds(number * page_size, page_size)]
                plgpu.copy_gmem_to_smem(source.at[page, :, kv_head], place, loaded.at[slot])

    # every arrival is waited for: the interpreter's check of barriers asks for it, a card would not
    @pl.loop(jnp.maximum(num_blocks - stages, 0), num_blocks)
    def _(index: jax.Array) -> None:
        slot = jax.lax.rem(index, jnp.int32(stages))
        plgpu.barrier_wait(ring.k_consumed.at[slot])
        plgpu.barrier_wait(ring.v_consumed.at[slot])


def product(a: Any, b: Any, dims: tuple[int, ...], plain_dot: bool) -> jax.Array:
    """a @ b from shared memory, f32 of shape `dims`."""
    if plain_dot:
        answer = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)
        plgpu.commit_smem()
        return answer

    def multiply(acc_ref: Any) -> jax.Array:
        plgpu.wgmma(acc_ref, a, b)
        return acc_ref[...]

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef(dims, jnp.float32))
