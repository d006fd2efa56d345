"""Lanes on engine replicas of their own: who serves what, and what one replica's death does to the others."""

import os
import shutil
import signal
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from appliance.domain.admission.gate import Gate, Gates, GateState
from appliance.replicas import ONE_FOR_ALL, Replica, config_of, read_replicas
from appliance.settings import SettingsError, load_settings
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.ledger import StepLedger
from appliance.telemetry.loads import sum_of
from engine.wire import Drain, EngineConfig, Load, StepDone, StepRecord, TenantLoad, WorkShare
from tests.inference.test_serve import HEADERS, Served, serving, until
from tests.telemetry.test_explain import report_of

INTERACTIVE, BATCH = TWO = read_replicas("fast,slow;batch")
LANES_OF = {replica.name: replica.lanes for replica in TWO}
LOAD = Load(5, 7, {"fast": 1}, {"fast": 2}, 40, 5, 3, 2, tenants=(TenantLoad("a", "fast", 1, 2, 10),), preemptions={"memory": 1})
BATCH_LOAD = Load(
    9, 3, {"batch": 4}, {"batch": 0}, 0, 50, 30, 20, tenants=(TenantLoad("a", "batch", 4, 0, 0),), preemptions={"memory": 2, "swap": 1}
)


def step(number: int, begin_ns: int, end_ns: int, tenant: str, engine: str = "0") -> StepRecord:
    return StepRecord(number, begin_ns, begin_ns, end_ns, end_ns, "d4", 1, 0, 0, (WorkShare(1, tenant, 1, 0, 8),), engine=engine)


def test_each_group_of_lanes_is_a_replica_named_by_them() -> None:
    assert list(TWO) == [Replica("fast-slow", ("fast", "slow")), Replica("batch", ("batch",))]
    assert read_replicas(" slow ; batch , fast ") == (Replica("slow", ("slow",)), Replica("batch-fast", ("batch", "fast")))
    assert read_replicas("") == read_replicas("batch,fast,slow") == ONE_FOR_ALL


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fast;batch", "lane 'slow' is named 0 times"),
        ("fast,slow;batch,fast", "lane 'fast' is named 2 times"),
        ("fast,slow,cheap;batch", "'cheap' is no lane"),
        ("fast,slow;batch;", "a lane's name is missing"),
    ],
)
def test_every_lane_must_be_named_once(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"{why}; name each of fast, slow and batch once.*--engine-lanes"):
        load_settings({"engine_lanes": text}, {})


def test_an_engine_of_batch_alone_yields_and_each_replica_exports_to_its_own_folder() -> None:
    config = EngineConfig(export_dir="/data/model")
    assert config_of(ONE_FOR_ALL[0], config) == config
    interactive, batch = (config_of(replica, config) for replica in TWO)
    assert interactive == msgspec.structs.replace(config, export_dir="/data/model-fast-slow")
    assert batch == msgspec.structs.replace(config, export_dir="/data/model-batch", nice=15)
    assert config_of(BATCH, msgspec.structs.replace(config, nice=12)).nice == 19


def test_the_gates_open_when_all_replicas_are_ready_and_then_stay_open_while_one_is() -> None:
    parts = {replica: Gate() for replica in TWO}
    gates = Gates(parts)
    assert gates.condition.state is GateState.WARMING_UP
    parts[INTERACTIVE].open()
    parts[BATCH].warm_up("load", 50, "load 1 of 2")
    assert (gates.condition.state, gates.condition.phase, gates.condition.percent) == (GateState.WARMING_UP, "load", 75)
    parts[BATCH].open()
    assert gates.condition.state is GateState.OPEN and gates.down == {}
    parts[BATCH].lose_engine("it was killed")
    assert gates.condition.state is GateState.OPEN and set(gates.down) == {"batch"}
    parts[INTERACTIVE].lose_engine("it was killed, too")
    assert gates.condition.state is GateState.ENGINE_DOWN
    gates.drain()
    parts[BATCH].open()
    assert gates.condition.state is GateState.DRAINING


def test_the_reports_of_two_engines_add_up() -> None:
    assert sum_of([]) is None and sum_of([LOAD]) is LOAD
    both = sum_of(
        [msgspec.structs.replace(LOAD, drain=Drain(10.0, 1.0, 0.1, 2, 1)), msgspec.structs.replace(BATCH_LOAD, drain=Drain(5.0, 2.0))]
    )
    assert both is not None
    assert (both.running, both.queued["fast"], both.oldest_queued_ns) == ({"fast": 1, "batch": 4}, 2, 40)
    assert (both.pages_free, both.pages_used, both.pages_cached) == (55, 33, 22)
    assert both.tenants == LOAD.tenants + BATCH_LOAD.tenants and both.preemptions == {"memory": 3, "swap": 1}
    assert both.drain == Drain(15.0, 3.0, 0.1, 2, 1)


def test_an_explanation_sees_the_steps_of_its_own_engine_only() -> None:
    telemetry = Telemetry(CollectorRegistry(), engines=LANES_OF)
    telemetry.note_step(StepDone((), LOAD, step(1, 10, 20, "a")), "fast-slow")
    telemetry.note_step(StepDone((), BATCH_LOAD, step(1, 12, 90, "b")), "batch")
    telemetry.note_step(StepDone((), LOAD, step(2, 20, 30, "a")), "fast-slow")
    for engine, tenants in (("fast-slow", ["a", "a"]), ("batch", ["b"])):
        report = report_of(submitted_ns=5, ended_ns=100, engine=engine)
        records = telemetry.recorded(report).records
        assert [record.shares[0].tenant_id for record in records] == tenants
        assert {record.engine for record in records} == {engine}
    assert [record.done_ns for record in telemetry.ledger] == [20, 30, 90]


def test_a_busy_engine_does_not_push_out_the_steps_of_another() -> None:
    ledger = StepLedger(kept_steps=2)
    for number in range(5):
        ledger.append(step(number, 10 * number + 10, 10 * number + 19, "a", "fast-slow"))
    ledger.append(step(0, 12, 52, "b", "batch"))
    assert (ledger.since_ns("fast-slow"), ledger.since_ns("batch"), ledger.is_whole) == (40, 0, False)
    assert [record.engine for record in ledger.newest_first()] == ["fast-slow", "batch", "fast-slow"]


def test_series_of_the_engines_name_the_replica_and_its_own_lanes_only() -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry, engines=LANES_OF)
    telemetry.note_step(StepDone((), LOAD, step(1, 10, 20, "a")), "fast-slow")
    telemetry.note_load(BATCH_LOAD, "batch")

    def series(name: str) -> dict[tuple[str, str], float]:
        samples = (sample for family in registry.collect() for sample in family.samples if sample.name == f"fairlane_{name}")
        return {(sample.labels["engine"], sample.labels.get("lane", "")): sample.value for sample in samples}

    assert series("running_requests") == {("fast-slow", "fast"): 1, ("fast-slow", "slow"): 0, ("batch", "batch"): 4}
    assert set(series("queue_oldest_seconds")) == set(series("queue_depth")) == set(series("running_requests"))
    telemetry.engine.lose_engine("batch")
    assert series("running_requests")["batch", "batch"] == 0 and series("running_requests")["fast-slow", "fast"] == 1
    assert series("step_model_error_ratio") == {("fast-slow", ""): 1.0}
    assert telemetry.engine.load is LOAD and telemetry.engine.totals()["preempted:memory"] == 3


def stream_of(served: Served, lane: str, max_tokens: int) -> httpx.Request:
    body = {"prompt": "x", "max_tokens": max_tokens, "stream": True, "lane": lane, "stream_options": {"include_usage": True}}
    return httpx.Request("POST", served.url + "/v1/completions", json=body, headers=HEADERS)


def test_a_dead_replica_harms_its_own_lanes_only_and_comes_back(tmp_path: Path, export: Path) -> None:
    own = tmp_path / "model"
    for replica in TWO:
        shutil.copytree(export, f"{own}-{replica.name}")
    with serving(tmp_path / "data", own, "engine_lanes=fast,slow;batch") as served, httpx.Client(timeout=20) as http:
        assert served.ready() == (200, "ready") and len(served.engine_pids()) == 2
        fast, batch = (http.send(stream_of(served, lane, 1_000), stream=True) for lane in ("fast", "batch"))
        fast_lines, batch_lines = fast.iter_lines(), batch.iter_lines()
        assert next(fast_lines).startswith("data: ") and next(batch_lines).startswith("data: ")
        load = http.get(served.url + "/load").json()
        assert (load["running"], load["lanes"]["fast"]["running"], load["lanes"]["batch"]["running"]) == (2, 1, 1)

        os.kill(served.engine_pids()[1], signal.SIGKILL)
        assert "event: error" in list(batch_lines)
        refused = http.post(served.url + "/v1/completions", json={"prompt": "x", "lane": "batch"}, headers=HEADERS)
        assert (refused.status_code, refused.json()["error"]["code"], refused.headers["retry-after"]) == (503, "engine_down", "5")
        assert "lane 'batch'" in refused.json()["error"]["message"]
        ready = http.get(served.url + "/readyz")
        assert 'fairlane_engine_up{engine="batch"} 0.0' in http.get(served.url + "/metrics").text
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded") and "engine of lane batch" in ready.json()["reason"]
        assert http.post(served.url + "/v1/completions", json={"prompt": "x", "lane": "slow"}, headers=HEADERS).status_code == 200
        rest = list(fast_lines)
        assert rest[-2] == "data: [DONE]" and '"completion_tokens":1000' in rest[-4]

        until(lambda: served.ready() == (200, "ready"), served.log)
        assert http.post(served.url + "/v1/completions", json={"prompt": "x", "lane": "batch"}, headers=HEADERS).status_code == 200
        metrics = http.get(served.url + "/metrics").text
        assert 'fairlane_engine_starts_total{engine="fast-slow"} 1.0' in metrics
        assert 'fairlane_engine_starts_total{engine="batch"} 2.0' in metrics and 'fairlane_engine_up{engine="batch"} 1.0' in metrics
        fast.close()
        batch.close()
