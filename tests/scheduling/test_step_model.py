"""The step-time model: exact where time is linear, never faster for a bigger program, corrected by what it measures."""

from dataclasses import replace

import pytest

from engine.scheduling.plan import Bucket, DecodeRow, PrefillChunk, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import (
    FIRST_ERROR_STEPS,
    FIRST_STEPS,
    NEWEST_STEPS,
    NO_WORK,
    WINDOW_STEPS,
    Probe,
    StepModel,
    StepTimes,
    Work,
    fit_step_times,
    work_of,
)
from engine.wire import StepRecord
from tests.scheduling.driver import Driver, make_limits, make_submit

SMALL, LARGE, PREFILL = Bucket(2, 0), Bucket(8, 0), Bucket(0, 64)
TRUTH = StepTimes({SMALL: 0.010, LARGE: 0.010, PREFILL: 0.015}, 1e-4, 1e-7, 2e-4, 1e-6)


def probe(bucket: Bucket, work: Work) -> Probe:
    return Probe(bucket, work, TRUTH.seconds(bucket, work))


def full(bucket: Bucket, context: int = 0, part: float = 1.0) -> Probe:
    tokens = round(part * bucket.prefill_tokens)
    work = NO_WORK.with_chunk(tokens, context) if tokens else NO_WORK
    for _ in range(round(part * bucket.decode_rows)):
        work = work.with_decode(context + 1)
    return probe(bucket, work)


def fitted(**slower: float) -> StepTimes:
    probes = [replace(full(bucket), seconds=slower.get(str(bucket), full(bucket).seconds)) for bucket in TRUTH.base_s]
    halves = [full(LARGE, part=0.5), full(PREFILL, part=0.5)]
    return fit_step_times(probes, halves, [full(LARGE, 1024), full(PREFILL, 1024)])


def test_full_steps_and_half_ones_give_back_a_linear_machine() -> None:
    times = fitted()
    for found, true in (
        (times.prefill_token_s, TRUTH.prefill_token_s),
        (times.prefill_pair_s, TRUTH.prefill_pair_s),
        (times.decode_row_s, TRUTH.decode_row_s),
        (times.decode_context_s, TRUTH.decode_context_s),
    ):
        assert found == pytest.approx(true)
    assert times.base_s == pytest.approx(dict(TRUTH.base_s))


def test_of_a_step_its_decodes_keep_what_they_take_alone_in_the_smallest_program() -> None:
    mixed, decodes = Bucket(8, 64), Work(decode_rows=2, decode_context=1000)
    times = replace(TRUTH, base_s={**TRUTH.base_s, SMALL: 0.008, mixed: 0.016})
    work = decodes.with_chunk(64, 0)
    alone_s, whole_s = 0.008 + 2 * 2e-4 + 1000 * 1e-6, 0.016 + 64 * 1e-4 + 64 * 32 * 1e-7 + 2 * 2e-4 + 1000 * 1e-6
    assert times.kept_share(mixed, work) == pytest.approx(alone_s / whole_s)
    assert times.kept_share(PREFILL, NO_WORK.with_chunk(64, 0)) == 0 and times.kept_share(SMALL, decodes) == 1


def test_a_small_program_that_was_disturbed_while_measured_counts_as_no_slower_than_a_larger_one() -> None:
    times = fitted(d2=0.5)
    assert times.seconds(SMALL, full(SMALL).work) == pytest.approx(full(LARGE).seconds)


def rows(bucket: Bucket, count: int, seconds: float) -> Probe:
    return Probe(bucket, Work(decode_rows=count), seconds)


def test_where_the_first_rows_cost_most_a_small_step_takes_what_it_took() -> None:
    """Weights are read for one row as for eight: a full step of a small program says so, an empty one computes nothing."""
    times = fit_step_times([rows(SMALL, 2, 0.010), rows(LARGE, 8, 0.013)], [rows(LARGE, 4, 0.011)], ())
    assert times.decode_row_s == pytest.approx(0.0005)
    assert times.seconds(SMALL, Work(decode_rows=2)) == pytest.approx(0.010)
    assert times.seconds(LARGE, Work(decode_rows=8)) == pytest.approx(0.013)
    assert times.floor_s == pytest.approx(times.seconds(SMALL, Work(decode_rows=1))) == pytest.approx(0.0095)


def test_where_padding_is_computed_a_row_costs_nothing() -> None:
    full_steps = [rows(SMALL, 2, 0.010), rows(LARGE, 8, 0.013)]
    assert fit_step_times(full_steps, [rows(LARGE, 4, 0.0125)], ()) == StepTimes({SMALL: 0.010, LARGE: 0.013})


def test_a_row_costs_the_median_of_what_programs_say_and_of_one_program_what_half_of_it_says() -> None:
    """d4 was disturbed."""
    sizes = {2: 0.010, 4: 0.031, 8: 0.013, 16: 0.017, 32: 0.025}
    full_steps = [rows(Bucket(size, 0), size, seconds) for size, seconds in sizes.items()]
    assert fit_step_times(full_steps, [rows(Bucket(32, 0), 16, 0.017)], ()).decode_row_s == pytest.approx(0.0005)
    assert fit_step_times(full_steps[-1:], [rows(Bucket(32, 0), 16, 0.017)], ()).decode_row_s == pytest.approx(0.0005)


def test_programs_that_the_limits_cut_alike_say_nothing_of_a_row() -> None:
    """There are 4 slots, so d8 to d64 were full with 4 rows; they differ by noise alone."""
    seconds = {2: 0.0110, 4: 0.0120, 8: 0.0121, 16: 0.0120, 32: 0.0123, 64: 0.0124}
    full_steps = [rows(Bucket(size, 0), min(size, 4), value) for size, value in seconds.items()]
    times = fit_step_times(full_steps, [rows(Bucket(64, 0), 2, 0.0113)], ())
    assert times.decode_row_s == pytest.approx(0.00055, rel=0.2)


def test_without_other_probes_and_with_disturbed_ones_no_term_is_negative() -> None:
    assert fit_step_times([Probe(SMALL, NO_WORK, 0.01)], (), ()) == StepTimes({SMALL: 0.01})
    work = Work(decode_rows=8, decode_context=16)
    odd = [Probe(LARGE, Work(decode_rows=4, decode_context=8), 0.95)], [Probe(LARGE, Work(decode_rows=8, decode_context=800), 0.1)]
    assert fit_step_times([Probe(LARGE, work, 0.9)], *odd) == StepTimes({LARGE: 0.9})


def test_work_counts_tokens_pairs_rows_and_what_they_read() -> None:
    plan = StepPlan(0, Bucket(2, 64), (), (DecodeRow(0, 1, 9, ()), DecodeRow(1, 2, 4, ())), (PrefillChunk(2, 3, 100, (5,) * 20, (), True),))
    assert work_of(plan) == Work(prefill_tokens=20, prefill_pairs=20 * 100 + 200, decode_rows=2, decode_context=15)


def observe(model: StepModel, bucket: Bucket, *seconds: float) -> None:
    for each in seconds:
        model.observe(bucket, NO_WORK, each)


def test_the_error_is_the_99th_of_100_and_not_the_worst() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    observe(model, SMALL, *(0.010 if step % 20 else 0.013 for step in range(200)), 9.0)
    assert 1.2 < model.error_ratio < 1.35


def test_the_likely_time_leaves_out_a_tenth_of_the_delays_and_adds_the_rest_whatever_the_step() -> None:
    model = StepModel(StepTimes({SMALL: 0.010, LARGE: 0.100}))
    observe(model, SMALL, *(0.010 if step % 20 else 0.030 for step in range(200)))
    assert model.bounds_s(SMALL, NO_WORK)[1] < 1.1 * 0.010
    observe(model, SMALL, *(0.010 if step % 5 else 0.014 for step in range(200)))
    assert 0.012 < model.bounds_s(SMALL, NO_WORK)[1] < 0.015
    assert model.bounds_s(LARGE, NO_WORK)[1] < 0.105


def test_what_small_steps_are_late_by_does_not_make_large_ones_twice_as_long() -> None:
    """A chunk of 60 ms that may take 75 fits, although a step of 10 ms took 20 now and then."""
    model = StepModel(StepTimes({SMALL: 0.010, LARGE: 0.060}))
    observe(model, SMALL, *(0.010 if step % 20 else 0.020 for step in range(400)))
    assert 0.019 < model.predict_s(SMALL, NO_WORK) < 0.021 and 0.065 < model.predict_s(LARGE, NO_WORK) < 0.072
    assert 1.8 < model.error_ratio < 2.1
    observe(model, LARGE, *[0.060] * WINDOW_STEPS)
    observe(model, SMALL, 0.020)
    assert model.error_ratio < 1.1, "among large steps so much is no error to speak of"


def test_the_first_steps_correct_nothing_and_old_ones_are_forgotten() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    observe(model, SMALL, *[0.010] * (FIRST_STEPS - 2), 0.030)
    assert model.delay_s == 0.0
    observe(model, SMALL, 0.030)
    assert model.delay_s > 0.015 and model.error_ratio == 1.0, "of so few there is no 99th"
    observe(model, SMALL, *[0.010] * FIRST_ERROR_STEPS, 0.030)
    assert model.error_ratio > 2.0
    observe(model, SMALL, *[0.010] * WINDOW_STEPS)
    assert model.error_ratio == pytest.approx(1.0, abs=0.01)


def test_what_a_program_takes_on_average_is_learned_and_is_no_error() -> None:
    model = StepModel(StepTimes({SMALL: 0.010, LARGE: 0.010}))
    for _ in range(2 * WINDOW_STEPS):
        observe(model, SMALL, 0.007)
        observe(model, LARGE, 0.015)
    assert (model.predict_s(SMALL, NO_WORK), model.predict_s(LARGE, NO_WORK)) == pytest.approx((0.007, 0.015), rel=0.05)
    assert model.error_ratio == pytest.approx(1.0, abs=0.05)


def test_a_burst_of_other_processes_is_forgotten_a_few_steps_after_it_ended() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    observe(model, SMALL, *[0.010] * 200)
    calm_s = model.predict_s(SMALL, NO_WORK)
    observe(model, SMALL, *[0.025] * 40)
    assert model.predict_s(SMALL, NO_WORK) > 2 * calm_s
    observe(model, SMALL, *[0.010] * (NEWEST_STEPS + 10))
    assert model.error_ratio > 1.3  # the metric still shows it
    assert model.predict_s(SMALL, NO_WORK) < 1.1 * calm_s


def test_a_program_that_was_slow_when_it_was_seen_last_gets_its_next_chance() -> None:
    model = StepModel(StepTimes({SMALL: 0.010, LARGE: 0.010}))
    observe(model, LARGE, *[0.020] * 50)
    observe(model, SMALL, *[0.010] * NEWEST_STEPS)
    assert model.predict_s(LARGE, NO_WORK) > 0.015
    observe(model, SMALL, *[0.010] * 2000)
    assert model.predict_s(LARGE, NO_WORK) < 0.011


def test_the_correction_has_bounds_and_a_step_without_a_time_teaches_nothing() -> None:
    model = StepModel(StepTimes({SMALL: 0.010}))
    observe(model, SMALL, *(seconds for _ in range(FIRST_STEPS) for seconds in (0.0, 1.0)))
    assert model.delay_s > 0.5 and model.predict_s(SMALL, NO_WORK) <= 0.010 * 2.0 * 2.0


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
    assert model.delay_s == pytest.approx(0.002)  # each took 12 ms where 10 were expected
    assert driver.scheduler.load(0).step_model_error_ratio == model.error_ratio
