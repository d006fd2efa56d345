"""From a template to an answer, with the headers that every page has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from litestar import Request, Response
from litestar.datastructures import Cookie

from appliance.domain.system.health import ReadyAnswer
from appliance.telemetry.explain.verdict import lost_in_words
from appliance.ui.access import VISIT_COOKIE, Doorkeeper, Visitor
from appliance.ui.assets import Assets
from appliance.ui.navigation import HOME, MENU, PATHS
from appliance.ui.sla_form import field_words
from appliance.ui.timelines import part_words
from appliance.ui.wording import FILTERS

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Nothing inline and nothing from elsewhere; and what a page shows is not kept, as it may be secret."""

AnyRequest = Request[Any, Any, Any]


class Views:
    """Renders templates."""

    def __init__(self, doorkeeper: Doorkeeper, assets: Assets, version: str, ready: Callable[[], ReadyAnswer]) -> None:
        """`ready` tells how the appliance is: every page says so."""
        self.assets = assets
        self._doorkeeper = doorkeeper
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES_FOLDER),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {**FILTERS, "part_words": part_words, "loss_words": lost_in_words, "field_words": field_words}
        self._environment.globals |= {"asset": assets.url, "menu": MENU, "version": version, "ready": ready}

    def fragment(self, template: str, **values: Any) -> str:
        """A piece of a page, without its frame."""
        return self._environment.get_template(template).render(values)

    def page(self, request: AnyRequest, template: str, status: int = 200, **values: Any) -> Response[str]:
        """A page. `page` among the values is its name in the menu."""
        visitor = self._doorkeeper.visitor(request)
        here = asked_address(request) or PATHS.get(values.get("page", ""), HOME)
        text = self.fragment(template, **{"page": "", "visitor": visitor, "here": here, **values})
        return Response(text, status_code=status, media_type="text/html", headers=HEADERS, cookies=_cookies(request, visitor))


def asked_address(request: AnyRequest) -> str:
    """Path and query of a page; empty for a form that was sent, whose address shows nothing."""
    if request.method != "GET":
        return ""
    query = request.scope["query_string"].decode("ascii", "replace")
    return request.scope["path"] + (f"?{query}" if query else "")


def _cookies(request: AnyRequest, visitor: Visitor) -> list[Cookie]:
    """A browser without a session gets a visit's, for the login form."""
    if not visitor.visit_id or request.cookies.get(VISIT_COOKIE) == visitor.visit_id:
        return []
    is_secure = request.scope["scheme"] == "https"
    return [Cookie(key=VISIT_COOKIE, value=visitor.visit_id, path="/ui", httponly=True, samesite="lax", secure=is_secure)]
