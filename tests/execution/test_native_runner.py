"""The runner over the native decoder, in bf16: near the dense forward, and bit for bit the same in any company."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace

from engine.execution.backends import stacked_params
from engine.execution.kv_pool import attention_shape
from engine.execution.runner import DeviceRunner
from engine.execution.warmup import WarmedUp, warm_up
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import NativeStack
from engine.kernels.cpu.library import NativeLibrary, NativeUnavailable, native_library
from engine.model.config import ModelConfig
from engine.model.native import native_params
from engine.scheduling.plan import Admitted, Bucket, PrefillChunk, StepPlan, StepResult, Ticket
from engine.wire import Sampling
from tests.execution.driver import BUCKETS, CONFIG, LIMITS, Driver, Text, dense_logits, tiny_params

DEEP_LAYERS = 60
"""Enough for a cut to come between two of them."""


@pytest.fixture(scope="module")
def library() -> NativeLibrary:
    library = native_library()
    if isinstance(library, NativeUnavailable):
        pytest.skip(library.reason)
    return library


@pytest.fixture(scope="module")
def ready(library: NativeLibrary) -> WarmedUp:
    return warmed(library, CONFIG)


def warmed(library: NativeLibrary, config: ModelConfig) -> WarmedUp:
    dense = jax.tree.map(lambda array: array.astype(jnp.bfloat16) if array.ndim == 2 else array, tiny_params(config))
    params = stacked_params(native_params(dense, library.level(), int8=False), attention_shape(config, LIMITS.page_size), "bfloat16")
    assert isinstance(params.layers, NativeStack)
    return warm_up(config, params, LIMITS, CpuNativeAttention(library), BUCKETS, "bfloat16", lambda *_: None)


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


class CuttingRunner:
    """Cuts each prompt's step before its first layer, so that nothing of it is right, and runs it once more as a scheduler would plan it
    then."""

    def __init__(self, runner: DeviceRunner, library: NativeLibrary) -> None:
        self.runner = runner
        self.library = library

    def dispatch(self, plan: StepPlan) -> Ticket:
        if not plan.prefills:
            return self.runner.dispatch(plan)
        self.library.want_cut()
        ticket = self.runner.dispatch(plan)
        assert self.runner.collect(ticket) == StepResult((-1,) * len(plan.prefills), (None,) * len(plan.prefills), is_cut=True)
        prefills = tuple(replace(chunk, new_pages=()) for chunk in plan.prefills)
        return self.runner.dispatch(replace(plan, admitted=(), prefills=prefills))

    def collect(self, ticket: Ticket) -> StepResult:
        return self.runner.collect(ticket)


def test_steps_that_were_cut_short_leave_nothing_wrong_behind(ready: WarmedUp, library: NativeLibrary) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=3, max_tokens=8)
    prompts = [random_prompt(length) for length in (5, 40, 300)]
    plain = Driver(ready.runner).run([Text(prompt, sampling) for prompt in prompts], chunk_tokens=64)
    cutting: Any = CuttingRunner(ready.runner, library)
    assert Driver(cutting).run([Text(prompt, sampling) for prompt in prompts], chunk_tokens=64) == plain


def test_decodes_beside_a_prompt_that_is_cut_short_draw_what_they_draw_alone(library: NativeLibrary) -> None:
    """Before whichever layer the prompt is left out: of many, and in the first step before the first."""
    ready = warmed(library, dataclasses.replace(CONFIG, num_layers=DEEP_LAYERS))
    sampling = Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=3, logprobs=2, max_tokens=25)
    expected = [Text(random_prompt(length), sampling) for length in (5, 40, 300)]
    Driver(ready.runner).run(expected)

    driver, texts = Driver(ready.runner), [Text(text.prompt, sampling) for text in expected]
    for slot, text in enumerate(texts):
        driver.prefill(slot, text, 512)
    other, num_cut = Text(random_prompt(64)), 0
    admitted: tuple[Admitted, ...] = (Admitted(7, 7, other.prompt, len(other.prompt), other.sampling),)
    for turn in range(sampling.max_tokens - 1):
        decodes = tuple(driver.decode_row(slot, text, len(text.prompt) + turn) for slot, text in enumerate(texts))
        chunk = PrefillChunk(7, 7, 0, tuple(other.prompt), driver.grow(other, len(other.prompt)), samples=True)
        plan = driver.plan(Bucket(16, 64), admitted=admitted, decodes=decodes, prefills=(chunk,))
        if turn == 0:
            library.want_cut()
        ticket = ready.runner.dispatch(plan)
        time.sleep(turn % 6 * 0.0005)
        library.want_cut()
        result = ready.runner.collect(ticket)
        num_cut, admitted = num_cut + result.is_cut, ()
        assert not result.is_cut or (result.tokens[-1], result.logprobs[-1]) == (-1, None)
        for text, token, logprob in zip(texts, result.tokens, result.logprobs, strict=False):
            text.output.append(token)
            text.logprobs.append(logprob)
    assert [(text.output, text.logprobs) for text in texts] == [(text.output, text.logprobs) for text in expected]
    assert num_cut > 3


def test_a_step_that_is_done_is_not_cut_and_neither_is_the_next(ready: WarmedUp) -> None:
    runner, driver = ready.runner, Driver(ready.runner)
    text = Text(random_prompt(20), Sampling(temperature=0.0, max_tokens=6))
    expected = Driver(runner).run([Text(text.prompt, text.sampling)])[0]
    driver.prefill(0, text, 64)
    for turn in range(5):
        ticket: Any = runner.dispatch(driver.plan(Bucket(16, 0), decodes=(driver.decode_row(0, text, 20 + turn),)))
        jax.block_until_ready(ticket.packed)
        assert not runner.interrupt(ticket)
        driver.take([text], [0], ticket)
    assert text.output == expected
