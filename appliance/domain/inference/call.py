"""A request as it arrives, and how far it came."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from appliance.domain.access.principal import Principal
from appliance.errors import ApplianceError
from appliance.telemetry.trace_context import TraceContext

type ReadBody = Callable[[], Awaitable[bytes]]
"""Raises `TooLarge`, `UnsupportedMedia`, or `Cancellation` when the client goes away meanwhile."""


@dataclass(slots=True)
class Stamps:
    """How far a request came, and when. `monotonic_ns`; 0: not yet."""

    held_ns: int = 0
    """How long it stood at the door."""
    read_ns: int = 0
    """The body was there."""
    tokenized_ns: int = 0
    prompt_tokens: int = 0
    """Of its prompts, once they are tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request as it arrived: who and when, not yet what."""

    request_id: str
    received_ns: int
    raw_key: str | None
    tenant_header: str | None
    flaw: ApplianceError | None = None
    """Why its headers name nobody."""
    principal: Principal | None = None
    """Who it is, where that is known already; else the key tells."""
    task_header: str | None = None
    deadline_header: str | None = None
    trace: TraceContext | None = None
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    """Where headers go that the answer gets whatever it is."""
    body_bytes: int | None = None
    """Length of the body as it was declared; None: it was not."""
    read_body: ReadBody
