"""Native products against exact arithmetic, in every form of weight."""

from collections.abc import Callable

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.kernels.cpu.library import NativeLibrary
from engine.kernels.cpu.products import NativeWeight, native_product, pack_bf16, pack_int8, pack_q4_0, pack_q4_1, pack_q8_0, take_rows
from engine.kernels.products import OwnProduct, OwnRows, product

KINDS = ["bf16", "int8", "q8_0", "q4_1", "q4_0"]
SIZES = [(64, 32), (200, 576), (70, 96)]

BLOCK_PACKERS: dict[str, Callable[[np.ndarray, int], NativeWeight]] = {"q8_0": pack_q8_0, "q4_1": pack_q4_1, "q4_0": pack_q4_0}


def packed(kind: str, matrix: np.ndarray, level: int) -> tuple[NativeWeight, np.ndarray]:
    """A weight, and the real matrix that it stands for."""
    if kind == "bf16":
        rounded = matrix.astype(jnp.bfloat16)
        return pack_bf16(rounded, level), rounded.astype(np.float32)
    if kind == "int8":
        scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
        return pack_int8(matrix, level), np.rint(matrix / scale) * scale
    quant = gguf.GGMLQuantizationType[kind.upper()]
    blocks = gguf.quants.quantize(matrix, quant)
    return BLOCK_PACKERS[kind](blocks, level), gguf.quants.dequantize(blocks, quant)


def as_the_kernel_reads(kind: str, x: np.ndarray) -> np.ndarray:
    """Activations after the rounding that goes with the kind of weight."""
    wide = x.astype(np.float32)
    if kind == "bf16":
        return wide
    blocks = wide.reshape(len(wide), -1, wide.shape[1] if kind == "int8" else 32)
    highest = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.where(highest > 0, np.float32(127) / np.where(highest > 0, highest, 1), 0).astype(np.float32)
    return (np.rint(blocks * inverse) * (highest / np.float32(127))).reshape(wide.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_product_is_exact_but_for_f32_rounding(library: NativeLibrary, isa: str, kind: str, size: tuple[int, int]) -> None:
    draw = np.random.default_rng(1)
    weight, real = packed(kind, (draw.standard_normal(size) * 0.05).astype(np.float32), library.level(isa))
    x = draw.standard_normal((9, size[1])).astype(jnp.bfloat16)
    x[3] = 0
    expected = as_the_kernel_reads(kind, x).astype(np.float64) @ real.astype(np.float64).T
    got = np.asarray(native_product(jnp.asarray(x), weight, out_dtype=jnp.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)
    assert not got[3].any()
    np.testing.assert_array_equal(np.asarray(native_product(jnp.asarray(x), weight)), got.astype(jnp.bfloat16))


def multiplied(library: NativeLibrary, isa: str, kind: str, *, seed: int, num_rows: int) -> tuple[NativeWeight, jax.Array, np.ndarray]:
    """A weight of 192 outputs, rows of 256, and their product in f32."""
    draw = np.random.default_rng(seed)
    weight, _ = packed(kind, draw.standard_normal((192, 256)).astype(np.float32), library.level(isa))
    x = jnp.asarray(draw.standard_normal((num_rows, 256)), jnp.bfloat16)
    return weight, x, np.asarray(native_product(x, weight, out_dtype=jnp.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_product_does_not_depend_on_how_many_there_are(library: NativeLibrary, isa: str, kind: str) -> None:
    weight, x, whole = multiplied(library, isa, kind, seed=2, num_rows=130)
    for rows in (1, 2, 3, 5, 6, 7, 8, 9, 16, 47, 48, 49, 97):
        np.testing.assert_array_equal(np.asarray(native_product(x[:rows], weight, out_dtype=jnp.float32)), whole[:rows])
        np.testing.assert_array_equal(np.asarray(native_product(x[-rows:], weight, out_dtype=jnp.float32)), whole[-rows:])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_nobody_reads_are_not_computed_and_change_no_other(library: NativeLibrary, isa: str, kind: str) -> None:
    weight, x, whole = multiplied(library, isa, kind, seed=5, num_rows=60)
    for live in (np.arange(60) % 7 < 3, np.arange(60) == 59, np.zeros(60, bool), np.ones(60, bool)):
        got = np.asarray(native_product(x, weight, out_dtype=jnp.float32, live=jnp.asarray(live)))
        np.testing.assert_array_equal(got, np.where(live[:, None], whole, 0))


def test_a_flag_for_each_row_or_none_is_asked_for(library: NativeLibrary) -> None:
    weight, _ = packed("bf16", np.zeros((64, 64), np.float32), library.level())
    with pytest.raises(jax.errors.JaxRuntimeError, match="a flag for each row"):
        jax.block_until_ready(native_product(jnp.zeros((3, 64), jnp.bfloat16), weight, live=jnp.ones(2, bool)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(library: NativeLibrary, isa: str, kind: str, bad: float) -> None:
    draw = np.random.default_rng(3)
    weight, _ = packed(kind, draw.standard_normal((64, 64)).astype(np.float32), library.level(isa))
    x = draw.standard_normal((4, 64)).astype(jnp.bfloat16)
    clean = np.asarray(native_product(jnp.asarray(x), weight, out_dtype=jnp.float32))
    x[2, 5] = bad
    got = np.asarray(native_product(jnp.asarray(x), weight, out_dtype=jnp.float32))
    assert not np.isfinite(got[2]).any()
    np.testing.assert_array_equal(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_packed_matrix_are_those_of_the_real_one(library: NativeLibrary, kind: str) -> None:
    weight, real = packed(kind, np.random.default_rng(4).standard_normal((150, 96)).astype(np.float32), library.level())
    rows = np.asarray(take_rows(weight, jnp.arange(150)), np.float32)
    np.testing.assert_array_equal(rows, real.astype(jnp.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(take_rows(weight, jnp.array([-1, 999])), np.float32), rows[[0, 149]])


def test_a_native_weight_is_a_weight_and_an_embedding_to_the_engine(library: NativeLibrary) -> None:
    weight, real = packed("bf16", np.eye(64, dtype=np.float32), library.level())
    assert isinstance(weight, OwnProduct)
    assert isinstance(weight, OwnRows)
    x = jnp.ones((2, 64), jnp.bfloat16)
    assert np.asarray(jax.jit(product)(x, weight)).tolist() == (np.ones((2, 64)) @ real.T).tolist()
    assert len(jax.tree.leaves(weight)) == 2


def test_a_weight_of_another_width_is_an_error(library: NativeLibrary) -> None:
    weight, _ = packed("bf16", np.zeros((64, 64), np.float32), library.level())
    with pytest.raises(jax.errors.JaxRuntimeError, match="differ in width"):
        jax.block_until_ready(native_product(jnp.zeros((2, 32), jnp.bfloat16), weight))
