"""Who may see a page: browsers with a session, by the role of its administrator. Every form carries the session's CSRF token.

Programs use `/api/v1`: a bearer token opens nothing here.
"""

import secrets
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from litestar.handlers import BaseRouteHandler

from appliance.domain.access.principal import Role, Scope
from appliance.domain.access.snapshot import Admin
from appliance.domain.admins.guard import ADMIN_STATE, SAFE_METHODS, SCOPES, SESSION_STATE, Connection, Gatekeeper
from appliance.domain.admins.sessions import COOKIE, csrf_token
from appliance.errors import Forbidden, Unavailable
from appliance.route_access import Access, access_of
from appliance.ui.forms import CSRF_FIELD, Form, read_form

VISIT_COOKIE = "fairlane_visit"
"""Of a browser without a session: what the login form's CSRF token is bound to."""
THEME_COOKIE = "fairlane_theme"
THEMES = ("auto", "light", "dark")


class NotLoggedIn(Exception):
    """There is no session, or it has ended: the browser is sent to the login form."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at a page. Without a session `admin` is None, and the CSRF token is the visit's."""

    admin: Admin | None
    csrf: str
    theme: str
    visit_id: str = ""
    """Set where the browser is to be given a visit's cookie."""

    @property
    def name(self) -> str:
        return self.admin.actor.removeprefix("admin:") if self.admin else ""

    @property
    def role(self) -> str:
        """The name of the role whose scopes it has."""
        scopes = self.admin.scopes if self.admin else frozenset[Scope]()
        return next((role.value for role in Role if role.scopes == scopes), "")

    def may(self, scope: str) -> bool:
        """Whether pages should offer it what needs a scope."""
        return self.admin is not None and scope in self.admin.scopes

    @property
    def may_write(self) -> bool:
        return self.may(Scope.ADMIN_WRITE)

    @property
    def may_manage(self) -> bool:
        return self.may(Scope.ADMIN_MANAGE)


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """The guard of all pages. While the database is lost, those who were in can look (`appliance/domain/admins/recall.py`)."""

    gatekeeper: Gatekeeper

    async def guard(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Let in whom the route's declaration allows. Raises `NotLoggedIn`, `Forbidden` or `Unavailable`."""
        method = connection.scope.get("method", "")
        access = access_of(handler)
        if method == "OPTIONS":
            return
        changes = method not in SAFE_METHODS
        if changes:
            _refuse_other_sites(connection)
        session_id = connection.cookies.get(COOKIE)
        if access is Access.PUBLIC:
            if changes:
                self._check_csrf(await read_form(connection), connection.cookies.get(VISIT_COOKIE, ""))
            return
        needs = SCOPES.get(access) if access else None
        if needs is None:
            raise Forbidden("this route does not say who may use it, so nobody may", code="undeclared_access")
        admin = await self._let_in(connection, session_id, changes=changes) if session_id else None
        if admin is None or session_id is None:
            raise NotLoggedIn
        if changes:
            self._check_csrf(await read_form(connection), session_id)
        admin.require(needs)
        if access is Access.ADMIN_SELF and connection.path_params.get("admin_id") != admin.admin_id:
            admin.require(Scope.ADMIN_MANAGE)

    def visitor(self, request: Request[Any, Any, Any]) -> Visitor:
        """Who was let in; on public routes, nobody yet."""
        state = request.scope["state"]
        theme = request.cookies.get(THEME_COOKIE, "")
        theme = theme if theme in THEMES else THEMES[0]
        admin: Admin | None = state.get(ADMIN_STATE)
        if admin is not None:
            return Visitor(admin, csrf_token(state[SESSION_STATE], self.gatekeeper.pepper), theme)
        known = request.cookies.get(VISIT_COOKIE, "")
        visit_id = known or secrets.token_urlsafe(32)
        return Visitor(None, csrf_token(visit_id, self.gatekeeper.pepper), theme, visit_id)

    async def session_admin(self, request: Request[Any, Any, Any]) -> Admin | None:
        """Of a public route's caller, where there is a session; it is let in."""
        session_id = request.cookies.get(COOKIE)
        return await self._let_in(request, session_id, changes=False) if session_id else None

    async def is_still_in(self, request: Request[Any, Any, Any]) -> bool:
        """Whether a stream's session goes on. Looking is no use of it: a page left open does not keep a session from ending.

        While the database is lost nobody can tell, and an open page goes on to show how the appliance is.
        """
        session_id: str = request.scope["state"][SESSION_STATE]
        try:
            return await self.gatekeeper.session_admin(session_id, is_use=False) is not None
        except Unavailable:
            return True

    async def _let_in(self, connection: Connection, session_id: str, *, changes: bool) -> Admin | None:
        """Who a cookie belongs to, which the connection's state holds, too. Without a database, whoever was in goes on to look, and
        nobody changes anything: raises `Unavailable`."""
        admin = None
        try:
            admin = await self.gatekeeper.session_admin(session_id)
        except Unavailable:
            admin = self.gatekeeper.recalled_admin(session_id)
            if admin is None or changes:
                raise
        finally:  # also for the page that says why not
            if admin is not None:
                connection.scope.setdefault("state", {}).update({ADMIN_STATE: admin, SESSION_STATE: session_id})
        return admin

    def _check_csrf(self, form: Form, bound_to: str) -> None:
        expected = csrf_token(bound_to, self.gatekeeper.pepper)
        if not bound_to or not compare_digest(form.text(CSRF_FIELD).encode(), expected.encode()):
            message = "this form is not one of this session's, or is too old: load the page again and repeat what you did"
            raise Forbidden(message, code="csrf_failed")


def _refuse_other_sites(connection: Connection) -> None:
    """Browsers say where a form came from; one of another site is refused before its token is looked at."""
    origin = connection.headers.get("origin", "")
    if connection.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") or (
        origin and urlsplit(origin).netloc != connection.headers.get("host", "")
    ):
        raise Forbidden("this form came from another site: nothing was changed", code="csrf_failed")
