"""Errors as pages: what went wrong, and what to do."""

from typing import Any
from urllib.parse import urlencode, urlsplit

import structlog
from litestar import Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.response import Redirect

from appliance.errors import ApplianceError
from appliance.problems import REQUEST_ID_STATE, problem_of, validation_message
from appliance.ui.access import NotLoggedIn
from appliance.ui.navigation import HOME
from appliance.ui.views import AnyRequest, Views, asked_address

log = structlog.get_logger(__name__)

TITLES = {
    400: "That can not be done",
    403: "Not allowed",
    404: "Nothing here",
    405: "That can not be done",
    409: "Changed meanwhile",
    413: "Too large",
    429: "Wait a little",
    503: "Not at the moment",
}


def exception_handlers(views: Views) -> dict[int | type[Exception], Any]:
    """For the router of the pages."""

    def on_appliance_error(request: AnyRequest, error: ApplianceError) -> Response[str]:
        problem = problem_of(error)
        return error_page(views, request, problem.status, error.message, dict(problem.headers), error.code == "database_unavailable")

    def on_http_error(request: AnyRequest, error: HTTPException) -> Response[Any]:
        if error.status_code >= 500:
            return on_unexpected(request, error)
        if error.status_code == 405 and request.method == "GET":  # where a form goes; the page that has it is above
            return Redirect(request.scope["path"].rstrip("/").rpartition("/")[0], status_code=303)
        return error_page(views, request, error.status_code, _words(error, request), dict(error.headers or {}))

    def on_unexpected(request: AnyRequest, error: Exception) -> Response[str]:
        request_id = request.scope.get("state", {}).get(REQUEST_ID_STATE, "")
        log.error("unexpected_error", request_id=request_id, method=request.method, path=request.scope["path"], exc_info=error)
        return error_page(views, request, 500, f"This is a defect of ours. The server's log has the cause under {request_id}.")

    return {
        NotLoggedIn: to_login,
        ApplianceError: on_appliance_error,
        HTTPException: on_http_error,
        Exception: on_unexpected,
    }


def error_page(
    views: Views, request: AnyRequest, status: int, message: str, headers: dict[str, str] | None = None, no_database: bool = False
) -> Response[str]:
    """A page that says what is wrong; without a database, also what is left."""
    request_id = request.scope.get("state", {}).get(REQUEST_ID_STATE, "")
    title = TITLES.get(status, "Something went wrong")
    values = {"title": title, "message": message, "request_id": request_id, "no_database": no_database}
    page = views.page(request, "error.html", status, **values)
    headers = {name: value for name, value in (headers or {}).items() if name != "www-authenticate"}
    page.headers.update(headers)
    return page


def _words(error: HTTPException, request: AnyRequest) -> str:
    """What Litestar refuses, and what to do instead."""
    path = request.scope["path"][:80]
    if isinstance(error, ValidationException):
        return f"the address can not be read: {validation_message(error, request)[0]}"
    if error.status_code == 404:
        return f"there is no page {path!r}"
    return error.detail


def to_login(request: AnyRequest, error: NotLoggedIn) -> Response[Any]:
    """A page's browser goes to the login form, and back from there; a part of a page tells its page to. Who sent a form is told
    that it changed nothing, and comes back to where it was."""
    if request.method == "GET":
        asked = {"next": asked_address(request)}
    else:
        asked = {"next": urlsplit(request.headers.get("referer", "")).path, "ended": "1"}
    target = HOME if asked == {"next": HOME} else f"{HOME}?{urlencode(asked)}"
    if request.headers.get("hx-request") or "text/event-stream" in request.headers.get("accept", ""):
        return Response("", status_code=401, media_type="text/plain", headers={"hx-redirect": HOME, "cache-control": "no-store"})
    return Redirect(target, status_code=303, headers={"cache-control": "no-store"})
