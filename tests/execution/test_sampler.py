"""The device's sampler against a plain numpy twin that sorts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.sampler import CANDIDATES, LOWEST, MORE_CANDIDATES, Drawn, SamplingRows, SlotState, sample

DRAWS = 2000


def neutral(rows: int, **changes: object) -> SamplingRows:
    """Rows that sample plainly, each with its own seed."""
    plain = SamplingRows(
        temperature=np.ones(rows, np.float32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        repetition=np.ones(rows, np.float32),
        presence=np.zeros(rows, np.float32),
        frequency=np.zeros(rows, np.float32),
        seed=np.arange(rows, dtype=np.uint32),
        position=np.full(rows, 5, np.int32),
        prompt_tokens=np.full(rows, 3, np.int32),
        biased=np.zeros(rows, bool),
        held=np.zeros(rows, bool),
        wants_logprobs=np.zeros(rows, bool),
    )
    given = {name: np.broadcast_to(np.asarray(value, getattr(plain, name).dtype), (rows,)) for name, value in changes.items()}
    return plain._replace(**given)


def empty_state(rows: int, vocab: int) -> SlotState:
    ids = np.full((rows, 4), vocab, np.int32)
    return SlotState(np.zeros((rows, 8), np.int32), ids, np.zeros((rows, 4), np.float32), ids)


def draw(logits: np.ndarray, rows: SamplingRows, state: SlotState | None = None) -> Drawn:
    return sample(logits, rows, state or empty_state(*logits.shape), np.arange(logits.shape[0], dtype=np.int32))


def twin_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """Of one row, f64: temperature, then top-k and min-p, then the smallest set of the rest that holds top_p of it."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights, kind="stable")
    if top_k:
        weights[order[top_k:]] = 0
    weights[weights < min_p * weights.max()] = 0
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[1:][before[1:] >= top_p * weights.sum()]] = 0
    return weights / weights.sum()


FLAT, PEAKED = 0.3, 3.0
CASES = {
    "plain": (50, PEAKED, {}),
    "plain-wide": (1500, PEAKED, {}),
    "cold": (50, PEAKED, {"temperature": 0.5}),
    "top-k": (1500, PEAKED, {"top_k": 7}),
    "top-k beyond the candidates": (1500, FLAT, {"top_k": CANDIDATES + 36}),
    "top-k beyond more candidates": (2500, FLAT, {"top_k": MORE_CANDIDATES + 400}),
    "top-k of one": (50, PEAKED, {"top_k": 1}),
    "top-k of all": (50, PEAKED, {"top_k": 5000}),
    "top-p": (1500, PEAKED, {"top_p": 0.8}),
    "top-p beyond the candidates": (1500, FLAT, {"top_p": 0.3}),
    "top-p beyond more candidates": (2500, FLAT, {"top_p": 0.9}),
    "top-p of nothing": (50, PEAKED, {"top_p": 0.0}),
    "min-p": (1500, PEAKED, {"min_p": 0.05}),
    "min-p of a flat row": (1500, FLAT, {"min_p": 0.4}),
    "all": (1500, PEAKED, {"temperature": 1.5, "top_k": 30, "top_p": 0.7, "min_p": 0.01}),
    "top-k and top-p beyond the candidates": (2500, FLAT, {"top_k": 1200, "top_p": 0.95}),
}


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_twins_distribution(name: str) -> None:
    vocab, spread, parameters = CASES[name]
    logits = (np.random.default_rng(1).standard_normal(vocab) * spread).astype(np.float32)
    tokens = np.asarray(draw(np.tile(logits, (DRAWS, 1)), neutral(DRAWS, **parameters)).token)
    probabilities = twin_probabilities(logits, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **parameters})
    assert (probabilities[tokens] > 0).all(), "no draw outside of what the filters keep"
    # Chi-square over bins of about equal probability; 60 is far above any quantile that 15 bins would reach by chance.
    order = np.argsort(-probabilities)
    bins = np.minimum((np.cumsum(probabilities[order]) * 15).astype(int), 14)
    expected = np.bincount(bins, probabilities[order], 15) * DRAWS
    observed = np.bincount(bins[np.argsort(order)][tokens], minlength=15)
    used = expected > 0
    assert ((observed - expected)[used] ** 2 / expected[used]).sum() < 60


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 999),
    st.lists(st.tuples(st.sampled_from([0, 1, 5, 63, 64, 65, 299]), st.sampled_from([0.0, 0.01, 0.5, 0.9, 1.0])), min_size=6, max_size=6),
)
def test_a_row_gets_the_same_token_in_any_batch(seed: int, filters: list[tuple[int, float]]) -> None:
    random = np.random.default_rng(seed)
    spread = np.array([0.1, 0.1, 1, 1, 4, 4], np.float32)
    logits = (random.standard_normal((6, 300)) * spread[:, None]).astype(np.float32)
    rows = neutral(6, seed=seed + np.arange(6), top_k=[k for k, _ in filters], top_p=[p for _, p in filters])
    together = np.asarray(draw(logits, rows).token)
    for index in range(6):
        same = [index] * 6
        alone = draw(logits[same], SamplingRows(*(column[same] for column in rows))).token
        assert set(np.asarray(alone).tolist()) == {together[index]}


def test_another_position_or_seed_draws_another_number() -> None:
    logits = np.zeros((64, 5000), np.float32)
    positions = draw(logits, neutral(64, seed=1, position=np.arange(64))).token
    seeds = draw(logits, neutral(64, position=1)).token
    assert len(set(np.asarray(positions).tolist())) > 60 and len(set(np.asarray(seeds).tolist())) > 60


def test_greedy_is_the_first_of_the_largest_beside_sampled_rows() -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[:, [7, 30]] = 5.0
    tokens = draw(logits, neutral(3, temperature=[0.0, 1.0, 0.0])).token
    assert tokens[0] == tokens[2] == 7


def test_penalties_count_prompt_and_output_as_they_should() -> None:
    logits = np.tile(np.array([2.0, -1.0, 3.0, 1.0, 0.5], np.float32), (4, 1))
    history = np.tile(np.array([0, 1, 1, 2, 2, 9, 9, 9], np.int32), (4, 1))  # prompt 0 1 1, output 2 2; the rest is stale
    state = empty_state(4, 5)._replace(history=history)
    rows = neutral(4, temperature=0.0, repetition=[2.0, 1, 1, 1], presence=[0, 0.75, 0, 0], frequency=[0, 0, 0.75, 0], wants_logprobs=True)
    # After repetition: 1, -2, 1.5, 1, .5; presence: 2, -1, 2.25, ..; frequency: 2, -1, 1.5, ..; untouched: 3 is largest.
    assert draw(logits, rows, state).token.tolist() == [2, 2, 0, 2]
    harder = rows._replace(repetition=np.array([4.0, 1, 1, 1], np.float32), presence=np.array([0, 1.5, 0, 0], np.float32))
    assert draw(logits, harder, state).token.tolist() == [3, 0, 0, 2]


def test_bias_and_forbidden_ids_act_only_on_their_rows() -> None:
    logits = np.zeros((3, 10), np.float32)
    logits[:, 4] = 1.0
    ids = np.array([[4, 6, 10, 10]] * 3, np.int32)
    state = SlotState(np.zeros((3, 8), np.int32), ids, np.array([[-50, 2, 9, 9]] * 3, np.float32), ids)
    rows = neutral(3, temperature=0.0, biased=[True, False, False], held=[False, True, False])
    assert draw(logits, rows, state).token.tolist() == [6, 0, 4]


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    rows = neutral(2, temperature=[0.3, 0.0], top_k=2, biased=[False, False], wants_logprobs=[True, False])
    drawn = draw(logits, rows)
    expected = np.asarray(jax.nn.log_softmax(jnp.asarray(logits)))
    np.testing.assert_allclose(drawn.logprob, expected[[0, 1], np.asarray(drawn.token)], atol=1e-5)
    np.testing.assert_array_equal(drawn.top_ids[0], np.argsort(-logits[0])[:20])
    np.testing.assert_allclose(drawn.top_logprobs[0], np.sort(expected[0])[::-1][:20], atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1e-4, 1.0, 50.0])
def test_a_forbidden_token_is_never_drawn_however_hot(temperature: float) -> None:
    logits = np.full((64, 20), LOWEST, np.float32)
    logits[:, 3] = 0.0
    assert set(np.asarray(draw(logits, neutral(64, temperature=temperature, top_p=0.5)).token).tolist()) == {3}
