"""The runner over the native decoder, in bf16: near the dense forward, and bit for bit the same in any company."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.execution.backends import stacked_params
from engine.execution.kv_pool import attention_shape
from engine.execution.warmup import WarmedUp, warm_up
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import NativeStack
from engine.kernels.cpu.library import NativeUnavailable, native_library
from engine.model.native import native_params
from engine.wire import Sampling
from tests.execution.driver import BUCKETS, CONFIG, LIMITS, Driver, Text, dense_logits, tiny_params


@pytest.fixture(scope="module")
def ready() -> WarmedUp:
    library = native_library()
    if isinstance(library, NativeUnavailable):
        pytest.skip(library.reason)
    dense = jax.tree.map(lambda array: array.astype(jnp.bfloat16) if array.ndim == 2 else array, tiny_params())
    params = stacked_params(native_params(dense, library.level(), int8=False), attention_shape(CONFIG, LIMITS.page_size), "bfloat16")
    assert isinstance(params.layers, NativeStack)
    return warm_up(CONFIG, params, LIMITS, CpuNativeAttention(library), BUCKETS, "bfloat16", lambda *_: None)


def random_prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, CONFIG.vocab_size, length).tolist()


def test_logprobs_are_near_the_dense_forward(ready: WarmedUp) -> None:
    prompt = random_prompt(60)
    text = Text(prompt, Sampling(temperature=0.0, logprobs=0, max_tokens=6))
    Driver(ready.runner).run([text])
    expected = np.asarray(jax.nn.log_softmax(dense_logits([*prompt, *text.output])[len(prompt) - 1 : -1]))
    for step, (token, logprob) in enumerate(zip(text.output, text.logprobs, strict=True)):
        assert logprob is not None
        assert logprob.logprob == pytest.approx(expected[step, token], abs=0.15)


def test_seeded_text_is_the_same_alone_in_a_batch_and_in_chunks(ready: WarmedUp) -> None:
    prompts = [random_prompt(length) for length in (1, 2, 15, 16, 17, 33, 100, 256, 257, 300)]
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=5, max_tokens=10)
    together = Driver(ready.runner, overlap=True).run([Text(prompt, sampling) for prompt in prompts])
    assert together == [Driver(ready.runner).run([Text(prompt, sampling)])[0] for prompt in prompts]
    assert Driver(ready.runner).run([Text(prompt, sampling) for prompt in prompts], chunk_tokens=16) == together
