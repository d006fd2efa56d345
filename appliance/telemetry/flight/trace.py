"""A bundle as Chrome trace events, which https://ui.perfetto.dev and chrome://tracing show: steps, lanes, requests.

Format: "Trace Event Format" (Google, 2016), JSON object form. Times are microseconds since the first event.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from appliance.telemetry.explain.pieces import pieces_of
from appliance.telemetry.explain.runs import runs_of
from appliance.telemetry.families import LANES
from appliance.telemetry.flight.bundle import Bundle
from appliance.telemetry.requests import RequestReport
from engine.wire import ONLY_ENGINE

STEPS_PID, LANES_PID, REQUESTS_PID = 1, 2, 3
MAX_REQUESTS = 2_000
"""Shown: the newest ones. More tracks than these help nobody."""

type Event = dict[str, Any]


def trace_of(bundle: Bundle) -> dict[str, Any]:
    """The JSON object; `otherData` says what it was made from."""
    reports = [(report, False) for report in bundle.requests] + [(report, True) for report in bundle.running]
    shown = reports[-MAX_REQUESTS:]
    starts = [step.planned_ns for step in bundle.steps] + [report.received_ns for report, _ in shown]
    zero_ns = min(starts, default=0)
    events = [*_names()]
    for tid, engine in enumerate(dict.fromkeys(step.engine for step in bundle.steps), 1):
        events += _steps(bundle, engine, tid, zero_ns)
    for index, (report, is_running) in enumerate(shown, 1):
        events += _lane(report, zero_ns)
        events += _request(bundle, report, index, zero_ns, is_running=is_running)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"version": bundle.version, "reason": bundle.reason, "made_at": bundle.made_at.isoformat()},
    }


def _us(time_ns: int, zero_ns: int) -> float:
    return (time_ns - zero_ns) / 1000


def _names() -> Iterator[Event]:
    for pid, name in ((STEPS_PID, "engine steps"), (LANES_PID, "lanes"), (REQUESTS_PID, "requests")):
        yield {"ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": "process_name", "args": {"name": name}}
    for tid, lane in enumerate(LANES, 1):
        yield {"ph": "M", "pid": LANES_PID, "tid": tid, "ts": 0, "name": "thread_name", "args": {"name": lane}}


def _steps(bundle: Bundle, engine: str, tid: int, zero_ns: int) -> Iterator[Event]:
    """An engine's track."""
    yield {
        "ph": "M",
        "pid": STEPS_PID,
        "tid": tid,
        "ts": 0,
        "name": "thread_name",
        "args": {"name": "steps" if engine == ONLY_ENGINE else f"steps of {engine}"},
    }
    for run in runs_of(step for step in bundle.steps if step.engine == engine):
        record = run.record
        tenants: dict[str, int] = {}
        for share in record.shares:
            tenants[share.tenant_id] = tenants.get(share.tenant_id, 0) + share.decode_tokens + share.prefill_tokens
        yield {
            "ph": "X", "pid": STEPS_PID, "tid": tid, "cat": "step", "name": record.bucket,
            "ts": _us(run.begin_ns, zero_ns), "dur": _us(run.end_ns, run.begin_ns),
            "args": {
                "step": record.step, "decode_rows": record.decode_rows, "prefill_tokens": record.prefill_tokens,
                "pad_tokens": record.pad_tokens, "predicted_s": record.predicted_s, "tokens": tenants,
                "interrupted_for": record.interrupted_for, "lost_tokens": record.lost_tokens,
                "preempted": [msgspec.structs.asdict(each) for each in record.preempted],
                "evicted": [msgspec.structs.asdict(each) for each in record.evictions],
            },
        }  # fmt: skip
        counters = {"pages free": record.pages_free, "decode rows": record.decode_rows, "prefill tokens": record.prefill_tokens}
        for name, value in counters.items():
            name = name if engine == ONLY_ENGINE else f"{name} of {engine}"
            yield {"ph": "C", "pid": STEPS_PID, "tid": tid, "name": name, "ts": _us(run.end_ns, zero_ns), "args": {"value": value}}


def _lane(report: RequestReport, zero_ns: int) -> Iterator[Event]:
    """Requests of a lane lie over each other, so they are asynchronous events."""
    tid = LANES.index(report.lane) + 1 if report.lane in LANES else len(LANES)
    common = {"pid": LANES_PID, "tid": tid, "cat": report.lane, "id": report.request_id, "name": f"{report.tenant_id} {report.request_id}"}
    yield {"ph": "b", "ts": _us(report.received_ns, zero_ns), "args": {"tenant": report.tenant_id}, **common}
    yield {"ph": "e", "ts": _us(report.ended_ns, zero_ns), "args": {"outcome": report.outcome.value}, **common}


def _request(bundle: Bundle, report: RequestReport, tid: int, zero_ns: int, *, is_running: bool) -> Iterator[Event]:
    """A track of its own: the whole, and in it the pieces."""
    title = f"{report.tenant_id} {report.lane} {report.request_id}"
    yield {"ph": "M", "pid": REQUESTS_PID, "tid": tid, "ts": 0, "name": "thread_name", "args": {"name": title}}
    state = "running" if is_running else report.outcome.value
    yield {
        "ph": "X", "pid": REQUESTS_PID, "tid": tid, "cat": "request", "name": state,
        "ts": _us(report.received_ns, zero_ns), "dur": _us(report.ended_ns, report.received_ns),
        "args": {"id": report.request_id, "prompt_tokens": report.prompt_tokens, "generated_tokens": report.generated_tokens},
    }  # fmt: skip
    for piece in pieces_of(report, bundle.recorded(report)):
        causes = {cause or "itself": round(duration_ns / 1e6, 3) for cause, duration_ns in piece.causes.items() if duration_ns}
        step = {} if piece.run is None else {"step": piece.run.record.step}
        yield {
            "ph": "X", "pid": REQUESTS_PID, "tid": tid, "cat": "piece", "name": piece.name,
            "ts": _us(piece.begin_ns, zero_ns), "dur": _us(piece.end_ns, piece.begin_ns), "args": {"ms_by_tenant": causes, **step},
        }  # fmt: skip
