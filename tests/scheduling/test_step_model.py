"""The step-time model: exact where time is linear, never faster for a bigger program, corrected by what it measures."""

import pytest

from engine.scheduling.plan import Bucket, DecodeRow, PrefillChunk, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import FIRST_STEPS, NO_WORK, WINDOW_STEPS, Probe, StepModel, StepTimes, Work, fit_step_times, work_of
from engine.wire import StepRecord
from tests.scheduling.driver import Driver, make_limits, make_submit

SMALL, LARGE, PREFILL = Bucket(2, 0), Bucket(8, 0), Bucket(0, 64)
TRUTH = StepTimes({SMALL: 0.010, LARGE: 0.012, PREFILL: 0.015}, 1e-4, 1e-7, 2e-4, 1e-6)


def probe(bucket: Bucket, work: Work) -> Probe:
    return Probe(bucket, work, TRUTH.seconds(bucket, work))


def fitted(empty: dict[Bucket, float] | None = None) -> StepTimes:
    decodes = tuple(probe(LARGE, Work(decode_rows=8, decode_context=8 * context)) for context in (2, 1025))
    prefills = tuple(probe(PREFILL, NO_WORK.with_chunk(64, start)) for start in (0, 1024))
    return fit_step_times(empty or dict(TRUTH.base_s), decodes, prefills)


def test_two_probes_of_a_kind_give_back_a_linear_machine() -> None:
    times = fitted()
    for found, true in (
        (times.prefill_token_s, TRUTH.prefill_token_s),
        (times.prefill_pair_s, TRUTH.prefill_pair_s),
        (times.decode_row_s, TRUTH.decode_row_s),
        (times.decode_context_s, TRUTH.decode_context_s),
    ):
        assert found == pytest.approx(true)


def test_a_small_program_that_was_disturbed_while_measured_counts_as_no_slower_than_a_larger_one() -> None:
    assert fitted({SMALL: 0.5, LARGE: 0.012, PREFILL: 0.015}).base_s == {SMALL: 0.012, LARGE: 0.012, PREFILL: 0.015}


def test_without_probes_and_with_disturbed_ones_no_term_is_negative() -> None:
    assert fit_step_times({SMALL: 0.01}, (), ()) == StepTimes({SMALL: 0.01})
    odd = (Probe(LARGE, Work(decode_rows=8, decode_context=16), 0.5), Probe(LARGE, Work(decode_rows=8, decode_context=800), 0.1))
    assert fit_step_times({LARGE: 0.9}, odd, ()) == StepTimes({LARGE: 0.9})


def test_work_counts_tokens_pairs_rows_and_what_they_read() -> None:
    plan = StepPlan(0, Bucket(2, 64), (), (DecodeRow(0, 1, 9, ()), DecodeRow(1, 2, 4, ())), (PrefillChunk(2, 3, 100, (5,) * 20, (), True),))
    assert work_of(plan) == Work(prefill_tokens=20, prefill_pairs=20 * 100 + 200, decode_rows=2, decode_context=15)


def test_the_prediction_follows_the_99th_of_100_errors_and_not_the_worst() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    for step in range(200):
        model.observe(SMALL, NO_WORK, 0.010 if step % 20 else 0.015)
    model.observe(SMALL, NO_WORK, 9.0)
    assert model.error_ratio == pytest.approx(1.5)
    assert model.predict_s(SMALL, NO_WORK) == pytest.approx(0.015)


def test_the_first_steps_correct_nothing_and_old_ones_are_forgotten() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    for _ in range(FIRST_STEPS - 1):
        model.observe(SMALL, NO_WORK, 0.020)
    assert model.error_ratio == 1.0
    model.observe(SMALL, NO_WORK, 0.020)
    assert model.error_ratio == pytest.approx(2.0)
    for _ in range(WINDOW_STEPS):
        model.observe(SMALL, NO_WORK, 0.008)
    assert model.error_ratio == pytest.approx(0.8)


def test_the_correction_has_bounds_and_a_step_without_a_time_teaches_nothing() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    for _ in range(FIRST_STEPS):
        model.observe(SMALL, NO_WORK, 0.0)
        model.observe(SMALL, NO_WORK, 1.0)
    assert (model.error_ratio, model.correction) == (pytest.approx(100.0), 2.0)


def test_a_record_has_the_prediction_and_the_model_learns_from_overlapping_steps_what_each_took() -> None:
    limits = make_limits()
    model = StepModel(StepTimes(dict.fromkeys(limits.buckets.all(), 0.010)))
    driver = Driver(limits, Scheduler(limits, model=model))
    driver.submit(make_submit(1, (5,), max_tokens=40, ignore_eos=True))
    now_ns, records = 0, list[StepRecord]()
    for _ in range(FIRST_STEPS):
        plan = driver.scheduler.plan(now_ns)
        assert plan is not None
        driver.scheduler.commit(plan, driver.runner.collect(driver.runner.dispatch(plan)), now_ns)
        dispatched_ns, now_ns = max(0, now_ns - 5_000_000), now_ns + 12_000_000  # handed over while the step before still ran
        times = {"planned_ns": dispatched_ns, "dispatched_ns": dispatched_ns, "done_ns": now_ns, "committed_ns": now_ns}
        records.append(driver.scheduler.record(plan, **times))
    assert records[0].predicted_s == pytest.approx(0.010)
    assert model.error_ratio == pytest.approx(1.2)
    assert driver.scheduler.load(0).step_model_error_ratio == model.error_ratio
