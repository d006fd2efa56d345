"""The flight recorder: bundles by request, signal and crash; what the commands make of them."""

import asyncio
import gzip
import json
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from appliance.cli.main import cli
from appliance.settings import Settings
from appliance.telemetry.flight.bundle import Bundle, BundleError, read_bundle
from appliance.telemetry.flight.recorder import KEPT_BUNDLES, FlightRecorder, Sources, masked_settings
from appliance.telemetry.flight.trace import trace_of
from appliance.telemetry.hub import Telemetry
from engine.wire import TenantPolicy
from tests.inference import test_serve
from tests.telemetry.simulation import simulate
from tests.telemetry.test_explain import STORY, report_of

SECRET = "a-secret-of-16-characters"
SETTINGS = Settings(bootstrap_admin_token=SECRET, database_url=f"postgresql://fairlane:{SECRET}@db/fairlane")


class Clock:
    now_ns = 400_000_000

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(tmp_path: Path, clock: Clock) -> FlightRecorder:
    telemetry = Telemetry(CollectorRegistry())
    telemetry.floor_ns = 10_000_000
    for step in STORY:
        telemetry.ledger.append(step)
    telemetry.settle(report_of())
    running = report_of(request_id="req_2", over_ns=0, ended_ns=390_000_000)
    sources = Sources(SETTINGS, "1.2", lambda: [TenantPolicy(tenant_id="quiet")], lambda: [running])
    return FlightRecorder(telemetry, sources, tmp_path / "flight", clock)


@pytest.fixture
def bundle_path(recorder: FlightRecorder) -> Path:
    return asyncio.run(recorder.dump("engine lost")).path


def test_a_bundle_holds_steps_requests_metrics_and_settings_without_secrets(bundle_path: Path) -> None:
    bundle = read_bundle(bundle_path)
    assert bundle.steps == list(STORY) and [each.request_id for each in bundle.requests] == ["req_1"]
    assert [each.request_id for each in bundle.running] == ["req_2"] and bundle.policies == [TenantPolicy(tenant_id="quiet")]
    assert "fairlane_requests_total" in bundle.metrics and bundle.settings["port"] == 8000
    assert SECRET.encode() not in gzip.decompress(bundle_path.read_bytes())
    assert bundle.settings["database_url"] == "postgresql://fairlane:***@db/fairlane"
    assert masked_settings(Settings())["bootstrap_admin_token"] == ""


def test_asked_again_at_once_it_gives_the_same_file_and_later_old_ones_go(recorder: FlightRecorder, clock: Clock) -> None:
    async def dump(reason: str) -> Path:
        return (await recorder.dump(reason)).path

    first = last = asyncio.run(dump("alert"))
    assert asyncio.run(dump("alert")) == first
    for number in range(KEPT_BUNDLES + 2):
        clock.now_ns += 11_000_000_000
        last = asyncio.run(dump(f"reason {number}"))
    kept = sorted(first.parent.iterdir())
    assert len(kept) == KEPT_BUNDLES and last in kept


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"{}"), gzip.compress(b"\xff"), gzip.compress(b"[1]")[:-4]],
    ids=["empty", "no gzip", "no bundle", "no JSON", "cut short"],  # gzip puts the time into its bytes, and names of tests must not change
)
def test_what_is_no_bundle_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"x\.json\.gz"):
        read_bundle(path)
    result = CliRunner().invoke(cli, ["explain", str(path)])
    assert result.exit_code == 1 and "bundle" in result.output and "Traceback" not in result.output


def test_the_commands_explain_and_trace_a_bundle(bundle_path: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    listed = run(cli, ["explain", str(bundle_path)])
    assert listed.exit_code == 0 and "req_1" in listed.output and "req_2" in listed.output and "tenant noisy" in listed.output
    one = run(cli, ["explain", str(bundle_path), "cmpl-req_1"])
    assert "305 ms of it (79%) went to tenant noisy" in one.output and "decode_wait" in one.output
    assert json.loads(run(cli, ["explain", str(bundle_path), "req_1", "--json"]).output)["id"] == "req_1"
    assert run(cli, ["explain", str(bundle_path), "req_9"]).exit_code == 1
    out = tmp_path / "trace.json"
    assert run(cli, ["trace", str(bundle_path), "-o", str(out)]).exit_code == 0
    check_trace(json.loads(out.read_text()))


def test_a_trace_keeps_to_the_trace_event_format(recorder: FlightRecorder, bundle_path: Path) -> None:
    world = simulate(3, 60)
    bundle = read_bundle(bundle_path)
    big = Bundle(**{name: getattr(bundle, name) for name in bundle.__struct_fields__} | {"steps": world.records, "requests": world.reports})
    trace = trace_of(big)
    check_trace(trace)
    tracks = {(event["pid"], event["args"]["name"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {(1, "steps"), (2, "fast"), (2, "batch")} <= tracks
    assert len([event for event in trace["traceEvents"] if event.get("cat") == "request"]) == 61


def check_trace(trace: dict[str, Any]) -> None:
    """Fields that each phase must have; slices of a track are nested, begun asynchronous events end."""
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name", "ts"} <= event.keys() and event["ts"] >= 0
        match event["ph"]:
            case "X":
                assert event["dur"] >= 0 and isinstance(event["args"], dict)
                slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            case "b":
                begun[event["cat"], event["id"]] = event["ts"]
            case "e":
                assert begun.pop((event["cat"], event["id"])) <= event["ts"]
            case "C":
                assert all(isinstance(value, int | float) for value in event["args"].values())
            case "M":
                assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            case other:
                raise AssertionError(f"unknown phase {other}")
    assert not begun and slices
    for spans in slices.values():
        open_until: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3, "slices overlap without being nested"
            open_until.append(end)


# ---- the running server


def bundles(served: test_serve.Served) -> list[Path]:
    return sorted((served.data_dir / "flight").glob("flight-*.json.gz"))


def test_a_signal_and_a_lost_engine_make_a_bundle_and_the_command_gives_the_one_just_made(tmp_path: Path, export: Path) -> None:
    with test_serve.serving(tmp_path / "signal", export) as served:
        asked = httpx.post(served.url + "/v1/completions", json={"prompt": "x"}, headers=test_serve.HEADERS, timeout=20)
        served.process.send_signal(signal.SIGUSR1)
        test_serve.until(lambda: bool(bundles(served)), served.log)
        found = read_bundle(bundles(served)[0])
        assert found.reason == "signal" and found.find(asked.headers["x-request-id"]) is not None and found.steps
        environment = {"FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": test_serve.ADMIN}
        result = CliRunner().invoke(cli, ["dump", "--data-dir", str(served.data_dir)], env=environment)
        assert result.exit_code == 0 and str(bundles(served)[0]) in result.output, result.output
        refused = httpx.post(served.url + "/api/v1/dump", headers=test_serve.HEADERS, timeout=20)
        assert refused.status_code in (401, 403) and len(bundles(served)) == 1
    with test_serve.serving(tmp_path / "crash", export) as served:
        os.kill(served.engine_pids()[-1], signal.SIGKILL)
        test_serve.until(lambda: bool(bundles(served)), served.log)
        assert read_bundle(bundles(served)[0]).reason == "engine lost"
