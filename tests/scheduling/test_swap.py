"""Swapping to host memory, expected outputs, and contiguous reservation: fact by fact."""

import pytest

from engine.scheduling.moves import PendingMoves
from engine.scheduling.output_lengths import OutputLengths
from engine.scheduling.plan import NO_MOVES
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import StepModel, StepTimes
from engine.scheduling.swap import recompute_s, swap_is_cheaper
from tests.scheduling.driver import Driver, make_limits, make_submit


def pressed(**changes) -> Driver:
    """Two long outputs in a pool that holds one and a half."""
    limits = make_limits(**{"num_pages": 16, "enable_prefix_caching": False, "swap_pages": 16, **changes})
    driver = Driver(limits)
    for sequence_id in (1, 2):
        driver.submit(make_submit(sequence_id, (4 + sequence_id,) * 16, max_tokens=28, ignore_eos=True))
    return driver.run(overlap=True)


def test_a_preempted_sequence_comes_back_from_the_host_and_computes_one_token_again() -> None:
    driver = pressed()
    load = driver.scheduler.load(0)
    assert load.preemptions == {"memory": 0, "swap": 1, "forced": 0, "slow_reader": 0}
    assert load.swapped_out_pages == load.swapped_in_pages > 4
    assert load.recomputed_tokens <= 2  # what was in flight when it lost its pages
    prefills = [len(chunk.tokens) for plan in driver.plans for chunk in plan.prefills if chunk.sequence_id == 2]
    assert prefills == [16, 1]
    assert sum(record.swapped_out_pages for record in driver.records) == load.swapped_out_pages


@pytest.mark.parametrize("swap_pages", [0, 4])
def test_without_room_on_the_host_it_is_computed_again(swap_pages: int) -> None:
    load = pressed(swap_pages=swap_pages).scheduler.load(0)
    assert load.preemptions == {"memory": 1, "swap": 0, "forced": 0, "slow_reader": 0}
    assert (load.swapped_out_pages, load.recomputed_tokens > 16) == (0, True)


def test_pages_that_the_prefix_cache_still_has_are_not_brought_back() -> None:
    limits = make_limits(swap_pages=64, preempt_every_steps=4)
    driver = Driver(limits)
    driver.submit(make_submit(1, (5,) * 16, max_tokens=6, ignore_eos=True))
    driver.run(overlap=False)
    load = driver.scheduler.load(0)
    assert load.swapped_out_pages > load.swapped_in_pages  # the prompt's four pages were found


def test_an_abort_in_the_queue_frees_its_host_pages_and_undoes_what_was_pending() -> None:
    driver = Driver(make_limits(swap_pages=64, preempt_every_steps=2, max_num_seqs=1))
    driver.submit(make_submit(1, (5,) * 16, max_tokens=9, ignore_eos=True))
    driver.start_step()
    driver.finish_step()
    driver.start_step()
    driver.finish_step()
    driver.submit(make_submit(2, (6,) * 16, max_tokens=2, ignore_eos=True))
    driver.scheduler._preempt_if_forced()
    assert driver.scheduler._sequences[1].host_pages
    driver.abort(1)
    driver.run(overlap=False)  # the driver counts host pages after each act
    assert driver.scheduler._roster.memory.moves.take() == NO_MOVES


def test_host_pages_that_are_read_in_a_step_are_nobodys_before_the_next_one() -> None:
    """What leaves in a step is written before what returns in it is read."""
    moves = PendingMoves(2)
    (host_page,) = moves.swap_out(1, [7])
    moves.take()
    moves.swap_in(host_page, 3)
    moves.return_host([host_page])
    assert moves.swap_out(2, [4, 5]) == []
    assert moves.take().swapped_in == ((host_page, 3),)
    assert len(moves.swap_out(2, [4, 5])) == 2


def test_the_cheaper_way_is_taken() -> None:
    limits = make_limits()
    for swap_page_s, is_cheaper in ((0.0005, True), (0.1, False)):  # 40 tokens take 10 ms
        model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.010), swap_page_s=swap_page_s))
        assert recompute_s(model, limits.buckets, 40) == pytest.approx(0.010)
        assert swap_is_cheaper(model, limits.buckets, 40, 10) is is_cheaper
    assert swap_is_cheaper(None, limits.buckets, 40, 10)


# ---- expected outputs -----------------------------------------------------------------------------------------------


def test_nothing_is_expected_of_a_tenant_before_a_few_outputs_ended() -> None:
    lengths = OutputLengths()
    for tokens in (10, 20, 30):
        lengths.note("a", tokens)
    assert lengths.expected("a", 0) is None
    lengths.note("b", 40)
    assert lengths.expected("a", 0) == 40  # of all tenants together


def test_four_of_five_outputs_that_got_so_far_end_within_what_is_expected() -> None:
    lengths = OutputLengths()
    for tokens in range(1, 11):
        lengths.note("a", tokens)
        lengths.note("b", 10 * tokens)
    assert [lengths.expected("a", produced) for produced in (0, 5, 9, 10)] == [8, 9, 10, None]
    assert lengths.expected("b", 0) == 80


def test_old_outputs_are_forgotten() -> None:
    lengths = OutputLengths()
    for tokens in (*[500] * 64, *[5] * 64):
        lengths.note("a", tokens)
    assert lengths.expected("a", 0) == 5


def started_together(output_tokens: int) -> int:
    """Rows that run at once, of 8 requests whose tenant's outputs were so long, in a pool of 32 pages; max_tokens is 40."""
    driver = Driver(make_limits(num_pages=32, max_num_seqs=8, enable_prefix_caching=False, max_num_batched_tokens=128))
    for _ in range(8):
        driver.scheduler._roster.outputs.note("a", output_tokens)
    for sequence_id in range(1, 9):
        driver.submit(make_submit(sequence_id, (4 + sequence_id,) * 8, max_tokens=40, ignore_eos=True))
    for _ in range(4):
        driver.start_step()
        driver.finish_step()
    rows = driver.scheduler.load(0).running["fast"]
    driver.run(overlap=True)
    return rows


def test_long_outputs_are_given_room_before_they_start_and_short_ones_share_the_pool() -> None:
    assert (started_together(40), started_together(16), started_together(4)) == (2, 5, 8)


# ---- contiguous reservation -----------------------------------------------------------------------------------------


def test_contiguous_sequences_hold_the_longest_context_and_share_nothing() -> None:
    driver = Driver(make_limits(num_pages=64, max_num_seqs=8, contiguous_kv=True, enable_prefix_caching=False))
    for sequence_id in range(1, 9):
        submit = make_submit(sequence_id, (5,) * 8, max_tokens=8, ignore_eos=True, sibling_of=1 if sequence_id > 1 else None)
        driver.submit(submit)
    driver.start_step()
    driver.finish_step()
    for _ in range(3):
        driver.start_step()
        load = driver.scheduler.load(0)
        assert (load.running["fast"], load.pages_used) == (4, 64)  # 64 tokens each, whatever they need
        driver.finish_step()
    driver.run(overlap=True)
    assert driver.scheduler.load(0).copied_pages == 0


def test_a_scheduler_predicts_what_swapping_adds_to_a_step() -> None:
    limits = make_limits(num_pages=16, enable_prefix_caching=False, swap_pages=16)
    model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.010), swap_page_s=1e-4))
    driver = Driver(limits, Scheduler(limits, model=model))
    for sequence_id in (1, 2):
        driver.submit(make_submit(sequence_id, (4 + sequence_id,) * 16, max_tokens=28, ignore_eos=True))
    driver.run(overlap=True)
    swapping = [record for record in driver.records if record.swapped_out_pages]
    plain = min(record.predicted_s for record in driver.records if record.bucket == swapping[0].bucket and not record.swapped_out_pages)
    assert swapping[0].predicted_s - plain == pytest.approx(swapping[0].swapped_out_pages * 1e-4 / 2, rel=0.5)
