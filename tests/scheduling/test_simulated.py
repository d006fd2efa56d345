"""The simulated device notices every plan that contradicts its cache."""

import pytest
from msgspec.structs import replace

from engine.scheduling.plan import Admitted, Bucket, DecodeRow, PrefillChunk, StepPlan, StepResult
from engine.scheduling.simulated import CacheMixup, SimulatedRunner, SimulatedTicket
from engine.wire import Sampling

PROMPT = (5, 6, 7, 8, 9)


def make_runner() -> SimulatedRunner:
    return SimulatedRunner(num_pages=8, page_size=4, num_slots=2, vocab_size=40)


def prefill(slot: int = 0, pages: tuple[int, ...] = (0, 1), prompt: tuple[int, ...] = PROMPT, seed: int = 0) -> StepPlan:
    admitted = Admitted(slot, slot + 1, prompt, len(prompt), Sampling(seed=seed, logprobs=0))
    chunk = PrefillChunk(slot, slot + 1, 0, prompt, pages, samples=True)
    return StepPlan(0, Bucket(0, 16), (admitted,), (), (chunk,))


def decode(position: int, *, slot: int = 0, new_pages: tuple[int, ...] = ()) -> StepPlan:
    return StepPlan(1, Bucket(2, 0), (), (DecodeRow(slot, slot + 1, position, new_pages),), ())


def result_of(runner: SimulatedRunner, ticket: SimulatedTicket) -> StepResult:
    result = runner.collect(ticket)
    assert isinstance(result, StepResult)
    return result


def run(runner: SimulatedRunner, *plans: StepPlan) -> list[int]:
    return [token for plan in plans for token in result_of(runner, runner.dispatch(plan)).tokens]


def test_tokens_depend_on_context_and_seed_alone() -> None:
    there = run(make_runner(), prefill(), decode(5))
    elsewhere = make_runner()
    run(elsewhere, prefill(slot=0, prompt=(1, 2, 3)))
    assert run(elsewhere, prefill(slot=1, pages=(7, 3)), decode(5, slot=1)) == there
    assert run(make_runner(), prefill(seed=1), decode(5)) != there
    assert run(make_runner(), prefill(prompt=(5, 6, 7, 8, 10)), decode(5)) != there


def test_chunks_give_the_token_of_the_whole_prompt() -> None:
    whole = prefill()
    first = replace(whole.prefills[0], tokens=PROMPT[:3], new_pages=(2,), samples=False)
    second = replace(whole.prefills[0], start=3, tokens=PROMPT[3:], new_pages=(5,))
    in_chunks = run(make_runner(), replace(whole, prefills=(first,)), replace(whole, admitted=(), prefills=(second,)))
    assert in_chunks == [-1, *run(make_runner(), whole)]


def test_a_page_that_somebody_else_overwrote_is_noticed() -> None:
    runner = make_runner()
    run(runner, prefill(slot=0, pages=(0, 1)), prefill(slot=1, pages=(1, 2), prompt=(1, 2, 3, 4, 5)))
    with pytest.raises(CacheMixup, match="sequence 1 reads page 1 as its positions 4 to 5: it holds others"):
        run(runner, decode(5))


def test_a_cached_page_with_other_tokens_is_noticed() -> None:
    runner = make_runner()
    run(runner, prefill(pages=(0, 1)))
    other = prefill(slot=1, pages=(0, 2), prompt=(1, 2, 3, 4, 5))
    with pytest.raises(CacheMixup, match="reads page 0"):
        run(runner, replace(other, prefills=(replace(other.prefills[0], start=4, tokens=(5,)),)))


BROKEN = {
    "a position without a page": decode(8),
    "a token drawn twice": decode(6),
    "a position behind the known tokens": decode(9, new_pages=(2, 3)),
    "another sequence's slot": StepPlan(1, Bucket(2, 0), (), (DecodeRow(0, 9, 8, (2,)),), ()),
    "a page that does not exist": decode(8, new_pages=(8,)),
    "too small a bucket": StepPlan(1, Bucket(0, 16), (), (DecodeRow(0, 1, 8, (2,)),), ()),
    "no rows": StepPlan(1, Bucket(2, 0), (), (), ()),
    "two rows in one slot": StepPlan(1, Bucket(2, 0), (), (DecodeRow(0, 1, 8, (2,)), DecodeRow(0, 1, 8, ())), ()),
}
"""After a prompt of 5 tokens and decodes at 5, 6 and 7 the right next plan is `decode(8, new_pages=(2,))`."""


def runner_at_position_8() -> SimulatedRunner:
    runner = make_runner()
    run(runner, prefill(), decode(5), decode(6), decode(7))
    return runner


def test_the_right_plan_is_accepted() -> None:
    assert len(run(runner_at_position_8(), decode(8, new_pages=(2,)))) == 1


@pytest.mark.parametrize("plan", BROKEN.values(), ids=BROKEN)
def test_a_broken_plan_is_noticed(plan: StepPlan) -> None:
    with pytest.raises(CacheMixup):
        runner_at_position_8().dispatch(plan)


def test_results_come_in_order_and_at_most_two_steps_are_in_flight() -> None:
    runner = make_runner()
    first, second = runner.dispatch(prefill()), runner.dispatch(decode(5))
    with pytest.raises(CacheMixup, match="too many steps in flight"):
        runner.dispatch(decode(6))
    with pytest.raises(CacheMixup, match="in the order they were dispatched"):
        runner.collect(second)
    assert result_of(runner, first).tokens != ()
