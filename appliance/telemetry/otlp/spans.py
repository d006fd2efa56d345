"""A settled request as spans: one for the whole, and beneath it queue, prefill chunks, decode, write.

Names of attributes are those of OpenTelemetry's semantic conventions (`gen_ai.*`, `http.*`, `error.type`) where there is one, else
`fairlane.*`. No prompt and no output is in a span.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from appliance.telemetry.explain.pieces import Piece
from appliance.telemetry.explain.runs import Cause
from appliance.telemetry.otlp.attributes import Value, attributes_of
from appliance.telemetry.requests import Outcome, RequestReport
from appliance.telemetry.trace_context import TraceContext

MAX_CHUNKS = 64
"""Steps that computed a part of the prompt and have a span of their own; a request with more has one for them all."""
OPERATIONS = {"/v1/chat/completions": "chat"}
OTHER_OPERATION = "text_completion"
"""As `gen_ai.operation.name` calls continuing a text."""
_CHUNKS = frozenset({"prefill", "recompute"})
_DECODE = frozenset({"decode", "decode_wait", "between_steps"})
_PROMPT = frozenset({"prefill", "prefill_wait", "between_steps"})


@dataclass(slots=True)
class Phase:
    """Pieces that follow each other and are shown as one span."""

    name: str
    begin_ns: int
    end_ns: int
    absorbs: frozenset[str]
    """Names of pieces that belong to it while they follow it."""
    steps: int = 0
    tokens: int = 0
    causes: dict[Cause, int] = field(default_factory=dict[Cause, int])

    def add(self, piece: Piece) -> None:
        self.end_ns = piece.end_ns
        self.steps += piece.own_tokens > 0
        self.tokens += piece.own_tokens
        for cause, duration_ns in piece.causes.items():
            self.causes[cause] = self.causes.get(cause, 0) + duration_ns


def phases_of(pieces: Sequence[Piece]) -> list[Phase]:
    """The pieces, in order, put together: all of decoding is one phase, a chunk of the prompt is one of its own."""
    shows_chunks = sum(piece.name in _CHUNKS for piece in pieces) <= MAX_CHUNKS
    phases: list[Phase] = []
    for piece in pieces:
        if not phases or piece.name not in phases[-1].absorbs:
            phases.append(Phase(_phase_name(piece), piece.begin_ns, piece.end_ns, _absorbed(piece, shows_chunks)))
        phases[-1].add(piece)
    return phases


def _phase_name(piece: Piece) -> str:
    return "decode" if piece.name == "decode_wait" else piece.name


def _absorbed(piece: Piece, shows_chunks: bool) -> frozenset[str]:
    if piece.name in ("decode", "decode_wait"):
        return _DECODE
    if piece.name in _CHUNKS:
        return frozenset() if shows_chunks else _PROMPT | {piece.name}
    return frozenset({piece.name})


def spans_of(report: RequestReport, trace: TraceContext, pieces: Sequence[Piece], model_id: str, verdict: str, wall_ns: int) -> list[Span]:
    """The spans of a request; `wall_ns` is the wall clock's time at 0 of the report's clock. The root comes first."""
    trace_id, root_id = bytes.fromhex(trace.trace_id), bytes.fromhex(trace.span_id)
    root = Span(
        trace_id=trace_id,
        span_id=root_id,
        parent_span_id=bytes.fromhex(trace.parent_span_id),
        trace_state=trace.state,
        name=f"{_operation(report)} {model_id}".rstrip(),
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=wall_ns + report.received_ns,
        end_time_unix_nano=wall_ns + report.ended_ns,
        attributes=attributes_of(_root_values(report, model_id, verdict)),
        status=_status(report),
    )
    children = [
        Span(
            trace_id=trace_id,
            span_id=child_id,
            parent_span_id=root_id,
            name=phase.name,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=wall_ns + phase.begin_ns,
            end_time_unix_nano=wall_ns + phase.end_ns,
            attributes=attributes_of(_phase_values(phase, report.tenant_id)),
        )
        for phase, child_id in zip(phases_of(pieces), _child_ids(root_id), strict=False)
    ]
    return [root, *children]


def _operation(report: RequestReport) -> str:
    return OPERATIONS.get(report.route, OTHER_OPERATION)


def _child_ids(root_id: bytes) -> Iterator[bytes]:
    """The numbers that follow the root's random one; 0 is no id."""
    number = int.from_bytes(root_id)
    while True:
        number = (number + 1) % (1 << 64) or 1
        yield number.to_bytes(8)


def _root_values(report: RequestReport, model_id: str, verdict: str) -> dict[str, Value | None]:
    has_failed = report.outcome is not Outcome.COMPLETED
    return {
        "gen_ai.operation.name": _operation(report),
        "gen_ai.provider.name": "fairlane",
        "gen_ai.request.model": model_id,
        "gen_ai.response.model": model_id,
        "gen_ai.usage.input_tokens": report.prompt_tokens if report.scheduled_ns else 0,
        "gen_ai.usage.output_tokens": report.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": report.cached_tokens,
        "http.request.method": "POST",
        "http.route": report.route,
        "http.response.status_code": report.status,
        "error.type": (report.error_code or report.cause or report.outcome.value) if has_failed else None,
        "fairlane.request_id": report.request_id,
        "fairlane.tenant": report.tenant_id,
        "fairlane.lane": report.lane,
        "fairlane.outcome": report.outcome.value,
        "fairlane.streamed": report.streamed,
        "fairlane.ttft_s": (report.first_sent_ns - report.received_ns) / 1e9 if report.first_sent_ns else None,
        "fairlane.ttft_target_s": report.ttft_target_s,
        "fairlane.verdict": verdict,
    }


def _status(report: RequestReport) -> Status:
    """Of the server's side: what the client got wrong or gave up is no error here (semantic conventions for HTTP)."""
    if report.outcome in (Outcome.FAILED, Outcome.EXPIRED) or report.status >= 500:
        return Status(code=Status.STATUS_CODE_ERROR, message=report.message)
    return Status()


def _phase_values(phase: Phase, tenant_id: str) -> dict[str, Value | None]:
    """Steps and tokens of the request, and the tenant beside its own whose work took the most."""
    others = {cause: duration_ns for cause, duration_ns in phase.causes.items() if cause not in (None, tenant_id) and duration_ns}
    culprit = max(others, key=lambda cause: others[cause], default=None)
    return {
        "fairlane.steps": phase.steps or None,
        "fairlane.tokens": phase.tokens or None,
        "fairlane.culprit": culprit,
        "fairlane.culprit_s": others[culprit] / 1e9 if culprit is not None else None,
    }
