"""What the Mosaic GPU decode and prefill kernels share: stages of K and V in shared memory, their producer, products.

wgmma reads bf16 from shared memory. 8-bit pages arrive in a ring of their own; the producer warpgroup widens them into the
stages (whole numbers up to 127 are exact in bf16) and the readers apply the scales, to scores and to weights.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from engine.kernels.paged_cache import PagedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """`stages` of K and of V that wgmma reads, and of 8-bit pages `narrow_stages` more on their way there."""

    block_tokens: int
    stages: int
    narrow_stages: int = 0


class NarrowStages(NamedTuple):
    """8-bit blocks as they lie in the pages. Scales stay until their block is consumed, so there are more of them."""

    k: Any  # [narrow stages, t, D]
    v: Any  # [narrow stages, t, D]
    k_scale: Any  # f32 [stages + narrow stages, t]
    v_scale: Any  # f32 [stages + narrow stages, t]
    k_loaded: Any
    v_loaded: Any


class KvStages(NamedTuple):
    """A ring of blocks. Per stage: its pages' copies arrive at `loaded`, every reading warpgroup at `consumed`."""

    k: Any  # [stages, t, D]
    v: Any  # [stages, t, D]
    k_loaded: Any
    v_loaded: Any
    k_consumed: Any
    v_consumed: Any
    narrow: NarrowStages | None


def swizzled(*dims: int, dtype: Any = jnp.bfloat16) -> Any:
    """Shared memory in the layout that wgmma reads, of whole swizzle periods: 64 of bf16, 64 or 128 of 8 bits in the last dim."""
    item_bytes = jnp.dtype(dtype).itemsize
    period_bytes = min(128, dims[-1] * item_bytes)
    transforms = (
        plgpu.TilingTransform((8, period_bytes // item_bytes)),  # pyright: ignore[reportAbstractUsage]
        plgpu.SwizzleTransform(period_bytes),  # pyright: ignore[reportAbstractUsage]
    )
    return plgpu.SMEM(dims, dtype, transforms=transforms)


def kv_stages(ring: Ring, cache: PagedCache, *, readers: int) -> KvStages:
    """Scratch types of a ring that `readers` warpgroups read."""
    _, page_size, _, head_dim = cache.k.shape
    block, pages = ring.block_tokens, ring.block_tokens // page_size
    consumed = plgpu.Barrier(num_arrivals=readers, num_barriers=ring.stages)
    wide = swizzled(ring.stages, block, head_dim)
    if cache.k_scale is None:
        loaded = plgpu.Barrier(num_arrivals=pages, num_barriers=ring.stages)
        return KvStages(wide, wide, loaded, loaded, consumed, consumed, None)
    arrived = plgpu.Barrier(num_arrivals=pages, num_barriers=ring.narrow_stages)
    raw = swizzled(ring.narrow_stages, block, head_dim, dtype=cache.k.dtype)
    scales = plgpu.SMEM((ring.stages + ring.narrow_stages, block), jnp.float32)
    narrow = NarrowStages(raw, raw, scales, scales, arrived, arrived)
    widened = plgpu.Barrier(num_barriers=ring.stages)
    return KvStages(wide, wide, widened, widened, consumed, consumed, narrow)


def _slot(index: jax.Array, slots: int) -> jax.Array:
    return jax.lax.rem(index, jnp.int32(slots))


class Source(NamedTuple):
    """Which blocks of which head a producer fetches. `page_of` a token must be a page that exists for any token of the
    blocks: TMA fills zeros from one that does not."""

    cache: Any  # PagedCache of refs
    kv_head: Any
    start: Any  # first token
    num_blocks: Any
    page_of: Callable[[Any], Any]

    def pages(self, index: jax.Array, block: int) -> list[jax.Array]:
        page_size = self.cache.k.shape[1]
        return [self.page_of(self.start + index * block + offset) for offset in range(0, block, page_size)]


def produce(source: Source, ring: KvStages) -> None:
    """Pages of each block into the next stage, K and V apart, so that scores can start while V is on its way."""
    stages = ring.k.shape[0]
    if ring.narrow is None:
        _fetch(source, ring)
    else:
        _fetch_and_widen(source, ring, ring.narrow)

    # every arrival is waited for: the interpreter's check of barriers asks for it, a card would not
    @pl.loop(jnp.maximum(source.num_blocks - stages, 0), source.num_blocks)
    def _(index: jax.Array) -> None:
        plgpu.barrier_wait(ring.k_consumed.at[_slot(index, stages)])
        plgpu.barrier_wait(ring.v_consumed.at[_slot(index, stages)])


def _copy_pages(pages: list[jax.Array], source: Any, kv_head: Any, target: Any, loaded: Any) -> None:
    """source [P, S, K, D] -> target [t, D]."""
    page_size = source.shape[1]
    for number, page in enumerate(pages):
        plgpu.copy_gmem_to_smem(source.at[page, :, kv_head], target.at[pl.ds(number * page_size, page_size)], loaded)


def _fetch(source: Source, ring: KvStages) -> None:
    stages, block, _ = ring.k.shape
    streams = (
        (source.cache.k, ring.k, ring.k_loaded, ring.k_consumed),
        (source.cache.v, ring.v, ring.v_loaded, ring.v_consumed),
    )

    @pl.loop(0, source.num_blocks)
    def _(index: jax.Array) -> None:
        slot, pages = _slot(index, stages), source.pages(index, block)
        for pool, target, loaded, consumed in streams:
            pl.when(index >= stages)(functools.partial(plgpu.barrier_wait, consumed.at[slot]))
            _copy_pages(pages, pool, source.kv_head, target.at[slot], loaded.at[slot])


def _fetch_and_widen(source: Source, ring: KvStages, narrow: NarrowStages) -> None:
    """The narrow ring runs ahead: a block's copies start as soon as the one before it in its place has been widened. Scales
    take the way through registers: TMA copies 128 bytes at least, and a page's may be fewer."""
    stages, block, _ = ring.k.shape
    ahead = narrow.k.shape[0]
    streams = (
        (source.cache.k, narrow.k, narrow.k_loaded, ring.k, ring.k_loaded, ring.k_consumed),
        (source.cache.v, narrow.v, narrow.v_loaded, ring.v, ring.v_loaded, ring.v_consumed),
    )

    @pl.loop(0, jnp.minimum(source.num_blocks, ahead))
    def _(index: jax.Array) -> None:
        pages, place = source.pages(index, block), _slot(index, ahead)
        for pool, raw, arrived, *_rest in streams:
            _copy_pages(pages, pool, source.kv_head, raw.at[place], arrived.at[place])
        _store_scales(narrow, index, _load_scales(source, pages))

    @pl.loop(0, source.num_blocks)
    def _(index: jax.Array) -> None:
        slot, place = _slot(index, stages), _slot(index, ahead)
        pages = source.pages(index + ahead, block)
        scales = _load_scales(source, pages)  # first and stored last, so that the waits hide the way
        for pool, raw, arrived, wide, loaded, consumed in streams:
            plgpu.barrier_wait(arrived.at[place])
            pl.when(index >= stages)(functools.partial(plgpu.barrier_wait, consumed.at[slot]))
            values = plgpu.load(raw.at[place], layout=plgpu.Layout.WGMMA_8BIT)
            wide.at[slot][...] = values.astype(wide.dtype)
            plgpu.commit_smem()  # of what wgmma will read, and before the next copy lands on what was read
            plgpu.barrier_arrive(loaded.at[slot])

            @pl.when(index + ahead < source.num_blocks)
            def _(pool: Any = pool, raw: Any = raw, arrived: Any = arrived) -> None:
                _copy_pages(pages, pool, source.kv_head, raw.at[place], arrived.at[place])

        _store_scales(narrow, index + ahead, scales)  # the block whose scales lay there is consumed


def _load_scales(source: Source, pages: list[jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Of K and of V, f32 [S] for each page."""
    layout = plgpu.Layout.WGMMA.reduce(0)
    refs = source.cache.k_scale, source.cache.v_scale
    k_scales, v_scales = ([plgpu.load(ref.at[page, source.kv_head], layout=layout, optimized=False) for page in pages] for ref in refs)
    return list(zip(k_scales, v_scales, strict=True))


def _store_scales(narrow: NarrowStages, index: jax.Array, scales: list[tuple[jax.Array, jax.Array]]) -> None:
    slot = _slot(index, narrow.k_scale.shape[0])
    for number, (k_scale, v_scale) in enumerate(scales):
        tokens = pl.ds(number * k_scale.size, k_scale.size)
        narrow.k_scale[slot, tokens] = k_scale
        narrow.v_scale[slot, tokens] = v_scale


def block_scales(ring: KvStages, index: jax.Array, reduced_axis: int) -> tuple[jax.Array, jax.Array] | None:
    """Scales of K and V of a loaded block, f32 [t] each, to broadcast along `reduced_axis` of a score tile. None: it has none."""
    if ring.narrow is None:
        return None
    slot, layout = _slot(index, ring.narrow.k_scale.shape[0]), plgpu.Layout.WGMMA.reduce(reduced_axis)
    refs = ring.narrow.k_scale, ring.narrow.v_scale
    k_scale, v_scale = (plgpu.load(ref.at[slot], layout=layout, optimized=False) for ref in refs)
    return k_scale, v_scale


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
