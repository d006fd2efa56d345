"""Coming in and going out: login, the first owner's set-up, logout, light or dark; and the files that pages are made of."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect

from appliance.domain.admins.controller import session_cookie
from appliance.domain.admins.guard import SESSION_STATE, source_of
from appliance.errors import ApplianceError, Conflict
from appliance.problems import REQUEST_ID_STATE, problem_of
from appliance.route_access import PUBLIC, READS
from appliance.ui.access import THEME_COOKIE, THEMES
from appliance.ui.assets import Assets
from appliance.ui.forms import read_form
from appliance.ui.navigation import HOME
from appliance.ui.pages.overview import overview_page
from appliance.ui.parts import Ui

AnyRequest = Request[Any, Any, Any]
Uis = NamedDependency[Ui]

MAX_TARGET_CHARS = 2_000
ENDED = "The session had ended, so nothing was changed. Log in, and send the form again."
THEME_AGE_S = 365 * 86_400


class EntryController(Controller):
    """What needs no session yet."""

    @get("/", opt=PUBLIC)
    async def home(self, request: AnyRequest, ui: Uis, next: FromQuery[str] = "", ended: FromQuery[str] = "") -> Response[str]:
        """The overview, or the login form; `ended`: a form was sent after its session's end."""
        if await ui.doorkeeper.session_admin(request) is None:
            return login_page(request, ui, next, note=ENDED if ended else "")
        return overview_page(request, ui)

    @post("/login", opt=PUBLIC)
    async def login(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """Begin a session, and go to the page that was asked for."""
        form = await read_form(request)
        target, name = form.text("next"), form.text("name")
        logins = ui.house.control.logins
        try:
            begun = await logins.login(name, form.secret("password"), source_of(request), _request_id(request))
        except ApplianceError as error:
            problem = problem_of(error)
            page = login_page(request, ui, target, problem.status, name, error.message)
            page.headers.update({key: value for key, value in problem.headers.items() if key == "retry-after"})
            return page
        return Redirect(safe_target(target), status_code=303, cookies=[session_cookie(request, begun.session_id)])

    @get("/setup", opt=PUBLIC)
    async def setup_form(self, request: AnyRequest, ui: Uis, token: Annotated[str, QueryParameter(max_length=512)] = "") -> Response[str]:
        """Where the link of the first start leads: a form for the first owner."""
        return ui.views.page(request, "setup.html", token=token, name="admin", error="")

    @post("/setup", opt=PUBLIC)
    async def setup(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """Make the first owner, and log it in."""
        form, control = await read_form(request), ui.house.control
        token, name, password = form.text("token"), form.text("name"), form.secret("password")
        source, request_id = source_of(request), _request_id(request)
        try:
            if password != form.secret("again"):
                raise Conflict("the two passwords differ: type them again")
            await control.logins.set_up(token, name, password, source, request_id)
            await control.directory.refresh()
            begun = await control.logins.login(name, password, source, request_id)
        except ApplianceError as error:
            return ui.views.page(request, "setup.html", problem_of(error).status, token=token, name=name, error=error.message)
        return Redirect(HOME, status_code=303, cookies=[session_cookie(request, begun.session_id)])

    @post("/logout", opt=READS)
    async def logout(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """End the session."""
        await ui.house.control.gatekeeper.end_session(request.scope["state"][SESSION_STATE])
        return Redirect(HOME, status_code=303, cookies=[session_cookie(request, None)])

    @post("/theme", opt=READS)
    async def theme(self, request: AnyRequest) -> Response[Any]:
        """Light, dark, or as the system has it."""
        form = await read_form(request)
        theme = form.text("theme")
        theme = theme if theme in THEMES else THEMES[0]
        cookie = Cookie(key=THEME_COOKIE, value=theme, path="/ui", max_age=THEME_AGE_S, samesite="lax", httponly=True)
        return Redirect(safe_target(form.text("next")), status_code=303, cookies=[cookie])

    @get("/static/{name:path}", opt=PUBLIC)
    async def static(self, name: FromPath[str], assets: NamedDependency[Assets]) -> Response[bytes]:
        """Styles and scripts."""
        asset = assets.find(name.lstrip("/"))
        headers = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)


def login_page(
    request: AnyRequest, ui: Ui, target: str, status: int = 200, name: str = "", error: str = "", note: str = ""
) -> Response[str]:
    """The login form; `target` is where it leads."""
    control = ui.house.control
    is_set_up = control.logins.setup_token is None or control.directory.snapshot.has_owner
    values = {"next": safe_target(target), "name": name, "error": error, "note": note, "is_set_up": is_set_up}
    return ui.views.page(request, "login.html", status, **values)


def safe_target(target: str) -> str:
    """A page of ours; anything else is the overview: nobody is led elsewhere by a link to the login form."""
    is_plain = len(target) <= MAX_TARGET_CHARS and target.isprintable() and "\\" not in target and "//" not in target
    return target if is_plain and target.startswith(HOME) else HOME


def _request_id(request: AnyRequest) -> str:
    return request.scope["state"].get(REQUEST_ID_STATE, "")
