"""SmolLM2 in bfloat16 over the native kernels: a sequence's numbers do not depend on what runs beside it, bit for bit.

In float32 other orders of summation rarely change a token; in bfloat16 they often do, so here the kernels must keep one order.
"""

import numpy as np
import pytest

from engine.wire import Sampling
from tests.parity.local_engine import LocalEngine
from tests.reference_fixtures import smollm2_greedy, smollm2_text

TEXT = smollm2_text().token_ids
PROMPTS = [*(case.prompt_ids for case in smollm2_greedy()[6:20]), TEXT[:300], TEXT[700:1330]]
"""Sixteen, of 4 to 630 tokens."""
ALONE = (0, 4, 9, 14, 15)
OUTPUT_TOKENS = 40


def seeded(seed: int) -> Sampling:
    return Sampling(temperature=0.8, top_p=0.95, seed=seed, max_tokens=OUTPUT_TOKENS, ignore_eos=True)


SEEDED = [seeded(seed) for seed in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def together(native_bf16: LocalEngine) -> list[list[int]]:
    """The text of each prompt in a batch of 16, prefills in chunks that fill the largest buckets."""
    assert len(PROMPTS) == 16
    tokens = [output.tokens for output in native_bf16.run(PROMPTS, SEEDED)]
    assert np.mean([len(set(text)) for text in tokens]) > OUTPUT_TOKENS / 2, "texts that only repeat themselves prove little"
    return tokens


def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch_of_16(native_bf16: LocalEngine, together: list[list[int]]) -> None:
    for number in ALONE:
        assert native_bf16.run([PROMPTS[number]], SEEDED[number])[0].tokens == together[number]


@pytest.mark.parametrize("chunk_tokens", [16, 64])
def test_the_same_seed_gives_the_same_text_in_small_chunks(native_bf16: LocalEngine, together: list[list[int]], chunk_tokens: int) -> None:
    assert [output.tokens for output in native_bf16.run(PROMPTS, SEEDED, max_num_batched_tokens=chunk_tokens)] == together


def test_the_same_seed_gives_the_same_text_after_preemptions_and_a_recompute(native_bf16: LocalEngine, together: list[list[int]]) -> None:
    outputs = native_bf16.run(PROMPTS, SEEDED, preempt_every_steps=15, enable_prefix_caching=False)
    assert native_bf16.last_load is not None and native_bf16.last_load.preemptions["forced"] >= 2
    assert [output.tokens for output in outputs] == together


def test_the_same_seed_gives_the_same_text_from_the_prefix_cache(native_bf16: LocalEngine, together: list[list[int]]) -> None:
    """Five rows of one prompt: four of them wait for the first one's pages and take them."""
    outputs = native_bf16.run([PROMPTS[15]] * 5, SEEDED[15])
    assert [output.cached_tokens for output in outputs] == [0, 624, 624, 624, 624]
    assert all(output.tokens == together[15] for output in outputs)


def test_a_text_that_was_decoded_is_scored_with_the_logprobs_it_was_drawn_with(native_bf16: LocalEngine) -> None:
    drawing = Sampling(temperature=0.8, seed=5, max_tokens=OUTPUT_TOKENS, ignore_eos=True, logprobs=0)
    prompt = PROMPTS[0]
    drawn = native_bf16.run([prompt], drawing)[0]
    scoring = Sampling(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    scored = native_bf16.run([[*prompt, *drawn.tokens]], scoring)[0]
    expected = [entry.logprob for entry in drawn.logprobs]
    np.testing.assert_allclose([entry.logprob for entry in scored.prompt_logprobs[-OUTPUT_TOKENS:]], expected, rtol=0, atol=1e-5)
