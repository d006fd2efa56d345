"""The largest values of wide rows. XLA's GPU backend makes a sort of the whole row of `lax.top_k` (128,256 columns, for 20 of them)."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32


def largest_of(x: Float32[Array, "N V"], count: int) -> tuple[Float32[Array, "N k"], Int32[Array, "N k"]]:
    """Values and indices of the `count` largest of each row as `lax.top_k` gives them, whose own way on a CPU is no full sort."""
    values, indices = lax.platform_dependent(x, cpu=lambda x: tuple(lax.top_k(x, count)), default=lambda x: largest_by_blocks(x, count))
    return values, indices


def largest_by_blocks(x: Float32[Array, "N V"], count: int) -> tuple[Float32[Array, "N k"], Int32[Array, "N k"]]:
    """`lax.top_k`, ties (the lower index first) included, by two sorts of about sqrt(V * count) columns.

    The `count` largest lie in the `count` blocks with the largest maxima: any element of another block has at least `count` before it.
    """
    num_rows, width = x.shape
    block = block_width(width, count)
    if block == 1:
        values, indices = lax.top_k(x, count)
        return values, indices
    blocks = jnp.pad(x, ((0, 0), (0, -width % block)), constant_values=-jnp.inf).reshape(num_rows, -1, block)
    chosen = jnp.sort(lax.top_k(blocks.max(axis=-1), count)[1], axis=-1)  # in the row's order again, for the ties
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(num_rows, count * block)
    values, places = lax.top_k(candidates, count)
    return values, jnp.take_along_axis(chosen, places // block, axis=1) * block + places % block


def block_width(width: int, count: int) -> int:
    """The power of two that makes both sorts about equally wide; 1 where blocks would gain nothing."""
    return 1 << max(0, math.floor(math.log2(math.sqrt(width / count))))
