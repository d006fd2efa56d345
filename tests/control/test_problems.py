import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
import pytest
import structlog
from httpx import Response
from litestar import Litestar, get, post
from litestar.params import FromQuery, JSONBody
from litestar.testing import AsyncTestClient

from appliance.errors import (
    ApplianceError,
    Conflict,
    EngineFailed,
    Forbidden,
    Invalid,
    NotFound,
    OverBudget,
    OverOwnLimit,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMedia,
)
from appliance.problems import EXCEPTION_HANDLERS, problem_of, require_json, retry_after_s


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (Invalid("m"), 400, "invalid_request_error", "invalid_value"),
        (Unauthenticated("m"), 401, "authentication_error", "invalid_api_key"),
        (Forbidden("m"), 403, "permission_error", "forbidden"),
        (NotFound("m", code="model_not_found"), 404, "invalid_request_error", "model_not_found"),
        (Conflict("m"), 409, "conflict_error", "conflict"),
        (TooLarge("m"), 413, "invalid_request_error", "request_too_large"),
        (UnsupportedMedia("m"), 415, "invalid_request_error", "unsupported_media_type"),
        (OverOwnLimit("m", reason="rate_tokens", retry_after_s=1), 429, "rate_limit_error", "rate_limit_exceeded"),
        (OverBudget("m", reason="budget", retry_after_s=1), 429, "insufficient_quota", "insufficient_quota"),
        (Unavailable("m", reason="draining", retry_after_s=1), 503, "service_unavailable", "draining"),
        (EngineFailed("m"), 500, "server_error", "engine_error"),
        (ApplianceError("m"), 500, "server_error", "internal_error"),
    ],
)
def test_every_error_has_its_status_type_and_code(error, status, kind, code):
    problem = problem_of(error)
    body = json.loads(msgspec.json.encode(problem.body))["error"]
    assert (problem.status, body["type"], body["code"], body["message"], body["param"]) == (status, kind, code, "m", None)


def test_every_class_of_the_tree_is_mapped():
    def tree(cls: type[ApplianceError]) -> list[type[ApplianceError]]:
        return [cls, *(sub for child in cls.__subclasses__() for sub in tree(child))]

    limited = {"reason": "r", "retry_after_s": 1.0}
    for cls in tree(ApplianceError)[1:]:
        if cls.__module__.startswith("appliance.cli."):
            continue  # commands raise and catch these; no route does
        error = cls("m", **(limited if issubclass(cls, OverOwnLimit | Unavailable) else {}))
        assert problem_of(error).status >= 400
        assert problem_of(error).status != 500 or cls is EngineFailed


@pytest.mark.parametrize(("wait_s", "header"), [(0.0, 1), (0.2, 1), (1.01, 2), (119.5, 120), (1e9, 120)])
def test_retry_after_is_whole_seconds_that_clients_obey(wait_s, header):
    assert retry_after_s(wait_s) == header


def test_a_limit_says_when_to_come_back_and_which_one_it_was():
    problem = problem_of(OverOwnLimit("m", reason="rate_tokens", retry_after_s=3.2))
    assert problem.headers == {"retry-after": "4"}
    assert problem.body.error.reason == "rate_tokens"


def test_a_spent_budget_tells_clients_not_to_retry():
    assert problem_of(OverBudget("m", reason="budget", retry_after_s=9)).headers["x-should-retry"] == "false"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_is_no_json_is_refused(content_type):
    with pytest.raises(UnsupportedMedia, match="send application/json"):
        require_json(content_type)


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"])
def test_json_is_accepted(content_type):
    require_json(content_type)


class Body(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    unit: Literal["token", "page"] = "token"


@post("/count")
async def count(data: JSONBody[Body], order: FromQuery[Literal["up", "down"]] = "up") -> dict[str, int]:
    return {"count": data.count}


@get("/broken")
async def broken() -> None:
    raise RuntimeError("the secret of the house")


@get("/busy")
async def busy() -> None:
    raise Unavailable("too many wait", reason="overloaded", retry_after_s=2)


@pytest.fixture
async def client() -> AsyncIterator[AsyncTestClient[Litestar]]:
    app = Litestar([count, broken, busy], exception_handlers=EXCEPTION_HANDLERS, request_max_body_size=1000, logging_config=None)
    async with AsyncTestClient(app, raise_server_exceptions=False) as opened:
        yield opened


def error_of(response: Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    return response.json()["error"]


@pytest.mark.parametrize(
    ("sent", "status", "param", "message"),
    [
        ({"content": b'{"count": '}, 400, None, "can not be read"),
        ({"content": b"\xff\xfe"}, 400, None, "can not be read"),
        ({"content": b""}, 400, None, "body is missing"),
        ({"json": {"count": "x"}}, 400, "count", "got `str`"),
        ({"json": {}}, 400, "count", "is required"),
        ({"json": {"count": 1, "amount": 2}}, 400, "amount", "no such field"),
        ({"json": {"count": 1, "unit": "byte"}}, 400, "unit", "unit: 'byte' is none of page, token"),
        ({"json": {"count": 1}, "params": {"order": "odd"}}, 400, "order", "order: 'odd' is none of down, up"),
        ({"json": {"count": "x" * 2000}}, 413, None, "longer than"),
    ],
)
async def test_a_wrong_body_is_named(client, sent, status, param, message):
    response = await client.post("/count", **sent)
    error = error_of(response)
    assert (response.status_code, error["param"]) == (status, param), error
    assert message in error["message"]


async def test_an_unknown_route_is_a_404_in_our_shape(client):
    response = await client.get("/nowhere")
    assert response.status_code == 404
    assert "GET /nowhere" in error_of(response)["message"]


async def test_a_wrong_method_is_a_405_that_names_the_right_ones(client):
    response = await client.get("/count")
    assert response.status_code == 405
    assert "POST" in response.headers["allow"]
    assert "POST" in error_of(response)["message"]


async def test_a_defect_shows_clients_no_traceback_and_leaves_one_in_the_log(client):
    with structlog.testing.capture_logs() as lines:
        response = await client.get("/broken")
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret of the house" not in response.text
    assert [(line["event"], str(line["exc_info"])) for line in lines] == [("unexpected_error", "the secret of the house")]


async def test_an_error_raised_in_a_handler_carries_its_headers(client):
    response = await client.get("/busy")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    assert error_of(response)["reason"] == "overloaded"
