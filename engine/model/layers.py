"""The parts of a decoder block, as pure functions. Numerics follow Hugging Face transformers.

Shape letters: T step tokens, H heads, D head dim. Norms and rotations are computed in f32 and cast back to the
activations' type.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from engine.kernels.products import product
from engine.model.config import RopeConfig
from engine.model.params import Weight


def rms_norm(x: Float[Array, "*rows d"], weight: Float[Array, " d"], eps: float) -> Float[Array, "*rows d"]:
    """Root mean square norm over the last axis (Zhang & Sennrich, 2019)."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (normed * weight.astype(jnp.float32)).astype(x.dtype)


def rope_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """Angle per position of each pair of dimensions, f32 [D / 2], scaling included."""
    frequency = (1.0 / rope.theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))).astype(np.float32)
    if rope.scaling == "linear":
        return frequency / np.float32(rope.factor)
    if rope.scaling == "divisors":
        return frequency / np.array(rope.divisors, np.float32)
    if rope.scaling == "llama3":
        return _llama3_frequencies(rope, frequency)
    return frequency


def _llama3_frequencies(rope: RopeConfig, frequency: np.ndarray) -> np.ndarray:
    """Meta's scaling (Llama 3.1): long wavelengths are stretched, short ones kept, those between blended."""
    wavelength = 2 * math.pi / frequency
    low_wavelength = rope.original_max_position / rope.low_freq_factor
    high_wavelength = rope.original_max_position / rope.high_freq_factor
    smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * frequency / rope.factor + smooth * frequency
    scaled = np.where(wavelength > low_wavelength, frequency / rope.factor, np.where(wavelength < high_wavelength, frequency, blended))
    return scaled.astype(np.float32)


def rope_tables(rope: RopeConfig, head_dim: int, positions: Int[Array, " T"]) -> tuple[Float[Array, "T half"], Float[Array, "T half"]]:
    """Cosines and sines of every position, f32 [T, D / 2]: made once a step, used by every layer."""
    angles = positions.astype(jnp.float32)[:, None] * rope_frequencies(rope, head_dim)[None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "T heads D"], cos: Float[Array, "T half"], sin: Float[Array, "T half"]) -> Float[Array, "T heads D"]:
    """Rotary position embedding (Su et al., 2021) in Hugging Face's layout: dimension i is paired with i + D / 2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


type Join = Callable[[jax.Array], jax.Array]
"""Makes a whole product of what each device computed from its share of `in`."""


def linear(
    x: Float[Array, "T in"], weight: Weight, bias: Float[Array, " out"] | None, join: Join = lambda part: part
) -> Float[Array, "T out"]:
    """x @ weight.T + bias; the weight is stored [out, in]. The bias counts once, after `join`."""
    y = join(product(x, weight))
    return y if bias is None else y + bias.astype(y.dtype)


def gated_mlp(
    x: Float[Array, "T hidden"],
    gate_up: Weight,
    gate_up_bias: Float[Array, " out"] | None,
    down: Weight,
    down_bias: Float[Array, " hidden"] | None,
    join: Join,
) -> Float[Array, "T hidden"]:
    """down(silu(gate(x)) * up(x)); gate and up are one product (SwiGLU, Shazeer, 2020)."""
    gate, up = jnp.split(linear(x, gate_up, gate_up_bias), 2, axis=-1)
    return linear(jax.nn.silu(gate) * up, down, down_bias, join)
