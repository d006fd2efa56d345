"""`/debug/{queue,kv,tenants,steps,tasks}`: live pages for administrators."""

from typing import Any, Literal

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from appliance.domain.explain.pages import PAGE_NAMES, DebugPages, Page, PageName, render
from appliance.errors import NotFound
from appliance.problems import problem_responses
from appliance.route_access import READS


class DebugController(Controller):
    """HTML for people, JSON for programs."""

    path = "/debug"
    tags = ["Explain"]

    @get("/{name:str}", opt=READS, summary="A live page", responses=problem_responses(401, 403, 404))
    async def show(
        self,
        request: Request[Any, Any, Any],
        name: FromPath[str],
        pages: NamedDependency[DebugPages],
        format: FromQuery[Literal["html", "json"] | None] = None,
    ) -> Response[Page | str]:
        """`queue`, `kv`, `tenants`, `steps` or `tasks`: a table of at most 200 rows, JSON unless a browser asks or `format` says so."""
        known: PageName | None = next((each for each in PAGE_NAMES if each == name), None)
        if known is None:
            raise NotFound(f"there is no page {name[:40]!r}: ask for one of {', '.join(PAGE_NAMES)}", param="name")
        page = pages.page(known)
        as_json = format == "json" or (format is None and "text/html" not in request.headers.get("accept", ""))
        return Response(page, media_type="application/json") if as_json else Response(render(page), media_type="text/html")
