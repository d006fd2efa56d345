"""What is known of an admitted request from the beginning, and how its end is named."""

from asyncio import CancelledError
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.errors import ApplianceError, EndedByOperator, Unavailable
from appliance.problems import problem_of
from appliance.telemetry.requests import Outcome
from appliance.telemetry.trace_context import TraceContext
from engine.wire import ONLY_ENGINE

CLIENT_CLOSED_STATUS = 499
"""Not sent to anybody: how logs name the status of a client that had gone (nginx)."""

QUEUE_TIMEOUT = "queue_timeout"
"""Error code and rejection reason of a request that waited too long."""
RETRY_AFTER_EXPIRY_S = 5.0
ENGINE_RETRY_AFTER_S = 5.0
"""As at the gate: a restart with warm caches."""
DEADLINE = "deadline_exceeded"
"""Error code of a request that had no token by its own deadline."""


class Cancellation(Exception):
    """The request ends because nobody wants it any more. `cause` is one of the metric's values."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is known of a request when it is admitted."""

    request_id: str
    route: str
    tenant_id: str
    lane: str
    streamed: bool
    received_ns: int
    held_ns: int = 0
    """How long it stood at the door."""
    read_ns: int = 0
    """The body was there."""
    tokenized_ns: int = 0
    opened_ns: int
    outputs_per_prompt: int
    key_id: str = ""
    queue_ttl_s: float | None = None
    """Longest wait for the first step, from receipt."""
    shadow_mode: bool = False
    """A request that waits too long is only counted."""
    deadline_ms: int | None = None
    """From receipt: then it ends with what it has."""
    ttft_targets_s: Mapping[str, float] = field(default_factory=dict[str, float])
    tpot_targets_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the tenant's tier, by lane."""
    trace: TraceContext | None = None
    is_promised: bool = False
    """Admission lets it wait longer than its lane allows."""
    engine: str = ONLY_ENGINE
    """The replica that it was handed to."""

    @property
    def deadline_ns(self) -> int | None:
        """`monotonic_ns`."""
        return None if self.deadline_ms is None else self.received_ns + self.deadline_ms * 1_000_000

    def queue_error(self) -> Unavailable:
        """It has waited for its first step as long as its tier allows."""
        message = f"no step began within {self.queue_ttl_s:g} s, the longest wait of this tenant's tier: try again shortly"
        return Unavailable(message, reason=QUEUE_TIMEOUT, retry_after_s=RETRY_AFTER_EXPIRY_S)

    def lane_error(self, waited_s: float, lane: str) -> Unavailable:
        """The scheduler gave it up: it would have been late."""
        message = f"no step began within {waited_s:.3g} s, too late for the TTFT target of lane {lane!r}: try again shortly"
        return Unavailable(message, reason=QUEUE_TIMEOUT, retry_after_s=RETRY_AFTER_EXPIRY_S)

    def deadline_error(self) -> Unavailable:
        """Its deadline came before its first token."""
        message = f"no token came within the {self.deadline_ms} ms of this request's own deadline: allow more time, or try again later"
        return Unavailable(message, reason=DEADLINE, retry_after_s=RETRY_AFTER_EXPIRY_S)


def engine_gone(reason: str) -> Unavailable:
    """The engine died under a request, or just before it took it."""
    message = f"the engine went away ({reason}) and is being started again: send the request again shortly"
    return Unavailable(message, reason="engine_down", retry_after_s=ENGINE_RETRY_AFTER_S)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a request ended. `cause` is the metric's label where nobody wanted it any more."""

    outcome: Outcome
    status: int
    """HTTP status; a stream that has begun was answered 200, whatever follows."""
    error_code: str = ""
    cause: str = ""


def verdict_of(error: BaseException | None, *, has_begun: bool, is_cut: bool) -> Verdict:
    """The end of a request that `error` ended (None: it is complete), or its deadline after some output (`is_cut`)."""
    match error:
        case None:
            return Verdict(Outcome.EXPIRED, 200, cause="deadline") if is_cut else Verdict(Outcome.COMPLETED, 200)
        case Cancellation(cause=cause):
            return Verdict(Outcome.CANCELLED, CLIENT_CLOSED_STATUS, cause=cause)
        case EndedByOperator():
            return Verdict(Outcome.CANCELLED, 200 if has_begun else problem_of(error).status, error.code, cause="admin")
        case Unavailable(reason="queue_timeout"):
            return Verdict(Outcome.EXPIRED, problem_of(error).status, error.code)
        case Unavailable(reason="deadline_exceeded"):
            return Verdict(Outcome.EXPIRED, problem_of(error).status, error.code, cause="deadline")
        case ApplianceError():
            return Verdict(Outcome.FAILED, 200 if has_begun else problem_of(error).status, error.code)
        case CancelledError():
            return Verdict(Outcome.FAILED, 200 if has_begun else 503, "draining")
        case _:
            return Verdict(Outcome.FAILED, 200 if has_begun else 500, "internal_error")
