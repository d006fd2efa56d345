"""The paged engine against Hugging Face transformers: scheduler, pages, kernels and head as they serve, SmolLM2 and each family."""

from pathlib import Path

import numpy as np
import pytest

from engine.scheduling.plan import Bucket
from engine.wire import EngineConfig, Sampling, TokenLogprob
from tests.parity.conftest import require_native, smollm2_config
from tests.parity.local_engine import ONLY_SCORING, LocalEngine
from tests.reference_fixtures import LogitRow, TinyCase, smollm2_greedy, smollm2_logits, smollm2_text, tiny_cases
from tests.tiny_models import write_family_model

LOGPROB_TOLERANCE = 1e-3
AGREEMENT = 0.97
BF16_NLL_TOLERANCE = 0.005
INT8_NLL_TOLERANCE = 0.015
PAGED_FAMILIES = ("mistral", "llama-linear")
"""What pages may get wrong beside SmolLM2 (9 query heads, 3 KV heads): a sliding window of 24 tokens, and a KV head for
each query head. The rest of each family's network is the same code whatever attends; tests/model has all of them."""

SCORE = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=20)
FIRST_TOKEN = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=20)


def greedy(max_tokens: int) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def f32() -> LocalEngine:
    return LocalEngine(smollm2_config(dtype="float32", attention_backend="xla", decode_buckets=(24,)))


def assert_row_matches(ours: TokenLogprob, theirs: LogitRow) -> None:
    """The fixture has logits of a part of the vocabulary: their differences are those of the log-probabilities."""
    reference = dict(zip(theirs.token_ids.tolist(), theirs.logits.tolist(), strict=True))
    best = ours.top[0]
    assert best.token_id == theirs.token_ids[np.argmax(theirs.logits)]
    assert len(ours.top) == 20 and all(entry.token_id in reference for entry in ours.top)
    for entry in ours.top:
        expected = reference[entry.token_id] - reference[best.token_id]
        assert entry.logprob - best.logprob == pytest.approx(expected, abs=LOGPROB_TOLERANCE)


def test_the_first_token_in_f32_has_the_logprobs_of_transformers(f32: LocalEngine) -> None:
    """Prompts of 1, 15, 16, 17, 300 and 2,000 tokens share prefill steps of up to four chunks and 512 tokens."""
    cases = smollm2_logits()
    prompts = [case.prompt_ids for case in cases]
    assert [len(prompt) for prompt in prompts] == [1, 15, 16, 17, 300, 2000]
    for case, output in zip(cases, f32.run(prompts, FIRST_TOKEN), strict=True):
        assert case.rows[-1].position == len(case.prompt_ids) - 1
        assert_row_matches(output.logprobs[0], case.rows[-1])


def test_prompt_logprobs_in_f32_are_those_of_transformers(f32: LocalEngine) -> None:
    cases = smollm2_logits()
    outputs = f32.run([case.prompt_ids for case in cases], SCORE)
    for case, output in zip(cases, outputs, strict=True):
        assert len(output.prompt_logprobs) == len(case.prompt_ids) - 1
        for row in case.rows:
            if row.position < len(output.prompt_logprobs):
                assert_row_matches(output.prompt_logprobs[row.position], row)
    text = smollm2_text()
    assert cases[-1].prompt_ids == text.token_ids
    np.testing.assert_allclose(outputs[-1].nll(), text.nll, rtol=0, atol=LOGPROB_TOLERANCE)
    assert (outputs[-1].likeliest() == text.argmax[:-1]).all()


def test_20_prompts_served_together_in_f32_continue_with_the_64_greedy_tokens_of_transformers(f32: LocalEngine) -> None:
    cases = smollm2_greedy()
    assert len(cases) == 20
    outputs = f32.run([case.prompt_ids for case in cases], greedy(64))
    for case, output in zip(cases, outputs, strict=True):
        assert output.tokens == list(case.output_ids), case.prompt


def quality(engine: LocalEngine) -> tuple[float, float]:
    """Share of next tokens that are the reference's, and mean NLL over the reference's, on the text of 2,000 tokens."""
    text = smollm2_text()
    output = engine.run([text.token_ids], SCORE)[0]
    agreement = float((output.likeliest() == text.argmax[:-1]).mean())
    return agreement, float(output.nll().mean() / text.nll.mean())


def test_native_bf16_agrees_with_f32_on_the_next_token_and_its_nll(native_bf16: LocalEngine) -> None:
    assert native_bf16.form == "cpu-native; bfloat16, native products"
    agreement, nll_ratio = quality(native_bf16)
    print(f"{native_bf16.form}: agreement {agreement:.4f}, NLL ratio {nll_ratio:.5f}")
    assert agreement >= AGREEMENT
    assert nll_ratio == pytest.approx(1, abs=BF16_NLL_TOLERANCE)


@pytest.mark.parametrize(
    ("backend", "quantization", "form", "tolerance"),
    [
        ("xla", "none", "xla; bfloat16, XLA products", BF16_NLL_TOLERANCE),
        ("xla", "int8", "xla; int8, XLA products", INT8_NLL_TOLERANCE),
        ("cpu-native", "int8", "cpu-native; int8, native products", INT8_NLL_TOLERANCE),
        ("cpu-native", "gguf", "cpu-native; GGUF blocks, native products", INT8_NLL_TOLERANCE),
    ],
)
def test_each_form_of_weights_keeps_the_nll_of_f32(backend: str, quantization: str, form: str, tolerance: float) -> None:
    if backend == "cpu-native":
        require_native()
    engine = LocalEngine(smollm2_config(attention_backend=backend, quantization=quantization), ONLY_SCORING)
    assert engine.form == form
    agreement, nll_ratio = quality(engine)
    print(f"{form}: agreement {agreement:.4f}, NLL ratio {nll_ratio:.5f}")
    assert nll_ratio == pytest.approx(1, abs=tolerance)
    if quantization == "none":
        assert agreement >= AGREEMENT


@pytest.mark.parametrize("case", [case for case in tiny_cases() if case.family in PAGED_FAMILIES], ids=lambda case: case.family)
def test_a_tiny_model_is_that_of_transformers_through_pages(case: TinyCase, tmp_path: Path) -> None:
    """Prefill in chunks of 64 and 48 decode steps over the pages they left."""
    folder = write_family_model(tmp_path, case.family, seed=case.seed)
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        attention_backend="xla",
        max_model_len=256,
        num_gpu_blocks_override=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        decode_buckets=(4,),
        prefill_buckets=(64,),
    )
    engine = LocalEngine(config, programs=(Bucket(4, 0), Bucket(0, 64)))
    prompt = case.logits.prompt_ids
    assert engine.run([prompt], greedy(48))[0].tokens == list(case.output_ids)
    scored = engine.run([prompt], SCORE)[0].prompt_logprobs
    for row in case.logits.rows[:-1]:
        assert_row_matches(scored[row.position], row)
