"""Products of activations with weights stored [out, in]."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def product(x: jax.Array, weight: Any, *, out_dtype: DTypeLike | None = None) -> jax.Array:
    """x [T, in] times a weight [out, in] -> [T, out], accumulated in f32; `out_dtype` defaults to x's type."""
    accumulated = jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return accumulated.astype(x.dtype if out_dtype is None else out_dtype)
