"""How fast waiting work is taken, as admission is told."""

import pytest

from engine.scheduling.buckets import Buckets
from engine.scheduling.drain import DrainMeter, capacity_tpm, prefill_tokens_per_s
from engine.scheduling.step_model import StepTimes
from tests.scheduling.bench import Bench, submit

BUCKETS = Buckets((2, 8), (16, 64), (8,), (16, 64))
TIMES = StepTimes({bucket: 0.010 + 1e-4 * bucket.prefill_tokens for bucket in BUCKETS.all()}, decode_row_s=1e-3)


def test_only_steps_that_left_prompts_behind_teach_the_rate_of_prompts() -> None:
    meter = DrainMeter(1000.0)
    for _ in range(400):
        meter.note_step(0.02, 4, left_prompts=False)
    assert meter.report(0, 0, 0).prefill_tokens_per_s == pytest.approx(1000)
    for _ in range(800):
        meter.note_step(0.02, 10, left_prompts=True)
    report = meter.report(0, 3, 2)
    assert report.prefill_tokens_per_s == pytest.approx(500, rel=0.05)
    assert (report.free_rows, report.reserved_rows, round(report.step_s, 3)) == (3, 2, 0.02)
    meter.note_idle(60.0)
    assert meter.report(0, 0, 0).prefill_tokens_per_s == pytest.approx(1000)


def test_rows_come_free_as_fast_as_they_are_taken_and_given_back() -> None:
    meter = DrainMeter(1000.0)
    assert meter.report(8, 0, 0).rows_per_s == 0, "not known yet"
    for _ in range(100):
        meter.note_row(1.0)
        meter.note_row(3.0)
    assert meter.report(8, 0, 0).rows_per_s == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("until_s", [0.3, 0.5, 0.7, 0.9])
def test_rows_that_begin_and_end_together_have_a_rate_at_any_time(until_s: float) -> None:
    """Counting ends told none between two waves, and whoever came then was refused."""
    bench = Bench()
    bench.simulator.add([submit(number, "noisy", "slow", 0, 8, 12) for number in range(60)])
    bench.simulator.run(until_ns=round(until_s * 1e9))
    drain = bench.scheduler.load(bench.simulator.now_ns).drain
    ended = sorted(served.ended_ns for served in bench.simulator.served.values() if served.ended_ns)
    assert drain.rows_per_s == pytest.approx(len(ended) / (ended[-1] / 1e9), rel=0.35)


def test_prompts_that_wait_for_a_row_say_nothing_of_how_fast_prompts_are() -> None:
    bench = Bench()
    bench.simulator.add([submit(number, "noisy", "slow", 0, 16, 48) for number in range(24)])
    fastest = bench.scheduler.load(0).drain.prefill_tokens_per_s
    bench.simulator.run(until_ns=400_000_000)
    load = bench.scheduler.load(bench.simulator.now_ns)
    assert sum(tenant.queued_rows for tenant in load.tenants), "some wait, for rows only"
    assert load.drain.prefill_tokens_per_s > 0.9 * fastest


def test_the_model_says_how_fast_prompts_are_within_the_step_limit() -> None:
    assert prefill_tokens_per_s(BUCKETS, TIMES, 0.0) == pytest.approx(64 / 0.0164)
    assert prefill_tokens_per_s(BUCKETS, TIMES, 0.012) == pytest.approx(16 / 0.0116)
    assert prefill_tokens_per_s(BUCKETS, TIMES, 0.001) == pytest.approx(16 / 0.0116), "the smallest step runs all the same"


def test_capacity_counts_prompt_and_output_of_the_best_step() -> None:
    assert capacity_tpm(BUCKETS, TIMES, 0.0) == round(60 * 64 / 0.0164)
    cheap = StepTimes(dict.fromkeys(BUCKETS.all(), 0.01))
    assert capacity_tpm(BUCKETS, cheap, 0.0) == round(60 * (64 + 8) / 0.010)


def test_a_queue_drains_at_the_rate_that_is_reported() -> None:
    bench = Bench()
    bench.simulator.add([submit(number, "noisy", "slow", 0, 48, 2) for number in range(60)])
    bench.simulator.run(until_ns=2_000_000_000)
    load = bench.scheduler.load(bench.simulator.now_ns)
    left_s = sum(tenant.queued_tokens for tenant in load.tenants) / load.drain.prefill_tokens_per_s
    began_ns = bench.simulator.now_ns
    bench.simulator.run()
    assert left_s == pytest.approx((bench.simulator.now_ns - began_ns) / 1e9, rel=0.15)
