"""Times on the fine grid, time of the device by tenant, the host, the sums that must hold."""

import asyncio
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from appliance.telemetry.accounting import Accounting, Sum
from appliance.telemetry.device_time import DeviceTime, shares_of
from appliance.telemetry.families import TTFT_GRID_S
from appliance.telemetry.grid import FINE_GRID_S, SLOT_S, WINDOW_SLOTS, FineHistogram, quantile_s
from appliance.telemetry.histogram import Cells
from appliance.telemetry.host import CardUse, HostMetrics, process_use
from appliance.telemetry.lane_times import LaneTimes
from engine.wire import StepRecord, WorkShare


def value(collected: object, name: str, **labels: str) -> float:
    return sum(s.value for family in collected for s in family.samples if s.name == name and labels.items() <= s.labels.items())  # type: ignore[attr-defined]


@pytest.mark.parametrize("median_s", [0.005, 0.03, 0.4, 2.0, 9.0])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_a_quantile_of_the_fine_grid_is_true_within_a_tenth(median_s: float, q: float) -> None:
    rng = random.Random(5)
    times = sorted(median_s * rng.uniform(0.9, 1.4) for _ in range(5000))
    histogram = FineHistogram(Cells(FINE_GRID_S))
    for seconds in times:
        histogram.observe(seconds, 0.0)
    assert quantile_s(histogram.cells.counts, q) == pytest.approx(times[int(q * len(times))], rel=0.10)


@pytest.mark.parametrize("median_s", [0.005, 0.02, 0.1, 0.4, 2.0, 5.0])
@pytest.mark.parametrize("spread", [0.2, 0.4, 0.7])
def test_a_tenants_p99_is_true_within_three_tenths(median_s: float, spread: float) -> None:
    """Their grid is coarse: a tenant has one for each lane."""
    rng = random.Random(5)
    times = sorted(median_s * rng.lognormvariate(0.0, spread) for _ in range(5000))
    cells = Cells(TTFT_GRID_S)
    for seconds in times:
        cells.observe(seconds)
    assert quantile_s(cells.counts, 0.99, TTFT_GRID_S) == pytest.approx(times[int(0.99 * len(times))], rel=0.30)


@given(st.lists(st.floats(0.0041, 13), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_its_rank(times: list[float], q: float) -> None:
    histogram = FineHistogram(Cells(FINE_GRID_S))
    for seconds in times:
        histogram.observe(seconds, 0.0)
    exact = sorted(times)[math.ceil(len(times) * q) - 1]
    found = quantile_s(histogram.cells.counts, q)
    assert found is not None and found / exact < 1.11 and exact / found < 1.11


def test_no_values_have_no_quantile_and_what_is_beyond_the_grid_has_its_last_bound() -> None:
    histogram = FineHistogram(Cells(FINE_GRID_S))
    assert quantile_s(histogram.cells.counts, 0.5) is None
    histogram.observe(1e6, 0.0)
    assert quantile_s(histogram.cells.counts, 0.5) == FINE_GRID_S[-1]


def test_the_window_forgets_after_five_minutes_and_the_counts_do_not() -> None:
    histogram = FineHistogram(Cells(FINE_GRID_S))
    histogram.observe(0.01, 3.0)
    histogram.observe(0.02, 3.0 + SLOT_S)
    assert [sum(histogram.recent(now_s)) for now_s in (3.0 + SLOT_S, WINDOW_SLOTS * SLOT_S, 1 + (WINDOW_SLOTS + 1) * SLOT_S)] == [2, 1, 0]
    assert sum(histogram.cells.counts) == 2


def test_lanes_show_recent_quantiles_and_the_slow_request_as_exemplar() -> None:
    lanes = LaneTimes(CollectorRegistry(), clock_s=lambda: 100.0, wall_s=lambda: 5.0)
    lanes.bind("m", "none", "cpu")
    for _ in range(99):
        lanes.observe_ttft("fast", 0.05)
    lanes.observe_ttft("fast", 3.0, slow={"request_id": "req_slow"})
    lanes.observe_ttft("none", 3.0)
    lanes.observe_gap("slow", 0.02)
    assert lanes.ttft("fast").count == 100 and lanes.ttft("fast").p50 == pytest.approx(0.05, rel=0.1)
    assert lanes.ttft("fast").p999 == pytest.approx(3.0, rel=0.1) and lanes.ttft("batch").p99 is None
    assert lanes.inter_token("slow").count == 1
    buckets = [sample for histogram in lanes.metrics for family in histogram.collect() for sample in family.samples if sample.exemplar]
    assert [sample.exemplar.labels for sample in buckets if sample.exemplar] == [{"request_id": "req_slow"}]


def step(*shares: WorkShare) -> StepRecord:
    return StepRecord(1, 0, 0, 0, 0, "d8", 1, 0, 0, shares)


def test_a_step_is_shared_by_what_each_tenant_computed_and_read() -> None:
    shares = (WorkShare(1, "a", 1, 0, 512), WorkShare(2, "b", 0, 6, 0), WorkShare(3, "a", 0, 0, 0))
    assert shares_of(step(*shares)) == {"a": 0.25, "b": 0.75}
    assert shares_of(step()) == {}
    time = DeviceTime(lambda tenant: tenant if tenant == "a" else "other")
    time.bind("m", "none", "cpu")
    time.note_step(step(*shares), 2.0)
    time.note_step(step(*shares), 2.0)
    assert value(time.collect(), "fairlane_device_seconds_total", tenant="a") == 1.0
    assert value(time.collect(), "fairlane_device_seconds_total", tenant="other") == 3.0
    lost_for_a = {"interrupted_by": 7, "interrupted_for": "a", "lost_tokens": 3.0}
    time.note_step(msgspec.structs.replace(step(), **lost_for_a), 0.5)
    assert value(time.collect(), "fairlane_device_seconds_total", tenant="a") == 1.5
    time.note_step(msgspec.structs.replace(step(WorkShare(2, "b", 1, 0, 0)), **lost_for_a), 1.0)  # b's decode was done
    assert value(time.collect(), "fairlane_device_seconds_total", tenant="a") == 2.25
    time.forget(["a"])
    assert value(time.collect(), "fairlane_device_seconds_total") == 3.25


def test_a_process_uses_what_the_system_says_it_does() -> None:
    use = process_use(os.getpid())
    assert use is not None and use.resident_bytes > 20e6
    assert use.cpu_s == pytest.approx(sum(os.times()[:2]), abs=0.2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert process_use(ended.pid) is None and process_use(None) is None


class OneCard:
    def read(self) -> list[CardUse]:
        return [CardUse("0 NVIDIA H200", 0.5, 10, 100)]


def test_cards_and_price_are_shown() -> None:
    host = HostMetrics(CollectorRegistry(), OneCard(), 3.5)
    labels = {"gpu": "0 NVIDIA H200"}
    names = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes")
    assert [value(host.collect(), f"fairlane_{name}", **labels) for name in names] == [0.5, 10, 100]
    assert value(host.collect(), "fairlane_device_hour_price") == 3.5


def test_processor_time_of_the_engine_goes_on_over_a_restart(tmp_path: Path) -> None:
    host = HostMetrics(CollectorRegistry(), OneCard(), 0.0)
    engines = [
        subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); print(1, flush=True); input()"], stdin=-1, stdout=-1) for _ in "ab"
    ]
    seen: list[float] = []
    for engine in engines:
        assert engine.stdout is not None
        engine.stdout.readline()
        host.engine_pids = lambda pid=engine.pid: [pid]
        seen.append(value(host.collect(), "fairlane_process_cpu_seconds_total", process="engine"))
    for engine in engines:
        engine.kill()
        engine.communicate()
    assert 0 < seen[0] < seen[1]


async def test_the_loops_lag_is_measured() -> None:
    host = HostMetrics(CollectorRegistry(), OneCard(), 0.0)
    watch = asyncio.create_task(host.watch_loop())
    async with asyncio.timeout(10):
        while not value(host.metrics[0].collect(), "fairlane_event_loop_lag_seconds_count"):  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0.01)
    watch.cancel()


def test_a_sum_that_does_not_hold_is_counted_each_time_and_said_once_a_minute() -> None:
    now_s = [0.0]
    accounting = Accounting(CollectorRegistry(), lambda: now_s[0])
    sums = {"pages": Sum(5, 5, "as it should be"), "slots": Sum(1, 0, "one too many")}
    accounting.checks = {"pages": lambda: sums["pages"], "slots": lambda: sums["slots"], "requests": lambda: None}
    with structlog.testing.capture_logs() as logs:
        assert [accounting.check() for _ in range(3)] == [["slots"]] * 3
        now_s[0] = 61.0
        accounting.check()
    assert value(accounting.mismatches.collect(), "fairlane_accounting_mismatch_total", check="slots") == 4
    assert value(accounting.mismatches.collect(), "fairlane_accounting_mismatch_total", check="pages") == 0
    assert [(log["event"], log["found"], log["expected"]) for log in logs] == [("accounting_mismatch", 1, 0)] * 2
