"""Trying a tenant's limits and the model: a prompt, its answer as it comes, and where its time went."""

import time
from typing import Any

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import Message

from appliance.domain.inference.call import Call
from appliance.domain.inference.controller import RECEIVED_STATE, TRACE_STATE
from appliance.domain.inference.intake import CHAT
from appliance.domain.tenants.service import find_tenant
from appliance.errors import ApplianceError, Invalid
from appliance.problems import ANSWER_HEADERS_STATE, REQUEST_ID_STATE, problem_of
from appliance.route_access import WRITES
from appliance.ui.forms import Form, read_form
from appliance.ui.parts import Ui
from appliance.ui.timelines import Drawing, drawing_of
from appliance.ui.views import AnyRequest

Uis = NamedDependency[Ui]
KEY_ID = "ui"
"""Under which usage names requests that are made here."""
DEFAULT_TOKENS = "128"


class TrialController(Controller):
    """`/ui/tenants/{slug}/try`."""

    path = "/tenants/{slug:str}/try"

    @get(opt=WRITES)
    async def show(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[str]:
        """The prompt box."""
        return await _page(request, ui, slug, Form({"max_tokens": (DEFAULT_TOKENS,), "temperature": ("0",)}))

    @post(opt=WRITES)
    async def ask(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[str]:
        """Ask as the tenant, under its limits; the page with the whole answer."""
        form = await read_form(request)
        try:
            text = await _whole(request, await ui.house.inference.open(_call(request, ui, slug, _body_of(form, streams=False)), CHAT))
        except ApplianceError as error:
            return await _page(request, ui, slug, form, error)
        _, timeline = await ui.house.explainer.timeline(request.scope["state"][REQUEST_ID_STATE])
        return await _page(request, ui, slug, form, answer=text, drawing=drawing_of(timeline, slug))

    @post("/stream", opt=WRITES)
    async def stream(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> ASGIResponse:
        """The same for the page's script: events as the API sends them."""
        try:
            body = _body_of(await read_form(request), streams=True)
            return await ui.house.inference.open(_call(request, ui, slug, body), CHAT)
        except ApplianceError as error:
            problem = problem_of(error)
            return ASGIResponse(body=msgspec.json.encode(problem.body), media_type="application/json", status_code=problem.status)


def _body_of(form: Form, *, streams: bool) -> bytes:
    """As a client of the API would send it. Raises `Invalid`."""
    prompt = form.text("prompt")
    if not prompt:
        raise Invalid("write a prompt", param="prompt")
    body: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], "stream": streams}
    given = {"max_tokens": form.whole("max_tokens"), "temperature": form.number("temperature")}
    return msgspec.json.encode(body | {name: value for name, value in given.items() if value is not None})


def _call(request: AnyRequest, ui: Ui, slug: str, body: bytes) -> Call:
    """Raises `Forbidden` where the tenant is suspended."""
    state = request.scope["state"]

    async def read_body() -> bytes:
        return body

    return Call(
        request_id=state[REQUEST_ID_STATE],
        received_ns=state.get(RECEIVED_STATE) or time.monotonic_ns(),
        raw_key=None,
        tenant_header=None,
        principal=ui.house.control.directory.snapshot.stand_in(slug, KEY_ID),
        trace=state[TRACE_STATE],
        answer_headers=state[ANSWER_HEADERS_STATE],
        body_bytes=len(body),
        read_body=read_body,
    )


async def _whole(request: AnyRequest, exchange: ASGIResponse) -> str:
    """The answer's text. Raises as the exchange."""
    chunks: list[bytes] = []

    async def take(message: Message) -> None:
        if message["type"] == "http.response.body":
            chunks.append(message["body"])

    await exchange(request.scope, request.receive, take)
    if not chunks:
        raise Invalid("the browser went away before the answer was there")
    return msgspec.json.decode(b"".join(chunks))["choices"][0]["message"]["content"]


async def _page(
    request: AnyRequest,
    ui: Ui,
    slug: str,
    form: Form,
    error: ApplianceError | None = None,
    answer: str | None = None,
    drawing: Drawing | None = None,
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        tenant = (await find_tenant(session, slug)).tenant
    values = {"tenant": tenant, "form": form, "error": error, "answer": answer, "drawing": drawing}
    status = problem_of(error).status if error else 200
    return ui.views.page(request, "tenants/try.html", status, page="tenants", **values)
