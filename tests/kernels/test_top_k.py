"""The largest of a row by blocks: values, order and ties of `lax.top_k`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from engine.kernels.top_k import block_width, largest_by_blocks

by_blocks = jax.jit(largest_by_blocks, static_argnums=1)


@pytest.mark.parametrize(("width", "count"), [(128_256, 20), (128_256, 64), (151_936, 1_024), (32_000, 1_024), (511, 20), (300, 256)])
def test_both_sorts_are_narrow_and_their_answer_is_that_of_one_over_all(width: int, count: int) -> None:
    x = jnp.asarray(np.random.default_rng(width).standard_normal((3, width)), jnp.float32)
    for got, wanted in zip(by_blocks(x, count), lax.top_k(x, count), strict=True):
        np.testing.assert_array_equal(got, wanted)
    block = block_width(width, count)
    assert count <= -(-width // block), "there are as many blocks as elements wanted"
    assert max(-(-width // block), count * block) <= 1.5 * (width * count) ** 0.5 + count


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([-np.inf, -3.0e38, -1.0, 0.0, 0.5, 2.0, np.inf]), min_size=90, max_size=90),
    st.sampled_from([1, 2, 7, 16]),
)
def test_of_equal_ones_the_lower_index_comes_first_also_where_a_block_is_full_of_them(row: list[float], count: int) -> None:
    x = jnp.asarray(row, jnp.float32)[None]
    for got, wanted in zip(by_blocks(x, count), lax.top_k(x, count), strict=True):
        np.testing.assert_array_equal(got, wanted)
