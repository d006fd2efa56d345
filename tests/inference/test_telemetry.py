"""Metrics: declared once, described in docs/metrics.md, at 0 from the start, right after a request."""

import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from appliance.telemetry import families
from appliance.telemetry.hub import Telemetry, TelemetryOptions
from appliance.telemetry.ledger import StepLedger
from appliance.telemetry.requests import Outcome, RequestReport
from engine.wire import Load, ModelCard, Ready, StepDone, StepRecord, TenantLoad, TenantPolicy
from tests.inference.conftest import text_answer
from tests.inference.harness import House, start_house

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def load(**fields: Any) -> Load:
    values: dict[str, Any] = {"time_ns": 1, "last_sequence_id": 0, "running": {}, "queued": {}, "oldest_queued_ns": 0}
    return Load(**{**values, "pages_free": 5, "pages_used": 3, "pages_cached": 2, **fields})


def record(step: int, began_ns: int, done_ns: int, rows: int = 1, prefill: int = 0) -> StepRecord:
    return StepRecord(step, began_ns, began_ns, done_ns, done_ns, "d8", rows, prefill, 0, ())


@pytest.fixture
def telemetry(card: ModelCard) -> Telemetry:
    telemetry = Telemetry(CollectorRegistry())
    telemetry.sync_tenants(["default"])
    telemetry.note_ready(Ready(card, "cpu", "xla", {"load": 1.5}))
    return telemetry


def samples(telemetry: Telemetry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(telemetry.render().decode())
        for sample in family.samples
    }


def total(telemetry: Telemetry, name: str, **labels: str) -> float:
    return sum(value for (found, has), value in samples(telemetry).items() if found == f"fairlane_{name}" and labels.items() <= has)


def test_the_docs_describe_exactly_the_declared_families_with_their_labels_and_kinds() -> None:
    rows = re.findall(r"^\| `(fairlane_\w+)` \| (\w+) \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    described = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    shared = {*families.REQUEST_LABELS[1:], *families.ENGINE_LABELS}
    own_labels = {f.full_name: tuple(x for x in f.labels if x not in shared or "model" not in f.labels) for f in families.FAMILIES}
    assert described == {f.full_name: (f.kind, own_labels[f.full_name]) for f in families.FAMILIES}
    text = DOCS.read_text()
    for values in (families.OUTCOMES, families.REJECTIONS, families.STAGES, families.CAUSES, families.DIRECTIONS, families.STEP_PHASES):
        assert all(f"`{value}`" in text for value in values)


def test_counters_of_a_configured_tenant_are_0_from_the_start_and_gone_with_it(telemetry: Telemetry) -> None:
    zeros = [key for key, value in samples(telemetry).items() if key[0] == "fairlane_requests_total" and value == 0]
    assert len(zeros) == len(families.OUTCOMES) * len(families.LANES)
    telemetry.sync_tenants(["other"])
    assert {dict(labels)["tenant"] for name, labels in samples(telemetry) if name == "fairlane_requests_total"} == {"other"}


def test_every_series_has_the_declared_labels(telemetry: Telemetry) -> None:
    telemetry.settle(report())
    telemetry.note_step(StepDone((), load(), record(1, 10, 20)))
    declared = {family.full_name: set(family.labels) for family in families.FAMILIES}
    for name, labels in samples(telemetry):
        base = re.sub(r"_(bucket|sum|count)$", "", name) if name not in declared else name
        assert {label for label, _ in labels} - {"le"} == declared[base], name


def report(**fields: Any) -> RequestReport:
    values: dict[str, Any] = {
        "request_id": "req_1", "route": "/v1/completions", "tenant_id": "default", "lane": "fast", "outcome": Outcome.COMPLETED,
        "status": 200, "prompt_tokens": 10, "cached_tokens": 4, "generated_tokens": 11, "received_ns": 1_000_000_000,
        "scheduled_ns": 1_100_000_000, "first_token_ns": 1_300_000_000, "first_sent_ns": 1_301_000_000, "last_token_ns": 2_300_000_000,
        "tokens_after_first": 10, "ended_ns": 2_400_000_000,
    }  # fmt: skip
    return RequestReport(**{**values, **fields})


def test_a_settled_request_is_counted_once_with_its_times(telemetry: Telemetry) -> None:
    telemetry.settle(report())
    assert total(telemetry, "requests_total") == total(telemetry, "requests_total", outcome="completed", lane="fast") == 1
    sums = {
        name: total(telemetry, f"{name}_seconds_sum")
        for name in ("ttft", "queue_wait", "prefill", "decode", "stream_write", "tpot", "request")
    }
    expected = {"ttft": 0.301, "queue_wait": 0.1, "prefill": 0.2, "decode": 1.0, "stream_write": 0.1, "tpot": 0.1, "request": 1.4}
    assert sums == pytest.approx(expected)
    tokens = {direction: total(telemetry, "tokens_total", direction=direction) for direction in families.DIRECTIONS}
    assert tokens == {"prompt": 10, "cached": 4, "generated": 11}


def test_a_refusal_is_counted_by_reason_and_has_no_times(telemetry: Telemetry) -> None:
    telemetry.settle(report(outcome=Outcome.REJECTED, rejection="queue_full", lane="none", status=503))
    assert total(telemetry, "rejections_total", reason="queue_full", lane="none") == 1
    assert total(telemetry, "request_seconds_count") == total(telemetry, "tokens_total") == 0


def test_engine_counters_outlive_a_restart_of_the_engine(telemetry: Telemetry, card: ModelCard) -> None:
    telemetry.note_load(load(prefix_query_tokens=100, prefix_hit_tokens=60, preemptions={"memory": 2}, running={"fast": 3}))
    assert total(telemetry, "running_requests", lane="fast") == 3
    assert [total(telemetry, "kv_pages", state=state) for state in families.PAGE_STATES] == [5, 3, 2]
    telemetry.engine.lose_engine()
    assert total(telemetry, "running_requests") == 0 and total(telemetry, "kv_pages") == 0
    telemetry.note_load(load(prefix_query_tokens=10, preemptions={"memory": 1}))
    assert total(telemetry, "prefix_cache_query_tokens_total") == 110
    assert total(telemetry, "prefix_cache_hit_tokens_total") == 60
    assert total(telemetry, "preemptions_total", cause="memory") == 3


def test_evictions_are_counted_by_policy_and_victim_from_0_on(telemetry: Telemetry) -> None:
    telemetry.note_load(load(eviction_policy="lru", evictions={"over_cap": 0, "over_reserve": 7, "own": 0}))
    series = {key: value for key, value in samples(telemetry).items() if key[0] == "fairlane_evictions_total"}
    assert sorted(series.values()) == [0, 0, 7]
    telemetry.engine.lose_engine()
    telemetry.note_load(load(eviction_policy="lfu", evictions={"over_cap": 1, "over_reserve": 2, "own": 0}))
    assert total(telemetry, "evictions_total", policy="lru", victim="over_reserve") == 7
    assert total(telemetry, "evictions_total", policy="lfu") == 3


def test_a_step_takes_from_the_end_of_the_one_before_it_where_they_overlap(telemetry: Telemetry) -> None:
    for step in (record(1, 0, 10_000_000), record(2, 5_000_000, 30_000_000, rows=0, prefill=16), record(3, 40_000_000, 45_000_000, 2, 16)):
        telemetry.note_step(StepDone((), load(), step))
    assert total(telemetry, "step_seconds_sum", phase="decode") == pytest.approx(0.010)
    assert total(telemetry, "step_seconds_sum", phase="prefill") == pytest.approx(0.020)
    assert total(telemetry, "step_seconds_sum", phase="mixed") == pytest.approx(0.005)
    assert len(telemetry.ledger) == 3


def test_the_ledger_forgets_the_oldest_steps_and_finds_those_of_a_time() -> None:
    ledger = StepLedger(kept_steps=3)
    for step in range(5):
        ledger.append(record(step, step * 10, step * 10 + 5))
    assert len(ledger) == 3
    assert [found.step for found in ledger.between(24, 33)] == [2, 3]


def test_a_request_has_exactly_one_log_line_and_it_holds_no_text(house: House) -> None:
    with structlog.testing.capture_logs() as lines:
        house.post("/v1/completions", {"prompt": "a secret prompt", "max_tokens": 3})
        house.post("/v1/completions", {"prompt": ""})
        house.post("/v1/completions", {"prompt": "x"}, headers={"Authorization": ""})
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["outcome"] for line in requests] == ["completed", "rejected", "rejected"]
    assert requests[0]["generated_tokens"] == 3 and requests[0]["tenant"] == "default" and requests[0]["ttft_ms"] > 0
    assert "secret" not in str(requests) and "tenant" not in requests[2]


def test_the_metrics_of_a_running_server_tell_of_its_requests(export: Path, card: ModelCard, model: Any) -> None:
    with start_house(export, card, text_answer(model)) as house:
        for stream in (True, False):
            house.post("/v1/completions", {"prompt": "Hi", "max_tokens": 64, "stream": stream})
        text = house.client.get("/metrics").text
        found = {(s.name, s.labels.get("lane", "")): s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert found["fairlane_ttft_seconds_count", "fast"] == found["fairlane_ttft_seconds_count", "slow"] == 1
        assert found["fairlane_inter_token_seconds_count", "fast"] == 18
        assert house.metric("tokens_total", direction="generated") == 38
        assert house.metric("step_seconds_count") >= 38
        assert house.metric("kernel_backend_info", backend="xla") == 1
        assert house.metric("startup_seconds", phase="compile") == 0.2
        assert house.metric("rtt_seconds_count") == 2
        assert house.metric("lane_ttft_seconds_count", lane="fast") == house.metric("lane_ttft_seconds_count", lane="slow") == 1


def test_load_tells_an_autoscaler_what_waits_and_how_long(house: House) -> None:
    assert house.client.get("/load").json() == {
        "status": "ready", "running": 0, "queued": 0, "queued_tokens": 0, "oldest_wait_s": 0.0, "kv_used_ratio": 0.0,
        "lanes": {lane: {"running": 0, "queued": 0, "oldest_wait_s": 0.0} for lane in ("fast", "slow", "batch")},
    }  # fmt: skip
    tenants = (TenantLoad("default", "fast", 1, 2, 300),)
    house.on_loop(lambda: house.telemetry.note_load(load(running={"fast": 1}, queued={"fast": 2}, tenants=tenants)))
    busy = house.client.get("/load").json()
    assert (busy["running"], busy["queued"], busy["queued_tokens"], busy["kv_used_ratio"]) == (1, 2, 300, 0.3)
    assert busy["lanes"]["fast"] == {"running": 1, "queued": 2, "oldest_wait_s": 0.0}


def test_tenants_beyond_the_limit_share_a_label_and_nothing_of_them_is_lost(card: ModelCard) -> None:
    telemetry = Telemetry(CollectorRegistry(), options=TelemetryOptions(max_tenants=1))
    telemetry.sync_tenants(["busy", "quiet"])
    telemetry.note_ready(Ready(card, "cpu", "xla", {}))
    for tenant in ("busy", "quiet", "quiet"):
        telemetry.settle(report(tenant_id=tenant))
    assert [total(telemetry, "requests_total", tenant=tenant) for tenant in ("busy", "quiet", "other")] == [1, 0, 2]
    assert telemetry.requests.num_observed == 3


def test_kv_pages_are_told_by_tenant_with_what_its_tier_allows(card: ModelCard) -> None:
    telemetry = Telemetry(CollectorRegistry(), options=TelemetryOptions(max_tenants=2), engines={"0": ("fast", "slow"), "1": ("batch",)})
    policies = {name: TenantPolicy(tenant_id=name) for name in ("idle", "quiet")}
    telemetry.sync_policies({"acme": TenantPolicy(tenant_id="acme", kv_reserve_ratio=0.25, kv_cap_ratio=0.5), **policies})
    for engine in ("0", "1"):
        telemetry.note_ready(Ready(card, "cpu", "xla", {}), engine)
    entries = (TenantLoad("acme", "fast", 1, 0, 0, pages=2), TenantLoad("acme", "slow", 1, 0, 0, pages=2))
    telemetry.note_load(load(pages_used=5, tenants=(*entries, TenantLoad("quiet", "slow", 1, 0, 0, pages=3))), "0")
    telemetry.note_load(load(tenants=(TenantLoad("acme", "batch", 1, 0, 0, pages=1),)), "1")

    def shown(tenant: str) -> list[float]:
        limits = [total(telemetry, "tenant_kv_limit_ratio", tenant=tenant, limit=limit) for limit in families.KV_LIMITS]
        return [*(total(telemetry, "tenant_kv_pages", tenant=tenant, engine=engine) for engine in ("0", "1")), *limits]

    assert [shown(tenant) for tenant in ("acme", "idle", "other")] == [[2, 1, 0.25, 0.5], [0, 0, 0, 1], [3, 0, 0, 0]]
    telemetry.engine.lose_engine("1")
    telemetry.sync_policies(policies)
    assert shown("acme") == [0, 0, 0, 0] and shown("quiet") == [3, 0, 0, 1] and shown("other") == [2, 0, 0, 0]
    left = [dict(labels) for name, labels in samples(telemetry) if name == "fairlane_tenant_kv_pages"]
    assert {(labels["tenant"], labels["engine"]) for labels in left} == {("idle", "0"), ("quiet", "0"), ("other", "0")}
    assert telemetry.engine.pages_by_tenant() == {"acme": 2, "quiet": 3}


def test_what_a_tenant_uses_of_its_ceilings_is_shown_and_goes_with_the_ceiling_and_the_tenant(card: ModelCard) -> None:
    telemetry = Telemetry(CollectorRegistry(), options=TelemetryOptions(max_tenants=1))
    used = {"rpm": 0.5, "tpm": 0.25}
    telemetry.limits.ratios_of = lambda policy: used if policy.tenant_id == "acme" else {"rpm": 1.0}
    telemetry.sync_policies({name: TenantPolicy(tenant_id=name) for name in ("acme", "quiet")})
    telemetry.note_ready(Ready(card, "cpu", "xla", {}))

    def shown() -> dict[tuple[str, str], float]:
        found = [(dict(labels), value) for (name, labels), value in samples(telemetry).items() if name == "fairlane_limit_use_ratio"]
        return {(labels["tenant"], labels["limit"]): value for labels, value in found}

    assert shown() == {("acme", "rpm"): 0.5, ("acme", "tpm"): 0.25}
    used = {"rpm": 0.75}
    telemetry.look()
    assert shown() == {("acme", "rpm"): 0.75}
    telemetry.sync_policies({"quiet": TenantPolicy(tenant_id="quiet")})
    assert shown() == {("quiet", "rpm"): 1.0}


def test_openmetrics_is_what_a_scraper_gets_that_asks_for_it(house: House) -> None:
    house.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})
    answer = house.client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    names = {family.name for family in parse_openmetrics(answer.text)}
    assert {"fairlane_requests", "fairlane_ttft_seconds", "fairlane_lane_ttft_seconds"} <= names


def test_the_common_series_are_shown_under_vllms_names_where_asked_for(card: ModelCard) -> None:
    telemetry = Telemetry(CollectorRegistry(), options=TelemetryOptions(vllm_names=True))
    telemetry.sync_tenants(["default"])
    telemetry.note_ready(Ready(card, "cpu", "xla", {}))
    for lane in ("fast", "slow"):
        telemetry.settle(report(lane=lane))
    telemetry.note_load(load(running={"fast": 2, "slow": 1}, queued={"batch": 4}, preemptions={"memory": 2}, prefix_query_tokens=9))
    labels = {"model_name": card.model_id, "engine": "0"}
    found = {name: value for (name, has), value in samples(telemetry).items() if labels.items() <= set(has)}
    shown = {name: found[f"vllm:{name}"] for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")}
    assert shown == {"num_requests_running": 3, "num_requests_waiting": 4, "kv_cache_usage_perc": 0.3}
    assert (found["vllm:prompt_tokens_total"], found["vllm:generation_tokens_total"]) == (20, 22)
    assert (found["vllm:num_preemptions_total"], found["vllm:prefix_cache_queries_total"]) == (2, 9)
    assert found["vllm:time_to_first_token_seconds_count"] == found["vllm:request_success_total"] == 2
    assert not any(name.startswith("vllm:") for name, _ in samples(Telemetry(CollectorRegistry())))
