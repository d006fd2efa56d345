"""Sequences whose reader lags: they draw nothing, keep what nobody needs, and lose it first."""

import pytest

from engine.wire import FinishReason
from tests.scheduling.driver import Driver, make_limits, make_submit

FAIR = {"scheduling_policy": "vtc"}


def start(driver: Driver, *sequence_ids: int, prompt_tokens: int = 8, max_tokens: int = 12) -> None:
    """Submit long answers of tenants of their own, and decode the first tokens."""
    for sequence_id in sequence_ids:
        prompt = tuple(2 + (sequence_id * 5 + place) % 38 for place in range(prompt_tokens))
        driver.submit(make_submit(sequence_id, prompt, salt=f"t{sequence_id}", max_tokens=max_tokens, ignore_eos=True))
    for _ in range(4):
        step(driver)


def step(driver: Driver) -> bool:
    if driver.start_step():
        driver.finish_step()
        return True
    return False


@pytest.mark.parametrize("policy", ["fcfs", "vtc"])
def test_a_paused_sequence_draws_nothing_keeps_its_pages_and_goes_on_where_it_was(policy: str) -> None:
    driver = Driver(make_limits(scheduling_policy=policy))
    start(driver, 1, 2)
    driver.pause(1)
    tokens, pages = len(driver.outcomes[1].tokens), driver.scheduler._roster.running[0].pages.copy()
    while step(driver):
        pass
    assert driver.outcomes[2].finish is FinishReason.LENGTH and len(driver.outcomes[1].tokens) == tokens
    assert driver.scheduler._roster.running[0].pages == pages and driver.scheduler.has_work
    driver.resume(1)
    driver.run(overlap=False)
    assert driver.scheduler.load(0).preemptions["slow_reader"] == 0


def test_a_token_in_flight_still_comes_and_no_more() -> None:
    driver = Driver(make_limits())
    start(driver, 1)
    tokens = len(driver.outcomes[1].tokens)
    assert driver.start_step()
    driver.pause(1)
    driver.finish_step()
    assert len(driver.outcomes[1].tokens) == tokens + 1 and not driver.start_step()
    driver.resume(1)
    driver.run(overlap=True)


@pytest.mark.parametrize("policy", ["fcfs", "vtc"])
@pytest.mark.parametrize("shortage", [{"max_num_seqs": 4, "num_pages": 64}, {"max_num_seqs": 8, "num_pages": 16}])
def test_paused_sequences_keep_nobody_out(policy: str, shortage: dict[str, int]) -> None:
    """They hold all rows, or all pages; whoever comes gets his at once."""
    driver = Driver(make_limits(scheduling_policy=policy, enable_prefix_caching=False, **shortage))
    start(driver, 1, 2, 3, 4)
    for sequence_id in (1, 2, 3, 4):
        driver.pause(sequence_id)
    driver.submit(make_submit(9, (7,) * 20, salt="quick", max_tokens=4, ignore_eos=True))
    for _ in range(5):
        step(driver)
    assert driver.outcomes[9].finish is FinishReason.LENGTH
    assert 0 < driver.scheduler.load(0).preemptions["slow_reader"] < 4, "no more of them lost their place than was needed"
    driver.resume_all()
    driver.run(overlap=True)


def test_what_is_paused_in_the_queue_stays_out_until_it_is_resumed() -> None:
    driver = Driver(make_limits(max_num_seqs=1, **FAIR))
    start(driver, 1)
    driver.submit(make_submit(2, (5, 6, 7), salt="t2", max_tokens=2))
    driver.pause(2)
    while step(driver):
        pass
    assert driver.outcomes[1].finish is FinishReason.LENGTH and not driver.outcomes[2].events
    driver.resume(2)
    driver.run(overlap=False)


@pytest.mark.parametrize("parked", [False, True])
def test_an_abort_of_a_paused_sequence_gives_back_all_it_had(parked: bool) -> None:
    driver = Driver(make_limits(max_num_seqs=1, **FAIR))
    start(driver, 1)
    driver.pause(1)
    if parked:
        driver.submit(make_submit(2, (5, 6, 7), salt="t2", max_tokens=2))
        while step(driver):
            pass
        assert driver.scheduler._roster.parked
    driver.abort(1)
    assert driver.scheduler.is_idle
    driver.check_ended()
    driver.scheduler.check_integrity()


def test_a_resumed_sequence_has_nothing_to_make_up_for() -> None:
    driver = Driver(make_limits())
    start(driver, 1)
    driver.pause(1)
    driver.scheduler.resume(1, now_ns=77_000)
    driver.outcomes[1].is_paused = False
    assert driver.scheduler._roster.running[0].last_token_ns == 77_000
