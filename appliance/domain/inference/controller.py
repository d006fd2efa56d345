"""The inference routes. Bodies are read here and decoded in the service: a refusal is counted like any other outcome."""

import time
from typing import Any

from litestar import Controller, Request, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from appliance.domain.access.keys import bearer
from appliance.domain.inference.answers import ModelAnswer, ModelListAnswer, TokenizeAnswer
from appliance.domain.inference.call import Call
from appliance.domain.inference.facts import Cancellation
from appliance.domain.inference.intake import CHAT, COMPLETIONS, GENERATE, AnyRoute
from appliance.domain.inference.service import InferenceService
from appliance.errors import Invalid, NotFound, TooLarge
from appliance.problems import ANSWER_HEADERS_STATE, REQUEST_ID_STATE, problem_responses, require_json
from appliance.route_access import INFERS
from appliance.strict_requests import sole_header

RECEIVED_STATE = "received_ns"
"""Key of the ASGI scope's `state`: when the request's headers were there, `monotonic_ns`."""

TRACE_STATE = "trace"
"""Key of the ASGI scope's `state`: the request's `TraceContext`."""

AnyRequest = Request[Any, Any, Any]

GENERATES = {"status_code": 200, "responses": problem_responses(401, 403, 404, 408, 413, 415, 429, 500, 503)}


class Hangup(ASGIResponse):
    """The answer to a client that has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        return


class InferenceController(Controller):
    """OpenAI's routes, and two shorter ones.

    They take one dependency: Litestar resolves several in tasks of their own, which would be a tenth of what the control plane adds.
    """

    tags = ["Inference"]
    opt = INFERS
    security = [{"bearer": []}]

    @post("/v1/completions", summary="Continue a text", **GENERATES)
    async def completions(self, request: AnyRequest, inference: NamedDependency[InferenceService]) -> ASGIResponse:
        """OpenAI's completions, with `stream: true` as server-sent events that end with `data: [DONE]`."""
        return await _open(request, inference, COMPLETIONS)

    @post("/v1/chat/completions", summary="Continue a conversation", **GENERATES)
    async def chat(self, request: AnyRequest, inference: NamedDependency[InferenceService]) -> ASGIResponse:
        """OpenAI's chat completions, with `stream: true` as server-sent events that end with `data: [DONE]`."""
        return await _open(request, inference, CHAT)

    @post("/generate", summary="A prompt in, text out", **GENERATES)
    async def generate(self, request: AnyRequest, inference: NamedDependency[InferenceService]) -> ASGIResponse:
        """The shortest way to text: `{"prompt": "...", "max_tokens": 32}`; with `stream: true` as events."""
        return await _open(request, inference, GENERATE)

    @post("/tokenize", summary="Count and show tokens", status_code=200, responses=problem_responses(401, 403, 404, 413, 415, 503))
    async def tokenize(self, request: AnyRequest, inference: NamedDependency[InferenceService]) -> TokenizeAnswer:
        """Token ids of a prompt, or of messages as the chat route would render them."""
        return await inference.tokenize(_call(request))

    @get("/v1/models", summary="List models", responses=problem_responses(401, 403, 503))
    async def models(self, request: AnyRequest, inference: NamedDependency[InferenceService]) -> ModelListAnswer:
        """The models this key may use."""
        return ModelListAnswer(data=await _models(request, inference))

    @get("/v1/models/{model_id:path}", summary="Show a model", responses=problem_responses(401, 403, 404, 503))
    async def model(self, request: AnyRequest, inference: NamedDependency[InferenceService], model_id: FromPath[str]) -> ModelAnswer:
        """One model."""
        name = model_id.removeprefix("/")
        for model in await _models(request, inference):
            if model.id == name:
                return model
        raise NotFound(f"the model {name[:200]!r} does not exist here, or this key may not use it", param="model", code="model_not_found")


async def _models(request: AnyRequest, inference: InferenceService) -> list[ModelAnswer]:
    headers = request.headers
    return await inference.models(bearer(sole_header(headers, "authorization")), sole_header(headers, "x-tenant-id"))


async def _open(request: AnyRequest, inference: InferenceService, route: AnyRoute) -> ASGIResponse:
    try:
        return await inference.open(_call(request), route)
    except Cancellation:
        return Hangup()


def _call(request: AnyRequest) -> Call:
    state, headers, flaw = request.scope["state"], request.headers, None
    raw_key = tenant = None
    try:
        raw_key, tenant = bearer(sole_header(headers, "authorization")), sole_header(headers, "x-tenant-id")
    except Invalid as error:
        flaw = error
    return Call(
        request_id=state[REQUEST_ID_STATE],
        received_ns=state.get(RECEIVED_STATE) or time.monotonic_ns(),
        raw_key=raw_key,
        tenant_header=tenant,
        flaw=flaw,
        task_header=headers.get("x-task"),
        deadline_header=headers.get("x-deadline-ms"),
        trace=state[TRACE_STATE],
        answer_headers=state[ANSWER_HEADERS_STATE],
        body_bytes=_declared_bytes(request),
        read_body=lambda: read_body(request),
    )


def _declared_bytes(request: AnyRequest) -> int | None:
    """None where the body comes in pieces of its own making."""
    headers = request.headers
    if "transfer-encoding" in headers:
        return None
    declared = headers.get("content-length", "0")
    return int(declared) if declared.isdecimal() else None


async def read_body(request: AnyRequest) -> bytes:
    """The request's JSON body.

    Raises:
        UnsupportedMedia: another content type.
        TooLarge: longer than the application allows; what is declared too long is not read at all.
        Cancellation: the client went away before the end.
    """
    require_json(request.headers.get("content-type"))
    max_bytes = request.route_handler.resolve_request_max_body_size()
    assert max_bytes is not None, "create_app sets it"
    declared = _declared_bytes(request)
    if declared is not None and declared > max_bytes:
        raise _too_large(declared, max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await request.receive()
        if message["type"] != "http.request":
            raise Cancellation("disconnect")
        chunks.append(message["body"])
        num_bytes += len(message["body"])
        if num_bytes > max_bytes:
            raise _too_large(num_bytes, max_bytes)
        if not message["more_body"]:
            return b"".join(chunks)


def _too_large(num_bytes: int, max_bytes: int) -> TooLarge:
    return TooLarge(f"the request body has at least {num_bytes} bytes; this server takes {max_bytes} (max_body_bytes)")
