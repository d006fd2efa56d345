"""Our network with our loaders against Hugging Face transformers with the same weights."""

from pathlib import Path

import numpy as np
import pytest

from engine.model.checkpoint import load_model
from engine.model.config import ModelConfig
from engine.model.params import Params
from engine.wire import DEFAULT_MODEL
from tests.model.dense import dense_logits, dense_scores
from tests.reference_fixtures import LogitCase, TinyCase, smollm2_greedy, smollm2_logits, smollm2_text, tiny_cases
from tests.tiny_models import write_family_model

LOGIT_TOLERANCE = 1e-3
BF16_AGREEMENT = 0.97
BF16_NLL_TOLERANCE = 0.005

type Model = tuple[ModelConfig, Params]


@pytest.fixture(scope="module")
def smollm2_f32() -> Model:
    return load_model(DEFAULT_MODEL, dtype="float32")


def assert_logits_match(model: Model, case: LogitCase) -> None:
    logits = dense_logits(*model, case.prompt_ids, [row.position for row in case.rows])
    for ours, theirs in zip(logits, case.rows, strict=True):
        np.testing.assert_allclose(ours[theirs.token_ids], theirs.logits, rtol=0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("case", smollm2_logits(), ids=lambda case: f"{len(case.prompt_ids)}-tokens")
def test_smollm2_logits_in_f32_are_those_of_transformers(smollm2_f32: Model, case: LogitCase) -> None:
    assert_logits_match(smollm2_f32, case)


def test_smollm2_in_f32_takes_the_64_greedy_tokens_of_transformers_on_20_prompts(smollm2_f32: Model) -> None:
    """Every token of the output is the most likely one after what stands before it: that is greedy decoding."""
    cases = smollm2_greedy()
    assert len(cases) == 20
    for case in cases:
        assert len(case.output_ids) == 64
        _, best = dense_scores(*smollm2_f32, case.prompt_ids + case.output_ids)
        assert best[len(case.prompt_ids) - 1 : -1].tolist() == list(case.output_ids), case.prompt


def test_smollm2_in_bf16_agrees_with_f32_on_the_next_token_and_its_nll() -> None:
    text = smollm2_text()
    nll, best = dense_scores(*load_model(DEFAULT_MODEL, dtype="bfloat16"), text.token_ids)
    assert (best == text.argmax).mean() >= BF16_AGREEMENT
    assert nll.mean() == pytest.approx(text.nll.mean(), rel=BF16_NLL_TOLERANCE)


@pytest.mark.parametrize("case", tiny_cases(), ids=lambda case: case.family)
def test_each_family_gives_the_logits_and_greedy_tokens_of_transformers(case: TinyCase, tmp_path: Path) -> None:
    folder = write_family_model(tmp_path, case.family, seed=case.seed, shards=2)
    model = load_model(str(folder), dtype="float32")
    assert_logits_match(model, case.logits)
    prompt = case.logits.prompt_ids
    _, best = dense_scores(*model, prompt + case.output_ids)
    assert best[len(prompt) - 1 : -1].tolist() == list(case.output_ids)
