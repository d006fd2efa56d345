"""Products of activations with weights stored [out, in].

A weight is a dense array, or any pytree with a `product` method (`OwnProduct`): the form of the weight *is* the choice of
backend, made once when weights are loaded, so a jitted step never asks. `Int8Weight` lives here; `engine.kernels.cpu`
brings forms that call C++.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

MIN_ROWS = 2
"""XLA's CPU backend turns a one-row product into a matrix-vector loop that is ten times slower than two rows."""

_CONTRACT_LAST = (((1,), (1,)), ((), ()))


@runtime_checkable
class OwnProduct(Protocol):
    """A weight that knows how to multiply itself."""

    def product(self, x: jax.Array, live: jax.Array | None) -> jax.Array:
        """x [T, in] -> f32 [T, out]; T >= 2. Rows that are not `live` (bool [T]; None: all are) need not be computed: anything that is
        a number may stand there."""
        ...


@runtime_checkable
class OwnRows(Protocol):
    """A weight that serves as the embedding too."""

    def rows(self, indices: jax.Array) -> jax.Array:
        """Rows i32 [T] -> [T, in]."""
        ...


class Int8Weight(NamedTuple):
    """Weight rounded to 8 bits, one scale an output channel; activations are rounded per row when multiplied."""

    values: Any  # i8 [out, in]
    scale: Any  # f32 [out]

    def product(self, x: jax.Array, live: jax.Array | None) -> jax.Array:
        """All rows: XLA's shapes are static."""
        del live
        wide = x.astype(jnp.float32)
        row_scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=1, keepdims=True), 1e-12) / 127.0
        rounded = jnp.round(wide / row_scale).astype(jnp.int8)
        whole = jax.lax.dot_general(rounded, self.values, _CONTRACT_LAST, preferred_element_type=jnp.int32)
        return whole.astype(jnp.float32) * row_scale * self.scale[None, :]


def quantize_int8(weight: jax.Array) -> Int8Weight:
    """Round a dense [out, in] weight to the nearest of 255 symmetric steps of each output channel."""
    wide = weight.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axis=1), 1e-12) / 127.0
    return Int8Weight(jnp.round(wide / scale[:, None]).astype(jnp.int8), scale)


def product(x: jax.Array, weight: Any, *, out_dtype: DTypeLike | None = None, live: jax.Array | None = None) -> jax.Array:
    """x [T, in] times a weight [out, in] -> [T, out], accumulated in f32; `out_dtype` defaults to x's type. Nobody reads the rows that
    are not `live` (bool [T])."""
    num_rows = x.shape[0]
    if num_rows < MIN_ROWS:
        missing = MIN_ROWS - num_rows
        x = jnp.pad(x, ((0, missing), (0, 0)))
        live = None if live is None else jnp.pad(live, (0, missing))
    if isinstance(weight, OwnProduct):
        accumulated = weight.product(x, live)
    else:
        accumulated = jax.lax.dot_general(x, weight, _CONTRACT_LAST, preferred_element_type=jnp.float32)
    return accumulated[:num_rows].astype(x.dtype if out_dtype is None else out_dtype)
