"""The runner against the dense forward pass of the same tiny model, in f32."""

import jax
import numpy as np
import pytest

from engine.execution.warmup import WarmedUp
from engine.scheduling.plan import Admitted, Bucket, PrefillChunk
from engine.wire import Sampling
from tests.execution.driver import CONFIG, GREEDY, LIMITS, Driver, Text, dense_greedy, dense_logits, warmed


@pytest.fixture(scope="module")
def ready() -> WarmedUp:
    return warmed()


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, length).tolist()


@pytest.mark.parametrize("length", [1, 15, 16, 17, 300])
def test_greedy_text_equals_the_dense_forward(ready: WarmedUp, length: int) -> None:
    prompt = random_prompt(length)
    assert Driver(ready.runner).run([Text(prompt)]) == [dense_greedy(prompt, 8)]


@pytest.mark.parametrize("chunk_tokens", [16, 64, 512])
def test_chunking_changes_no_greedy_token(ready: WarmedUp, chunk_tokens: int) -> None:
    prompt = random_prompt(333)
    assert Driver(ready.runner).run([Text(prompt)], chunk_tokens) == [dense_greedy(prompt, 8)]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_batch_of_sixteen_gives_each_what_it_gets_alone(ready: WarmedUp, overlap: bool) -> None:
    prompts = [random_prompt(length, seed=length) for length in (1, 2, 15, 16, 17, 31, 32, 33, 60, 100, 128, 200, 255, 256, 257, 300)]
    together = Driver(ready.runner, overlap=overlap).run([Text(prompt) for prompt in prompts])
    assert together == [Driver(ready.runner).run([Text(prompt)])[0] for prompt in prompts]
    assert together[9] == dense_greedy(prompts[9], 8)


def test_chunks_of_several_sequences_and_decodes_share_a_step(ready: WarmedUp) -> None:
    running, first, second = (Text(random_prompt(length, length)) for length in (40, 21, 17))
    driver = Driver(ready.runner)
    driver.prefill(0, running, 512)
    admitted, chunks = [], []
    for slot, text in ((1, first), (2, second)):
        admitted.append(Admitted(slot, slot, text.prompt, len(text.prompt), GREEDY))
        chunks.append(PrefillChunk(slot, slot, 0, tuple(text.prompt), driver.grow(text, len(text.prompt)), True))
    decode = driver.decode_row(0, running, 40)
    plan = driver.plan(Bucket(16, 64), admitted=tuple(admitted), decodes=(decode,), prefills=tuple(chunks))
    result = driver.collect(driver.runner.dispatch(plan))
    assert result.tokens == (dense_greedy(running.prompt, 2)[1], dense_greedy(first.prompt, 1)[0], dense_greedy(second.prompt, 1)[0])


def test_a_chunk_that_does_not_sample_answers_minus_one(ready: WarmedUp) -> None:
    text, driver = Text(random_prompt(40)), Driver(ready.runner)
    chunk = PrefillChunk(0, 0, 0, tuple(text.prompt[:16]), driver.grow(text, 16), False)
    plan = driver.plan(Bucket(0, 64), admitted=(Admitted(0, 0, text.prompt, 40, Sampling(logprobs=3)),), prefills=(chunk,))
    result = driver.collect(driver.runner.dispatch(plan))
    assert result.tokens == (-1,) and result.logprobs == (None,)


def test_the_same_seed_gives_the_same_text_whatever_the_batch(ready: WarmedUp) -> None:
    seeded = [Sampling(temperature=1.0, top_p=0.9, seed=seed, max_tokens=12) for seed in range(4)]
    seeded += [Sampling(temperature=1.3, seed=7, max_tokens=12), Sampling(temperature=0.8, top_k=5, min_p=0.02, seed=9, max_tokens=12)]
    prompt = random_prompt(50)
    alone = [Driver(ready.runner).run([Text(prompt, sampling)])[0] for sampling in seeded]
    assert Driver(ready.runner, overlap=True).run([Text(prompt, sampling) for sampling in seeded]) == alone
    assert len({tuple(text) for text in alone}) == len(alone)


def test_logprobs_are_those_of_the_dense_forward(ready: WarmedUp) -> None:
    prompt = random_prompt(30)
    text = Text(prompt, Sampling(temperature=2.0, top_k=40, logprobs=5, seed=3, max_tokens=4))
    Driver(ready.runner).run([text])
    raw = dense_logits([*prompt, *text.output])[len(prompt) - 1 : -1]
    expected = np.asarray(jax.nn.log_softmax(raw))
    for step, (token, logprob) in enumerate(zip(text.output, text.logprobs, strict=True)):
        assert logprob is not None
        assert logprob.logprob == pytest.approx(expected[step, token], abs=1e-3)
        assert [top.token_id for top in logprob.top] == np.argsort(-expected[step], kind="stable")[:5].tolist()
        assert [top.logprob for top in logprob.top] == pytest.approx(np.sort(expected[step])[::-1][:5], abs=1e-3)


@pytest.mark.parametrize("length", [1, 16, 17, 45])
def test_prompt_logprobs_cover_every_prompt_token_after_the_first(ready: WarmedUp, length: int) -> None:
    prompt = random_prompt(length)
    text = Text(prompt, Sampling(temperature=0.0, prompt_logprobs=2, max_tokens=3))
    assert Driver(ready.runner).run([text], chunk_tokens=16) == [dense_greedy(prompt, 3)]
    expected = np.asarray(jax.nn.log_softmax(dense_logits(prompt)))
    assert len(text.prompt_logprobs) == length - 1
    got = [logprob.logprob for logprob in text.prompt_logprobs]
    assert got == pytest.approx([expected[index, prompt[index + 1]] for index in range(length - 1)], abs=1e-3)
    assert all(len(logprob.top) == 2 for logprob in text.prompt_logprobs)


def test_min_tokens_keeps_end_and_stop_ids_away(ready: WarmedUp) -> None:
    prompt = random_prompt(20)
    plain = dense_greedy(prompt, 3)
    held = Sampling(temperature=0.0, max_tokens=3, min_tokens=2, stop_token_ids=tuple(plain))
    text = Driver(ready.runner).run([Text(prompt, held)])[0]
    assert not set(text[:2]) & {*plain, *CONFIG.eos_token_ids}


def test_a_slots_next_owner_inherits_no_bias(ready: WarmedUp) -> None:
    prompt = random_prompt(20)
    biased = Sampling(temperature=0.0, max_tokens=4, logit_bias={11: 1000.0})
    assert Driver(ready.runner).run([Text(prompt, biased)]) == [[11] * 4]
    assert Driver(ready.runner).run([Text(prompt)]) == [dense_greedy(prompt, 8)]


def test_a_strong_frequency_penalty_repeats_no_output_token(ready: WarmedUp) -> None:
    penalised = Sampling(temperature=0.0, max_tokens=24, frequency_penalty=1000.0)
    text = Driver(ready.runner, overlap=True).run([Text(random_prompt(20), penalised)])[0]
    assert len(set(text)) == 24


def test_a_strong_repetition_penalty_counts_prompt_tokens_that_were_never_prefilled(ready: WarmedUp) -> None:
    """As after a prefix-cache hit: the chunk starts at 16, the first page is already there."""
    prompt = list(range(50, 90))
    driver = Driver(ready.runner)
    Driver.prefill(driver, 0, shared := Text(prompt), 512)
    text = Text(prompt, Sampling(temperature=0.0, repetition_penalty=1e6, max_tokens=1), pages=list(shared.pages[:1]))
    chunk = PrefillChunk(1, 1, 16, tuple(prompt[16:]), (*text.pages, *driver.grow(text, 40)), True)
    plan = driver.plan(Bucket(0, 64), admitted=(Admitted(1, 1, prompt, 40, text.sampling),), prefills=(chunk,))
    token = driver.collect(driver.runner.dispatch(plan)).tokens[0]
    penalised = dense_logits(prompt)[-1].copy()
    seen = penalised[prompt]
    penalised[prompt] = np.where(seen > 0, seen / 1e6, seen * 1e6)
    assert token == int(np.argmax(penalised))


def test_nothing_compiles_after_warm_up(ready: WarmedUp) -> None:
    texts = [
        Text(random_prompt(30), Sampling(temperature=1.0, top_p=0.5, top_k=3, min_p=0.1, logprobs=20, max_tokens=4)),
        Text(random_prompt(70), Sampling(temperature=0.0, presence_penalty=0.5, logit_bias={3: 1.0}, min_tokens=2, max_tokens=4)),
        Text(random_prompt(30), Sampling(prompt_logprobs=0, max_tokens=2)),
    ]
    before = ready.compiles_after_ready()  # other tests compile the dense reference
    Driver(ready.runner, overlap=True).run(texts[:2])
    Driver(ready.runner).run(texts[2:], chunk_tokens=16)
    assert ready.compiles_after_ready() == before
    jax.jit(lambda x: x * 3 + LIMITS.num_pages)(np.arange(7)).block_until_ready()
    assert ready.compiles_after_ready() > before, "the counter sees a compile when there is one"
