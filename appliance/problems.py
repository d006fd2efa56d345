"""The only place that knows HTTP status codes: errors become OpenAI-shaped bodies, `{"error": {message, type, param, code}}`.

`problem_of` is pure. `EXCEPTION_HANDLERS` go to the Litestar application; they cover our own tree, Litestar's
exceptions (unknown route, wrong method, validation, malformed JSON, body too large) and everything unexpected, which
is answered without a traceback and logged with the request's id.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi import ResponseSpec

from appliance.choices import with_choices
from appliance.errors import (
    ApplianceError,
    BodyTooSlow,
    Conflict,
    EditConflict,
    EndedByOperator,
    EngineFailed,
    Fault,
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

log = structlog.get_logger(__name__)

REQUEST_ID_STATE = "request_id"
"""Key of the request's id in the ASGI scope's `state`."""
ANSWER_HEADERS_STATE = "answer_headers"
"""Key of the ASGI scope's `state`: a list of headers that every answer to the request gets, also a refusal."""
MAX_RETRY_AFTER_S = 120
"""The OpenAI client ignores longer ones."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client reads. `message` is for people, `code` for programs, `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None
    reason: str = ""
    """Which limit or shortage, where there is one; absent elsewhere."""
    edit_conflict: EditConflict | None = None
    """The version that a second editor read, the present one and what it holds; absent elsewhere."""
    faults: tuple[Fault, ...] = ()
    """All that is wrong with a configuration document, each with its place; absent elsewhere."""


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP: what the exception handlers send, and what an `event: error` frame carries (`body`)."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


_STATUS_AND_TYPE: dict[type[ApplianceError], tuple[int, str]] = {
    Invalid: (400, "invalid_request_error"),
    Unauthenticated: (401, "authentication_error"),
    Forbidden: (403, "permission_error"),
    NotFound: (404, "invalid_request_error"),
    Conflict: (409, "conflict_error"),
    BodyTooSlow: (408, "invalid_request_error"),
    TooLarge: (413, "invalid_request_error"),
    UnsupportedMedia: (415, "invalid_request_error"),
    EndedByOperator: (503, "service_unavailable"),
    OverBudget: (429, "insufficient_quota"),
    OverOwnLimit: (429, "rate_limit_error"),
    Unavailable: (503, "service_unavailable"),
    EngineFailed: (500, "server_error"),
}

_UNKNOWN_FIELD = re.compile(r"contains unknown field `([^`]{1,64})")
_MISSING_FIELD = re.compile(r"missing required field `([^`]{1,64})")
"""As msgspec says it."""

_CODES = {400: "invalid_request", 401: "invalid_api_key", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
_CODES |= {413: TooLarge.code, 415: UnsupportedMedia.code}


def retry_after_s(wait_s: float) -> int:
    """A wait as the header carries it: whole seconds, 1 to `MAX_RETRY_AFTER_S`."""
    return max(1, min(MAX_RETRY_AFTER_S, math.ceil(wait_s)))


def problem_of(error: ApplianceError) -> Problem:
    """Status, body and headers of one of our own errors."""
    status, kind = next((_STATUS_AND_TYPE[cls] for cls in type(error).__mro__ if cls in _STATUS_AND_TYPE), (500, "server_error"))
    headers: dict[str, str] = {}
    reason = ""
    if isinstance(error, OverOwnLimit | Unavailable):
        headers["retry-after"] = str(retry_after_s(error.retry_after_s))
        reason = error.reason
    if isinstance(error, OverBudget | EndedByOperator):
        headers["x-should-retry"] = "false"
    if isinstance(error, BodyTooSlow):
        headers["connection"] = "close"  # the rest of the body may still come, and is no request
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    edit = error.edit if isinstance(error, Conflict) else None
    faults = error.faults if isinstance(error, Invalid) else ()
    detail = ErrorDetail(
        message=error.message, type=kind, param=error.param, code=error.code, reason=reason, edit_conflict=edit, faults=faults
    )
    return Problem(status, ErrorBody(detail), headers)


def _body(message: str, kind: str, code: str | None, param: str | None = None) -> ErrorBody:
    return ErrorBody(ErrorDetail(message=message, type=kind, param=param, code=code))


def _problem_of_litestar(error: HTTPException, request: Request[Any, Any, Any]) -> Problem:
    """Litestar's own refusals, in our shape and with words that say what to do."""
    # the path from the scope: `request.url` is made of the Host header, too, and raises where that holds no valid port
    method, path = request.method, request.scope["path"]
    status = error.status_code
    kind = {401: "authentication_error", 403: "permission_error"}.get(status, "invalid_request_error")
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    message, param = error.detail, None
    if isinstance(error, ValidationException):
        message, param = validation_message(error, request)
    elif status == 400:
        message = f"the request can not be read: {message}"
    elif status == 404:
        message = f"there is no route {method} {path}; /schema lists all"
    elif status == 405:
        message = f"{path} does not accept {method}; allowed: {headers.get('allow', 'see /schema')}"
    elif status == 413:
        message = "the request body is longer than this server accepts (max_body_bytes)"
    return Problem(status, _body(message, kind, _CODES.get(status), param), headers)


def validation_message(error: ValidationException, request: Request[Any, Any, Any]) -> tuple[str, str | None]:
    """All that is wrong with a request in one line, and the first field at fault (`data` is Litestar's word for the body)."""
    details = [item for item in (error.extra or []) if isinstance(item, dict)]
    parts, fields = [], []
    takes = request.route_handler.signature_model.__annotations__
    for item in details:
        key, message = str(item.get("key", "")), str(item.get("message", ""))
        unknown = _UNKNOWN_FIELD.search(message)
        missing = _MISSING_FIELD.search(message)
        if unknown or missing:
            key = (unknown or missing)[1]  # pyright: ignore[reportOptionalSubscript]
            message = "there is no such field" if unknown else "is required"
        elif key == "data":
            key, message = "", "the body is missing" if message == "'data'" else message
        else:
            message = with_choices(message, *((takes[key], "") if key in takes else (takes.get("data"), key)))
        parts.append(f"{key}: {message[:1].lower()}{message[1:]}" if key else message)
        fields += [key] if key else []
    return ("; ".join(filter(None, parts)) or error.detail), (fields[0] if fields else None)


def problem_responses(*statuses: int) -> dict[int, ResponseSpec]:
    """How a route documents its errors in OpenAPI; 400 is added to those given."""
    return {
        status: ResponseSpec(ErrorBody, generate_examples=False, description=HTTPStatus(status).phrase)
        for status in sorted({400, *statuses})
    }


# ---- Litestar ---------------------------------------------------------------------------------------------------


def respond(problem: Problem) -> Response[ErrorBody]:
    """A problem as Litestar's response."""
    return Response(problem.body, status_code=problem.status, headers=dict(problem.headers), media_type="application/json")


def _on_appliance_error(request: Request[Any, Any, Any], error: ApplianceError) -> Response[ErrorBody]:
    return respond(problem_of(error))


def _on_litestar_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[ErrorBody]:
    if error.status_code >= 500:
        return _on_unexpected(request, error)
    return respond(_problem_of_litestar(error, request))


def _on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[ErrorBody]:
    """A defect of ours: the client gets the id to tell us, the log gets the traceback."""
    request_id = request.scope.get("state", {}).get(REQUEST_ID_STATE, "")
    log.error("unexpected_error", request_id=request_id, method=request.method, path=request.scope["path"], exc_info=error)
    named = f" (request {request_id})" if request_id else ""
    return respond(Problem(500, _body(f"internal error{named}; the server's log has the cause", "server_error", "internal_error")))


def _on_nesting(request: Request[Any, Any, Any], error: RecursionError) -> Response[ErrorBody]:
    """Only reading a body recurses as deep as a client likes."""
    return respond(Problem(400, _body("the request can not be read: its JSON is nested too deeply", "invalid_request_error", _CODES[400])))


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[Request[Any, Any, Any], Any], Response[ErrorBody]]] = {
    ApplianceError: _on_appliance_error,
    HTTPException: _on_litestar_error,
    RecursionError: _on_nesting,
    Exception: _on_unexpected,
}


def require_json(content_type: str | None) -> None:
    """Raises `UnsupportedMedia` unless a body is declared as JSON (a missing content type counts as JSON)."""
    media = (content_type or "application/json").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise UnsupportedMedia(f"the body's content type is {media[:80]!r}: send application/json", param="content-type")
