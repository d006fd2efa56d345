"""What is refused at submit, and that the message has the numbers."""

import math

import pytest

from engine.errors import InvalidSequence
from engine.scheduling.scheduler import Scheduler
from tests.scheduling.driver import make_limits, make_submit

REFUSED = [
    ((), {}, "the prompt is empty"),
    ((3, 40), {}, "prompt has token id 40: ids of this model are 0 to 39"),
    ((-1, 3), {}, "prompt has token id -1"),
    ((3,) * 64, {}, "the prompt has 64 tokens: with one token of output the context holds 63"),
    ((3,) * 60, {"max_tokens": 5}, "the prompt has 60 tokens and max_tokens is 5: together 65, and the context holds 64; at most 4 tokens"),
    ((3,), {"max_tokens": 0}, "max_tokens is 0"),
    ((3,), {"max_tokens": -4}, "max_tokens is -4"),
    ((3,), {"max_tokens": 4, "min_tokens": 5}, "min_tokens is 5: it must be between 0 and max_tokens, 4"),
    ((3,), {"logit_bias": {40: 1.0}}, "logit_bias has token id 40"),
    ((3,), {"logit_bias": {4: math.nan}}, "logit_bias has a value that is not a finite number"),
    ((3,), {"logit_bias": dict.fromkeys(range(301), 0.0)}, "logit_bias has 301 entries: at most 300"),
    ((3,), {"stop_token_ids": (2, 40)}, "stop_token_ids has token id 40"),
    ((3,), {"stop_token_ids": tuple(range(17))}, "stop_token_ids has 17 entries: at most 16"),
    ((3,), {"temperature": math.nan}, "temperature is nan"),
    ((3,), {"temperature": -0.1}, "temperature is -0.1"),
    ((3,), {"top_p": 0.0}, "top_p and repetition_penalty must be greater than 0"),
    ((3,), {"top_p": 1.1}, "top_p is 1.1"),
    ((3,), {"min_p": 2.0}, "min_p is 2.0"),
    ((3,), {"top_k": -1}, "top_k is -1"),
    ((3,), {"repetition_penalty": math.inf}, "repetition_penalty is inf"),
    ((3,), {"logprobs": 21}, "logprobs is 21"),
    ((3,), {"prompt_logprobs": -2}, "prompt_logprobs is -2"),
    ((3,), {"seed": 2**32}, "seed is 4294967296: it must fit 32 bits"),
]


@pytest.mark.parametrize(("prompt", "sampling", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_an_impossible_sequence_is_refused_and_leaves_nothing_behind(prompt: tuple[int, ...], sampling: dict, message: str) -> None:
    scheduler = Scheduler(make_limits())
    with pytest.raises(InvalidSequence) as refusal:
        scheduler.submit(make_submit(1, prompt, **sampling))
    assert str(refusal.value).startswith(message)
    assert scheduler.is_idle
    assert scheduler.load(0).last_sequence_id == 1


def test_a_sequence_that_the_pool_can_never_hold_is_refused_with_the_pages() -> None:
    scheduler = Scheduler(make_limits(num_pages=8))
    with pytest.raises(InvalidSequence, match="that needs 9 KV pages of 4 tokens, and the pool has 8 for one sequence"):
        scheduler.submit(make_submit(1, (3,) * 30, max_tokens=4))


def test_the_last_token_of_the_output_needs_no_room() -> None:
    scheduler = Scheduler(make_limits(num_pages=8))
    scheduler.submit(make_submit(1, (3,) * 30, max_tokens=3))
    assert scheduler.has_work


def test_the_longest_sequence_of_the_context_is_taken() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (3,) * 63, max_tokens=1))
    assert scheduler.has_work


def test_an_id_that_is_in_use_is_refused() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submit(1, (3,)))
    with pytest.raises(InvalidSequence, match="sequence 1 exists already"):
        scheduler.submit(make_submit(1, (4,)))
