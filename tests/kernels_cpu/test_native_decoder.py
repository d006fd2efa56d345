"""All layers as one native call, against the plain network in f32, for each family of models."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.execution.kv_pool import attention_shape
from engine.kernels.attention import PrefillLayout
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import MAX_ARRAY_ELEMENTS, DecoderStep, allocate_stack, decoder_supports, run_decoder, stack_layers
from engine.kernels.cpu.library import NativeLibrary
from engine.model.config import ModelConfig, RopeConfig
from engine.model.layers import rope_tables
from engine.model.native import native_params
from engine.model.params import LayerParams, Params
from engine.model.transformer import dense_attend, embed, forward

LLAMA = ModelConfig(
    name="tiny",
    architecture="llama",
    vocab_size=128,
    hidden_size=96,
    intermediate_size=192,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    head_dim=32,
    rms_norm_eps=1e-5,
    max_position=512,
    rope=RopeConfig(),
    tie_embeddings=True,
)
FAMILIES = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, architecture="mistral", sliding_window=40),
    "qwen2": replace(LLAMA, architecture="qwen2", qkv_bias=True, output_bias=True, mlp_bias=True),
    "qwen3": replace(LLAMA, architecture="qwen3", qk_norm=True, head_dim=64),
}
NUM_PAGES, TABLE_PAGES = 32, 16
FORMS = [(False, "bfloat16"), (True, "bfloat16"), (False, "int8")]
"""Whether the weights are int8, and the type of KV."""


def random_params(config: ModelConfig) -> Params:
    draw = np.random.default_rng(0)
    q_width, kv_width, hidden, inner = (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
        config.hidden_size,
        config.intermediate_size,
    )

    def matrix(out: int, width: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal((out, width)) * width**-0.5, jnp.bfloat16)

    def bias(wanted: bool, size: int) -> jax.Array | None:
        return jnp.asarray(draw.standard_normal(size) * 0.3, jnp.bfloat16) if wanted else None

    def norm(size: int) -> jax.Array:
        return jnp.asarray(1 + 0.2 * draw.standard_normal(size), jnp.float32)

    layers = tuple(
        LayerParams(
            norm(hidden),
            matrix(q_width + 2 * kv_width, hidden),
            bias(config.qkv_bias, q_width + 2 * kv_width),
            norm(config.head_dim) if config.qk_norm else None,
            norm(config.head_dim) if config.qk_norm else None,
            matrix(hidden, q_width),
            bias(config.output_bias, hidden),
            norm(hidden),
            matrix(2 * inner, hidden),
            bias(config.mlp_bias, 2 * inner),
            matrix(hidden, inner),
            bias(config.mlp_bias, hidden),
        )
        for _ in range(config.num_layers)
    )
    return Params(matrix(config.vocab_size, hidden) * 8, layers, norm(hidden), None)


class Sequence:
    """One sequence's cache and table; runs spans of its tokens through the native layers."""

    def __init__(
        self, config: ModelConfig, params: Params, backend: CpuNativeAttention, kv_dtype: str, max_bytes: int = MAX_ARRAY_ELEMENTS
    ) -> None:
        self.config, self.params = config, params
        self.shape = attention_shape(config, 16)
        self.stack = stack_layers(params.layers, max_bytes)
        self.caches = allocate_stack(backend, self.shape, config.num_layers, NUM_PAGES, kv_dtype)
        self.table = np.random.default_rng(1).permutation(NUM_PAGES)[:TABLE_PAGES].astype(np.int32)

    def _run(
        self, tokens: np.ndarray, positions: np.ndarray, rows: list[int], tables: np.ndarray, lengths: np.ndarray, layout: PrefillLayout
    ) -> np.ndarray:
        slots = np.full(len(tokens), -1, np.int32)
        slots[rows] = self.table[positions[rows] // 16] * 16 + positions[rows] % 16
        return self.run(tokens, positions, slots, tables, lengths, layout)[rows]

    def run(
        self, tokens: np.ndarray, positions: np.ndarray, slots: np.ndarray, tables: np.ndarray, lengths: np.ndarray, layout: PrefillLayout
    ) -> np.ndarray:
        """Hidden states of all rows."""
        cos, sin = rope_tables(self.config.rope, self.config.head_dim, jnp.asarray(positions))
        step = DecoderStep(
            cos, sin, jnp.asarray(slots), jnp.asarray(tables), jnp.asarray(lengths), PrefillLayout(*map(jnp.asarray, layout))
        )
        hidden = embed(self.config, self.params, jnp.asarray(tokens))
        out, self.caches = run_decoder(self.shape, self.config.rms_norm_eps, self.stack, hidden, step, self.caches)
        return np.asarray(out, np.float32)

    def prefill(self, tokens: np.ndarray, start: int) -> np.ndarray:
        size, rows = len(tokens), -(-len(tokens) // 16) * 16
        ones = np.ones(1, np.int32)
        layout = PrefillLayout(self.table[None], np.zeros(rows // 16, np.int32), 0 * ones, size * ones, start * ones)
        padded, positions = np.zeros((2, rows), np.int32)
        padded[:size], positions[:size] = tokens, np.arange(start, start + size)
        none = np.zeros(0, np.int32)
        return self._run(padded, positions, list(range(size)), np.zeros((0, TABLE_PAGES), np.int32), none, layout)

    def decode(self, token: int, position: int) -> np.ndarray:
        """In the middle of two rows of padding."""
        none = np.zeros(0, np.int32)
        layout = PrefillLayout(np.zeros((0, TABLE_PAGES), np.int32), none, none, none, none)
        tables = np.stack([0 * self.table, self.table, 0 * self.table])
        tokens, positions = np.array([5, token, 7], np.int32), np.array([0, position, 0], np.int32)
        return self._run(tokens, positions, [1], tables, np.array([0, position + 1, 0], np.int32), layout)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("int8", "kv_dtype"), FORMS, ids=["bf16", "int8", "int8-kv"])
def test_native_layers_compute_the_network(library: NativeLibrary, isa: str, family: str, int8: bool, kv_dtype: str) -> None:
    config = FAMILIES[family]
    dense = random_params(config)
    params = native_params(dense, library.level(isa), int8=int8)
    assert decoder_supports(attention_shape(config, 16), params.layers, kv_dtype)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, 90).astype(np.int32)
    wide = jax.tree.map(lambda array: array.astype(jnp.float32), dense)
    expected, _ = forward(config, wide, jnp.asarray(tokens), jnp.arange(90), dense_attend(config), [None] * config.num_layers)
    got = Sequence(config, params, CpuNativeAttention(library, isa), kv_dtype).prefill(tokens, 0)
    error = np.linalg.norm(got - np.asarray(expected), axis=1) / np.linalg.norm(np.asarray(expected), axis=1)
    assert error.max() < (0.06 if int8 else 0.03 if kv_dtype == "int8" else 0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("int8", "kv_dtype"), FORMS, ids=["bf16", "int8", "int8-kv"])
def test_hidden_states_are_the_same_bits_whole_chunked_and_decoded(
    library: NativeLibrary, isa: str, family: str, int8: bool, kv_dtype: str
) -> None:
    config = FAMILIES[family]
    params = native_params(random_params(config), library.level(isa), int8=int8)
    backend = CpuNativeAttention(library, isa)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, 90).astype(np.int32)
    whole = Sequence(config, params, backend, kv_dtype).prefill(tokens, 0)
    parts = Sequence(config, params, backend, kv_dtype)
    chunks = [parts.prefill(tokens[:16], 0), parts.prefill(tokens[16:49], 16), parts.prefill(tokens[49:80], 49)]
    steps = [parts.decode(int(tokens[position]), position) for position in range(80, 90)]
    np.testing.assert_array_equal(np.concatenate(chunks + steps), whole)


@pytest.mark.parametrize("max_elements", [1, MAX_ARRAY_ELEMENTS])
def test_weights_and_caches_may_lie_in_one_buffer_or_in_many(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch, max_elements: int
) -> None:
    params = native_params(random_params(LLAMA), library.level(), int8=True)
    tokens = np.arange(40, dtype=np.int32)
    together = Sequence(LLAMA, params, CpuNativeAttention(library), "bfloat16").prefill(tokens, 0)
    monkeypatch.setattr("engine.kernels.cpu.decoder.MAX_ARRAY_ELEMENTS", max_elements)
    apart = Sequence(LLAMA, params, CpuNativeAttention(library), "bfloat16", max_bytes=max_elements)
    assert len(apart.stack.buffers) == len(apart.caches) == (LLAMA.num_layers if max_elements == 1 else 1)
    np.testing.assert_array_equal(apart.prefill(tokens, 0), together)


def test_padding_is_left_as_it_was(library: NativeLibrary) -> None:
    params = native_params(random_params(LLAMA), library.level(), int8=False)
    sequence = Sequence(LLAMA, params, CpuNativeAttention(library), "bfloat16")
    none = np.zeros(0, np.int32)
    layout = PrefillLayout(np.zeros((0, TABLE_PAGES), np.int32), none, none, none, none)
    tokens, positions = np.array([5, 6, 7], np.int32), np.zeros(3, np.int32)
    rows = sequence._run(tokens, positions, [0, 1, 2], np.stack([sequence.table] * 3), np.ones(3, np.int32), layout)
    padded = np.full(3, -1, np.int32)
    out = sequence.run(tokens, positions, padded, np.stack([sequence.table] * 3), np.zeros(3, np.int32), layout)
    np.testing.assert_array_equal(out, np.asarray(embed(LLAMA, params, jnp.asarray(tokens)), np.float32))
    assert not np.array_equal(out, rows)


def test_layers_run_one_by_one_where_a_form_is_not_native(library: NativeLibrary) -> None:
    dense = random_params(LLAMA)
    shape = attention_shape(LLAMA, 16)
    packed = native_params(dense, library.level(), int8=False)
    assert not decoder_supports(shape, dense.layers, "bfloat16")
    assert not decoder_supports(shape, packed.layers, "float32")
    assert not decoder_supports(replace(shape, soft_cap=30.0), packed.layers, "bfloat16")
