"""W3C Trace Context: which trace a request belongs to, from its headers or made up, and what its answer says.

https://www.w3.org/TR/trace-context/ (level 1), and `traceresponse` of level 2.
"""

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

TRACEPARENT, TRACESTATE, TRACERESPONSE = b"traceparent", b"tracestate", b"traceresponse"
MAX_STATE_CHARS = 512
"""What level 1 (3.3.1.5) asks everybody to carry; more is not kept."""
_PARENT = re.compile(r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_RANDOM_BITS = 56
"""The last 7 bytes of a trace id are random (level 2), so they decide who is kept, here as in OpenTelemetry's samplers."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids in lower-case hexadecimal digits: 32 of the trace, 16 of a span."""

    trace_id: str
    span_id: str
    """Of the request itself."""
    parent_span_id: str = ""
    """Of the caller's span; empty where the trace begins here."""
    state: str = ""
    """The caller's `tracestate`, handed on as it was."""

    def is_sampled(self, ratio: float) -> bool:
        """Whether the trace belongs to this share of all: the same answer everywhere for the same trace."""
        return int(self.trace_id[-_RANDOM_BITS // 4 :], 16) >= (1 - ratio) * (1 << _RANDOM_BITS)

    def response_header(self, ratio: float) -> tuple[bytes, bytes]:
        """`traceresponse`, which tells the caller the ids under which the request is found, and whether its trace is kept in any case."""
        return TRACERESPONSE, f"00-{self.trace_id}-{self.span_id}-{self.is_sampled(ratio):02x}".encode()


def context_of(headers: Iterable[tuple[bytes, bytes]], new_trace_id: str) -> TraceContext:
    """The caller's trace, or one of the id `new_trace_id` (32 digits) where it names none, or none that is valid."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    span_id = secrets.token_hex(8)
    parent = _parsed(parents[0].decode("latin-1")) if len(parents) == 1 else None
    if parent is None:
        return TraceContext(new_trace_id, span_id)
    state = b",".join(states).decode("latin-1")
    is_kept = len(state) <= MAX_STATE_CHARS and state.isascii() and state.isprintable()
    return TraceContext(parent[0], span_id, parent[1], state if is_kept else "")


def _parsed(value: str) -> tuple[str, str] | None:
    """Trace and span of a `traceparent`. A later version may have more at its end, ours may not; `ff` is none (3.2.2)."""
    found = _PARENT.fullmatch(value.strip(" \t"))
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["more"] is not None):
        return None
    if found["trace"] == _NO_TRACE or found["span"] == _NO_SPAN:
        return None
    return found["trace"], found["span"]
