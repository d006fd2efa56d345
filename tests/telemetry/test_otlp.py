"""Traces and metrics that are sent to a collector: what they hold, what is kept, what becomes of them when it is away."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry, Counter, Gauge

from appliance.settings import Settings, SettingsError, load_settings
from appliance.telemetry.explain.pieces import Piece, pieces_of
from appliance.telemetry.histogram import Histogram
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.otlp import traces
from appliance.telemetry.otlp.exporter import Exporter, exporter_of
from appliance.telemetry.otlp.metrics import metric_of
from appliance.telemetry.otlp.spans import MAX_CHUNKS, phases_of, spans_of
from appliance.telemetry.otlp.traces import MAX_WAITING
from appliance.telemetry.readings import all_series
from appliance.telemetry.requests import Outcome, RequestReport
from appliance.telemetry.trace_context import TraceContext
from engine.wire import TenantPolicy
from tests.inference import test_serve
from tests.telemetry.receiver import Receiver, receiving, values_of
from tests.telemetry.simulation import simulate
from tests.telemetry.test_explain import STORY, STORY_RECORDED, report_of

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331", "congo=t61")
WALL_NS = 1_700_000_000_000_000_000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def story_spans(**fields: object) -> list[Span]:
    report = report_of(**fields)
    return spans_of(report, TRACE, pieces_of(report, STORY_RECORDED), "smollm2", "Took long.", WALL_NS)


def test_a_request_is_a_span_with_one_beneath_it_for_each_phase_and_they_fill_it() -> None:
    report = report_of()
    root, *children = story_spans()
    assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (TRACE.trace_id, TRACE.span_id, TRACE.parent_span_id)
    assert (root.name, root.kind, root.trace_state) == ("text_completion smollm2", Span.SPAN_KIND_SERVER, "congo=t61")
    assert (root.start_time_unix_nano - WALL_NS, root.end_time_unix_nano - WALL_NS) == (report.received_ns, report.ended_ns)
    assert all((child.parent_span_id, child.trace_id) == (root.span_id, root.trace_id) for child in children)
    assert len({span.span_id for span in (root, *children)}) == len(children) + 1
    assert [child.name for child in children][:5] == ["receive", "tokenize", "admission", "queue", "prefill"]
    assert [child.name for child in children][-1] == "write" and "decode" in {child.name for child in children}
    assert children[0].start_time_unix_nano == root.start_time_unix_nano and children[-1].end_time_unix_nano == root.end_time_unix_nano
    assert all(before.end_time_unix_nano == after.start_time_unix_nano for before, after in pairwise(children))


def test_the_attributes_have_the_names_of_the_semantic_conventions_and_say_whose_work_it_was() -> None:
    report = report_of()
    root, *children = story_spans()
    values = values_of(root.attributes)
    assert values["gen_ai.request.model"] == "smollm2" and values["gen_ai.operation.name"] == "text_completion"
    assert (values["gen_ai.usage.input_tokens"], values["gen_ai.usage.output_tokens"]) == (report.prompt_tokens, report.generated_tokens)
    assert (values["http.route"], values["http.response.status_code"]) == (report.route, report.status)
    assert (values["fairlane.request_id"], values["fairlane.tenant"], values["fairlane.verdict"]) == ("req_1", "quiet", "Took long.")
    assert "error.type" not in values and root.status == Status()
    queue = values_of(next(child for child in children if child.name == "queue").attributes)
    assert queue == {"fairlane.culprit": "noisy", "fairlane.culprit_s": pytest.approx(0.09)}
    assert values_of(story_spans(route="/v1/chat/completions")[0].attributes)["gen_ai.operation.name"] == "chat"


@pytest.mark.parametrize(
    ("fields", "code", "kind"),
    [
        (
            {"outcome": Outcome.FAILED, "status": 500, "error_code": "engine_failed", "message": "why"},
            Status.STATUS_CODE_ERROR,
            "engine_failed",
        ),
        ({"outcome": Outcome.EXPIRED, "status": 200, "cause": "deadline"}, Status.STATUS_CODE_ERROR, "deadline"),
        ({"outcome": Outcome.CANCELLED, "status": 499, "cause": "disconnect"}, Status.STATUS_CODE_UNSET, "disconnect"),
        ({"outcome": Outcome.REJECTED, "status": 429, "error_code": "rate_limit"}, Status.STATUS_CODE_UNSET, "rate_limit"),
        ({"outcome": Outcome.REJECTED, "status": 503, "error_code": "queue_full"}, Status.STATUS_CODE_ERROR, "queue_full"),
    ],
)
def test_what_went_wrong_here_is_an_error_and_what_the_client_did_is_not(fields: dict[str, object], code: int, kind: str) -> None:
    root = story_spans(**fields)[0]
    assert (root.status.code, values_of(root.attributes)["error.type"]) == (code, kind)
    assert root.status.message == fields.get("message", "")


def test_the_phases_of_1000_random_requests_hold_every_piece_and_all_its_tokens() -> None:
    for world in (simulate(seed, 100) for seed in range(10)):
        for report in world.reports:
            pieces = pieces_of(report, world.recorded(report))
            phases = phases_of(pieces)
            assert sum(phase.tokens for phase in phases) == sum(piece.own_tokens for piece in pieces)
            assert sum(phase.end_ns - phase.begin_ns for phase in phases) == sum(piece.end_ns - piece.begin_ns for piece in pieces)
            assert sum(sum(phase.causes.values()) for phase in phases) == report.ended_ns - report.received_ns


def test_a_prompt_of_very_many_chunks_is_one_span() -> None:
    def chunks(number: int) -> list[Piece]:
        return [Piece("prefill" if at % 2 else "prefill_wait", at, at + 1, {None: 1}, None, at % 2) for at in range(1, 2 * number + 1)]

    few, many = phases_of(chunks(MAX_CHUNKS)), phases_of(chunks(MAX_CHUNKS + 1))
    assert len(few) == 2 * MAX_CHUNKS and [(phase.name, phase.steps) for phase in many] == [("prefill", MAX_CHUNKS + 1)]


def exporter(receiver: Receiver, telemetry: Telemetry, **fields: object) -> Exporter:
    settings = Settings(**{"otlp_endpoint": receiver.url, "otlp_sample_ratio": 0.0, "otlp_headers": "authorization=Bearer t", **fields})
    made = exporter_of(settings, "1.2", telemetry)
    assert made is not None
    return made


def telemetry_with_story() -> Telemetry:
    telemetry = Telemetry(CollectorRegistry())
    telemetry.sync_policies({"quiet": TenantPolicy(tenant_id="quiet")})
    for step in STORY:
        telemetry.ledger.append(step)
    return telemetry


def traced(request_id: str, **fields: object) -> RequestReport:
    """A request that is not slow unless given so."""
    number = request_id.removeprefix("req_")
    fields = {"ttft_target_s": None, "tpot_target_s": None, **fields}
    return replace(report_of(request_id=request_id, **fields), trace=replace(TRACE, trace_id=f"{int(number) + 1:032x}"))


def counted(telemetry: Telemetry, outcome: str) -> float:
    return telemetry.traces.labels(outcome)._value.get()


def kept(receiver: Receiver) -> list[str]:
    return [str(values_of(span.attributes)["fairlane.request_id"]) for span in receiver.spans() if span.kind == Span.SPAN_KIND_SERVER]


async def settle(telemetry: Telemetry, *reports: RequestReport) -> None:
    for report in reports:
        telemetry.settle(report)
    while telemetry.reviewer._waiting:
        await telemetry.reviewer.explain_next()


def test_slow_and_failed_requests_are_sent_with_their_sentence_and_of_the_rest_a_share(receiver: Receiver) -> None:
    telemetry = telemetry_with_story()
    sender = exporter(receiver, telemetry)
    slow = traced("req_1", ttft_target_s=0.001)
    failed = traced("req_2", outcome=Outcome.FAILED, status=500)

    async def run() -> None:
        await settle(telemetry, slow, failed, traced("req_3"), replace(traced("req_4"), trace=None))
        await sender.flush(10)

    asyncio.run(run())
    assert sorted(kept(receiver)) == ["req_1", "req_2"] and receiver.headers[0]["authorization"] == "Bearer t"
    verdicts = [str(values_of(span.attributes)["fairlane.verdict"]) for span in receiver.spans() if span.kind == Span.SPAN_KIND_SERVER]
    assert all("went to tenant noisy" in verdict for verdict in verdicts)
    resource = values_of(receiver.traces[0].resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["service.version"]) == ("fairlane", "1.2")
    assert counted(telemetry, "sent") == 2
    exemplar = f'# {{request_id="req_1",trace_id="{2:032x}"}} 0.136'
    assert exemplar in telemetry.render(openmetrics=True).decode()

    everything = exporter(receiver, telemetry, otlp_sample_ratio=1.0)

    async def run_all() -> None:
        await settle(telemetry, slow, traced("req_3"), traced("req_5", outcome=Outcome.REJECTED, status=429))
        await everything.flush(10)

    receiver.traces.clear()
    asyncio.run(run_all())
    assert sorted(kept(receiver)) == ["req_1", "req_3", "req_5"], "each once"


def test_a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(traces, "SEND_EVERY_S", 0.01)
    telemetry = telemetry_with_story()
    sender = exporter(receiver, telemetry, otlp_sample_ratio=1.0)

    async def run(request_id: str, refusals: list[int], outcome: str) -> None:
        receiver.refusals[:] = refusals
        telemetry.settle(traced(request_id))
        before = counted(telemetry, outcome)
        task = asyncio.create_task(sender.run())
        async with asyncio.timeout(20):
            while counted(telemetry, outcome) == before:  # noqa: ASYNC110 (a counter wakes nobody)
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run("req_1", [503, 429], "sent"))
    asyncio.run(run("req_2", [400], "failed"))
    asyncio.run(run("req_3", [503] * traces.TRIES, "failed"))
    assert kept(receiver) == ["req_1"] and not receiver.refusals


def test_what_is_too_much_is_dropped_and_counted_and_an_absent_collector_costs_no_more(receiver: Receiver) -> None:
    telemetry = telemetry_with_story()
    sender = exporter(receiver, telemetry, otlp_sample_ratio=1.0)
    for number in range(MAX_WAITING + 3):
        telemetry.note_trace(traced(f"req_{number}"), "")
    assert counted(telemetry, "dropped") == 3
    receiver.refusals[:] = [503] * 100
    asyncio.run(sender.flush(20))
    assert (counted(telemetry, "failed"), counted(telemetry, "sent")) == (MAX_WAITING, 0)


def test_a_trace_that_can_not_be_made_costs_no_later_one(receiver: Receiver) -> None:
    telemetry = telemetry_with_story()
    sender = exporter(receiver, telemetry, otlp_sample_ratio=1.0)
    telemetry.note_trace(replace(traced("req_1"), trace=replace(TRACE, parent_span_id="no number")), "")
    asyncio.run(sender.flush(10))
    telemetry.note_trace(traced("req_2"), "")
    asyncio.run(sender.flush(10))
    assert kept(receiver) == ["req_2"] and counted(telemetry, "failed") == 1


def test_what_was_being_sent_at_shutdown_is_sent_by_the_flush(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "SEND_EVERY_S", 0.0)
    telemetry = telemetry_with_story()
    sender = exporter(receiver, telemetry, otlp_sample_ratio=1.0)
    receiver.refusals[:] = [503]

    async def run() -> None:
        telemetry.note_trace(traced("req_1"), "")
        task = asyncio.create_task(sender.run())
        async with asyncio.timeout(20):
            while receiver.refusals:  # noqa: ASYNC110 (the receiver is another thread)
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        await sender.flush(10)

    asyncio.run(run())
    assert kept(receiver) == ["req_1"] and counted(telemetry, "sent") == 1


def test_without_an_endpoint_nothing_is_kept_and_a_wrong_one_is_refused_at_the_start() -> None:
    assert exporter_of(Settings(), "1.2", Telemetry(CollectorRegistry())) is None
    for wrong in ({"otlp_endpoint": "collector:4318"}, {"otlp_headers": "no pair"}, {"otlp_headers": "a b=c"}, {"otlp_sample_ratio": 1.5}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            load_settings(wrong, {})


# ---- metrics


@pytest.mark.parametrize("reads_directly", [True, False])
def test_families_become_sums_gauges_and_histograms_with_the_same_numbers(reads_directly: bool) -> None:
    registry = CollectorRegistry()
    requests = Counter("x_requests", "Requests.", ["lane"], registry=registry)
    requests.labels("fast").inc(3)
    memory = Gauge("x_memory_bytes", "Memory.", registry=registry)
    memory.set(-2.5)
    times = Histogram("x_wait_seconds", "Waits.", ["lane"], (0.1, 1.0))
    registry.register(times)
    for value in (0.05, 0.1, 0.5, 7.0):
        times.labels("slow").observe(value)
    made = [requests, memory, times, Counter("x_none", "Without series.", ["lane"], registry=registry)]
    collectors = made if reads_directly else [registry]
    series = [each for collector in collectors for each in all_series(collector)]
    found = {metric.name: metric for each in series if (metric := metric_of(each, 5, 9)) is not None}
    assert sorted(found) == ["x_memory_bytes", "x_requests_total", "x_wait_seconds"]
    total = found["x_requests_total"].sum
    assert total.is_monotonic and total.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = [each for each in total.data_points if each.as_double]
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (3, 5, 9) and values_of(point.attributes) == {
        "lane": "fast"
    }
    assert [each.as_double for each in found["x_memory_bytes"].gauge.data_points] == [-2.5] and found["x_memory_bytes"].unit == "By"
    (bucketed,) = found["x_wait_seconds"].histogram.data_points
    assert (list(bucketed.explicit_bounds), list(bucketed.bucket_counts)) == ([0.1, 1.0], [2, 1, 1])
    assert (bucketed.count, bucketed.sum, found["x_wait_seconds"].unit) == (4, pytest.approx(7.65), "s")
    assert values_of(bucketed.attributes) == {"lane": "slow"}


# ---- the running server


def test_the_server_continues_the_caller_s_trace_and_sends_slow_requests_and_metrics(
    tmp_path: Path, export: Path, receiver: Receiver
) -> None:
    fields = (f"otlp_endpoint={receiver.url}", "otlp_sample_ratio=0", "otlp_metrics_interval_s=0.3", "admission=false", "log_format=json")
    with test_serve.serving(tmp_path, export, *fields) as served:

        def ask(**headers: str) -> httpx.Response:
            body = {"prompt": "a secret prompt", "max_tokens": 5, "stream": True}
            return httpx.post(served.url + "/v1/completions", json=body, headers={**test_serve.HEADERS, **headers}, timeout=20)

        admin = {"Authorization": f"Bearer {test_serve.ADMIN}"}
        tier = httpx.get(served.url + "/api/v1/tenants/default", headers=admin).json()["tier"]

        def set_target(ttft_ms: int) -> None:
            targets = {"ttft_ms": {"fast": ttft_ms, "slow": ttft_ms}, "tpot_ms": {"fast": 600_000, "slow": 600_000}}
            httpx.patch(served.url + f"/api/v1/tiers/{tier}", json=targets, headers=admin).raise_for_status()

        set_target(600_000)
        quick = ask()
        own_trace = quick.headers["x-request-id"].removeprefix("req_")
        assert quick.headers["traceresponse"].split("-")[1] == own_trace and quick.headers["traceresponse"].endswith("-00")
        test_serve.until(lambda: f'"trace_id":"{own_trace}"' in served.log(), served.log)
        set_target(1)
        slow = ask(traceparent=f"00-{TRACE.trace_id}-{TRACE.parent_span_id}-01")
        version, trace_id, span_id, _ = slow.headers["traceresponse"].split("-")
        assert (version, trace_id) == ("00", TRACE.trace_id)
        test_serve.until(lambda: bool(receiver.spans()), served.log)
        root, *children = receiver.spans()
        assert kept(receiver) == [slow.headers["x-request-id"]]
        assert (root.trace_id.hex(), root.span_id.hex(), root.parent_span_id.hex()) == (TRACE.trace_id, span_id, TRACE.parent_span_id)
        assert values_of(root.attributes)["gen_ai.usage.output_tokens"] == 5
        assert {"queue", "prefill", "decode", "write"} <= {child.name for child in children}
        assert b"secret" not in receiver.traces[0].SerializeToString()
        newest = len(receiver.metrics)
        test_serve.until(lambda: len(receiver.metrics) > newest + 1, served.log)
        points = receiver.newest_metrics()["fairlane_requests_total"].sum.data_points
        assert sum(each.as_double for each in points if values_of(each.attributes)["outcome"] == "completed") == 2
        writes = receiver.newest_metrics()["fairlane_stream_write_seconds"].histogram.data_points
        assert sum(each.count for each in writes) == 2
