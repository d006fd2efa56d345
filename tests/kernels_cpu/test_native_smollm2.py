"""The default model on the native kernels, in each form of its weights and KV, against Hugging Face's f32 numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from engine.execution.kv_pool import attention_shape
from engine.kernels.attention import PrefillLayout
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import DecoderStep, allocate_stack, run_decoder, stack_layers
from engine.kernels.cpu.library import NativeLibrary
from engine.model.checkpoint import load_model
from engine.model.config import ModelConfig
from engine.model.layers import rope_tables
from engine.model.native import native_gguf_params, native_params
from engine.model.params import Params
from engine.model.transformer import embed, logits
from engine.wire import DEFAULT_MODEL
from tests.reference_fixtures import smollm2_text

CHUNK = 400


def native_scores(
    config: ModelConfig, params: Params, library: NativeLibrary, token_ids: tuple[int, ...], kv_dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood of every token but the first, and the most likely token after each; in chunks over pages."""
    backend, shape = CpuNativeAttention(library), attention_shape(config, 16)
    table = jnp.arange(-(-len(token_ids) // 16), dtype=jnp.int32)
    stack = stack_layers(params.layers)
    caches = allocate_stack(backend, shape, config.num_layers, len(table), kv_dtype)
    none, one = jnp.zeros(0, jnp.int32), jnp.ones(1, jnp.int32)
    nll, best = [], []
    following = np.array([*token_ids[1:], 0])
    for start in range(0, len(token_ids), CHUNK):
        tokens = jnp.array(token_ids[start : start + CHUNK])
        positions = jnp.arange(start, start + CHUNK, dtype=jnp.int32)
        layout = PrefillLayout(table[None], jnp.zeros(CHUNK // 16, jnp.int32), 0 * one, CHUNK * one, start * one)
        cos, sin = rope_tables(config.rope, config.head_dim, positions)
        step = DecoderStep(cos, sin, positions, jnp.zeros((0, len(table)), jnp.int32), none, layout)
        hidden, caches = run_decoder(shape, config.rms_norm_eps, stack, embed(config, params, tokens), step, caches)
        rows = np.asarray(logits(config, params, hidden), np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        nll.append(np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(CHUNK), following[start : start + CHUNK]])
        best.append(rows.argmax(axis=1))
    return np.concatenate(nll)[:-1], np.concatenate(best)


@pytest.mark.parametrize(
    ("form", "kv_dtype", "agreement", "nll_tolerance"),
    [
        ("none", "bfloat16", 0.97, 0.005),
        ("int8", "bfloat16", 0.88, 0.015),
        ("gguf", "bfloat16", 0.93, 0.015),
        ("none", "int8", 0.96, 0.005),
    ],
)
def test_smollm2_on_native_kernels_agrees_with_f32(
    library: NativeLibrary, form: str, kv_dtype: str, agreement: float, nll_tolerance: float
) -> None:
    if form == "gguf":
        config, params = native_gguf_params(DEFAULT_MODEL, library.level())
    else:
        config, dense = load_model(DEFAULT_MODEL, dtype="bfloat16")
        params = native_params(dense, library.level(), int8=form == "int8")
    text = smollm2_text()
    assert len(text.token_ids) % CHUNK == 0
    nll, best = native_scores(config, params, library, text.token_ids, kv_dtype)
    assert nll.mean() == pytest.approx(text.nll.mean(), rel=nll_tolerance)
    assert np.mean(best[: len(text.argmax)] == text.argmax) >= agreement
