"""The ASGI application: Litestar's routes inside an envelope that names and times each request."""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from litestar import Litestar, Request, Response, Router, get
from litestar.di import Provide
from litestar.enums import HttpMethod
from litestar.exceptions import HTTPException, NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.response import Redirect
from litestar.types import Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from appliance.domain.access.directory import Directory
from appliance.domain.admission.service import Admission
from appliance.domain.explain.controller import ExplainController
from appliance.domain.explain.pages import DebugPages
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.cancelling import Canceller
from appliance.domain.inference.controller import RECEIVED_STATE, TRACE_STATE, InferenceController
from appliance.domain.inference.service import InferenceService
from appliance.domain.system.api_page import describe_bodies, openapi_config
from appliance.domain.system.controller import SystemController
from appliance.domain.system.health import Health
from appliance.errors import BodyTooSlow
from appliance.logs import LogLevel
from appliance.problems import ANSWER_HEADERS_STATE, EXCEPTION_HANDLERS, REQUEST_ID_STATE
from appliance.route_access import PUBLIC, refuse_undeclared
from appliance.telemetry.flight.recorder import FlightRecorder
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.trace_context import context_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the routes work with."""

    inference: InferenceService
    health: Health
    telemetry: Telemetry
    directory: Directory
    explainer: ExplainService
    admission: Admission
    max_body_bytes: int
    body_deadline_s: float
    metrics_need_key: bool
    admin: Router | None = None
    canceller: Canceller | None = None
    recorder: FlightRecorder | None = None
    debug: Router | None = None
    ui: Router | None = None
    pages: DebugPages | None = None
    log_level: LogLevel | None = None
    trace_sample_ratio: float = 0.0
    """Of the requests that are neither slow nor failed, the share whose traces are kept."""


def create_app(parts: Parts) -> "Envelope":
    """All routes: inference, system, admin where given, and their description under /schema."""
    provided: dict[str, Any] = {
        "inference": parts.inference,
        "doorstep": parts.inference.doorstep,
        "health": parts.health,
        "telemetry": parts.telemetry,
        "directory": parts.directory,
        "explainer": parts.explainer,
        "admission": parts.admission,
        "canceller": parts.canceller,
        "recorder": parts.recorder,
        "pages": parts.pages,
        "log_level": parts.log_level,
        "metrics_need_key": parts.metrics_need_key,
    }
    app = Litestar(
        [InferenceController, ExplainController, SystemController, *_routers(parts)],
        dependencies={name: _provide(value) for name, value in provided.items()},
        exception_handlers=_exception_handlers(parts.ui),
        openapi_config=openapi_config(own_version()),
        request_max_body_size=parts.max_body_bytes,
        logging_config=None,
    )
    describe_bodies(app)
    refuse_undeclared(app)
    return Envelope(app, parts.body_deadline_s, parts.trace_sample_ratio)


def _routers(parts: Parts) -> list[Router | HTTPRouteHandler]:
    routers = [router for router in (parts.admin, parts.debug, parts.ui) if router]
    return [*routers, front_door] if parts.ui else [*routers]


@get("/", opt=PUBLIC, include_in_schema=False)
async def front_door(request: Request[Any, Any, Any]) -> Redirect:
    """A browser that is given the bare address is led to the web pages; programs are told that there is nothing."""
    if "text/html" not in request.headers.get("accept", ""):
        raise NotFoundException
    return Redirect("/ui/")


def _exception_handlers(ui: Router | None) -> dict[int | type[Exception], Any]:
    """JSON, but below the web pages' path pages: also where no route is, and so no router whose handlers would be asked."""
    if ui is None:
        return {**EXCEPTION_HANDLERS}
    as_page = ui.exception_handlers[HTTPException]

    def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
        is_page = request.scope["path"].startswith(f"{ui.path}/")
        return (as_page if is_page else EXCEPTION_HANDLERS[HTTPException])(request, error)

    return {**EXCEPTION_HANDLERS, HTTPException: on_http_error}


def own_version() -> str:
    """The installed version; `source` where the code runs without being installed."""
    try:
        return version("fairlane")
    except PackageNotFoundError:
        return "source"


def _provide(value: Any) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


class Envelope:
    """Gives each request its id, its trace, its time of receipt and a deadline for its body, every log line written meanwhile the id, and
    every answer the headers `x-request-id` and `traceresponse`.

    HEAD is answered as GET (RFC 9110, section 9.3.2); the server leaves the body out.
    """

    def __init__(
        self,
        app: Litestar,
        body_deadline_s: float,
        trace_sample_ratio: float = 0.0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.litestar = app
        self._body_deadline_s = body_deadline_s
        self._trace_sample_ratio = trace_sample_ratio
        self._clock_ns = clock_ns
        self._wall_s = wall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.litestar(scope, receive, send)
            return
        request_id = new_request_id(self._wall_s())
        state = scope.setdefault("state", {})
        state[REQUEST_ID_STATE] = request_id
        state[RECEIVED_STATE] = self._clock_ns()
        trace = state[TRACE_STATE] = context_of(scope["headers"], request_id.removeprefix("req_"))
        headers = [(b"x-request-id", request_id.encode()), trace.response_header(self._trace_sample_ratio)]
        state[ANSWER_HEADERS_STATE] = headers

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        if scope["method"] == "HEAD":
            scope = {**scope, "method": HttpMethod.GET}
        with bound_contextvars(request_id=request_id):
            await self.litestar(scope, _BodyInTime(receive, self._body_deadline_s), send_named)


class _BodyInTime:
    """`receive`, which gives a request's body only so many seconds to arrive, from when somebody begins to read it."""

    def __init__(self, receive: Receive, deadline_s: float) -> None:
        self._receive = receive
        self._deadline_s = deadline_s
        self._due_s: float | None = None
        self._is_whole = False

    async def __call__(self) -> Any:
        """Raises `BodyTooSlow`."""
        if self._is_whole:
            return await self._receive()  # from now on it tells whether the client is still there
        try:
            if self._due_s is None:
                self._due_s = asyncio.get_running_loop().time() + self._deadline_s
            async with asyncio.timeout_at(self._due_s):
                message = await self._receive()
        except TimeoutError as error:
            raise BodyTooSlow(
                f"the request's body did not arrive within {self._deadline_s:g} s (body_deadline_s): send it again"
            ) from error
        self._is_whole = message["type"] != "http.request" or not message["more_body"]
        return message


def new_request_id(wall_s: float) -> str:
    """`req_` and a UUID of version 7 (RFC 9562): milliseconds first, so ids sort by time; the rest is random."""
    random_bits = uuid.uuid4().int & ((1 << 76) - 1)
    time_ms = int(wall_s * 1000) & ((1 << 48) - 1)
    number = time_ms << 80 | random_bits
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return f"req_{number:032x}"
