"""Facts about compiled steps: what is donated and what is never copied."""

from functools import partial

import jax
import numpy as np
import pytest

from engine.execution.batch import buffer_size, step_shape
from engine.execution.kv_pool import allocate
from engine.execution.step import run_step
from engine.kernels.xla_attention import XlaAttention
from engine.scheduling.plan import Bucket
from tests.execution.driver import CONFIG, LIMITS, tiny_params


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_step_works_in_place_on_the_whole_state(dtype: str) -> None:
    state = jax.eval_shape(lambda: allocate(CONFIG, LIMITS, XlaAttention(), dtype))
    shape = step_shape(Bucket(2, 16), LIMITS)
    step = jax.jit(partial(run_step, CONFIG, LIMITS, XlaAttention(), shape), donate_argnums=1)
    params = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, dtype), tiny_params())
    compiled = step.lower(params, state, jax.ShapeDtypeStruct((buffer_size(shape),), np.int32)).compile()
    state_bytes = sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(state))
    one_cache_bytes = state.caches[0].k.size * state.caches[0].k.dtype.itemsize
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes == state_bytes, "every array of the state is updated where it lies"
    assert memory.temp_size_in_bytes < one_cache_bytes, "no room to copy, or widen, even one layer's pages"
