"""The guard of /api/v1 and of the web pages: a bearer token, or a session's cookie, against what the route declares."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from appliance.db.database import Database
from appliance.db.open_file import RETRY_AFTER_S
from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import MAX_KEY_CHARS, bearer, digest_key
from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import Admin
from appliance.domain.admins.recall import SessionRecall
from appliance.domain.admins.sessions import COOKIE, SessionRules, csrf_token, end_session, find_session
from appliance.domain.audit.service import Actor
from appliance.errors import Forbidden, Unauthenticated, Unavailable
from appliance.problems import REQUEST_ID_STATE, require_json
from appliance.route_access import Access, access_of
from appliance.strict_requests import sole_header

ADMIN_STATE = "admin"
"""Key of the ASGI scope's `state`: the `Admin` that the guard let in."""
SESSION_STATE = "admin_session"
"""Key of the ASGI scope's `state`: the id of the session it came by; absent where it was a token."""
CSRF_HEADER = "x-csrf-token"
SCOPES = {
    Access.ADMIN_READ: Scope.ADMIN_READ,
    Access.ADMIN_WRITE: Scope.ADMIN_WRITE,
    Access.ADMIN_MANAGE: Scope.ADMIN_MANAGE,
    Access.ADMIN_SELF: Scope.ADMIN_READ,
}
"""The least scope of each kind of admin route."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

type Connection = ASGIConnection[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Gatekeeper:
    """Tells who asks. Tokens are judged by the snapshot in memory, sessions by the database."""

    directory: Directory
    database: Database
    pepper: bytes
    rules: SessionRules
    recall: SessionRecall
    wall_s: Callable[[], float]

    async def guard(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Let in whom the route's declaration allows. A body must be JSON.

        Raises `Unauthenticated`, `Forbidden`, `Unavailable` or `Invalid`.
        """
        method = connection.scope.get("method", "")
        access = access_of(handler)
        if method == "OPTIONS":
            return
        if access is not Access.PUBLIC:
            needs = SCOPES.get(access) if access else None
            if needs is None:
                raise Forbidden("this route does not say who may use it, so nobody may", code="undeclared_access")
            admin = await self._admin(connection, needs, changes=method not in SAFE_METHODS)
            if access is Access.ADMIN_SELF and connection.path_params.get("admin_id") != admin.admin_id:
                admin.require(Scope.ADMIN_MANAGE)
            connection.scope.setdefault("state", {})[ADMIN_STATE] = admin
        if method not in SAFE_METHODS:
            require_json(connection.headers.get("content-type"))

    async def _admin(self, connection: Connection, needs: Scope, *, changes: bool) -> Admin:
        authorization = sole_header(connection.headers, "authorization")
        session_id = connection.cookies.get(COOKIE)
        if authorization or not session_id:
            return self.directory.authenticate_admin(bearer(authorization), needs)
        admin = await self.session_admin(session_id)
        if admin is None:
            raise Unauthenticated("the session has ended: log in again", code="session_expired")
        if changes:
            self._check_csrf(connection, session_id)
        admin.require(needs)
        connection.scope.setdefault("state", {})[SESSION_STATE] = session_id
        return admin

    async def session_admin(self, session_id: str, *, is_use: bool = True) -> Admin | None:
        """Who a cookie belongs to; None where the session has ended. Without `is_use` it goes on being idle. Raises `Unavailable`."""
        if len(session_id) > MAX_KEY_CHARS:
            return None
        if self.directory.is_lost:  # one that hangs is not waited for
            raise Unavailable("the database does not answer", reason="database_unavailable", retry_after_s=RETRY_AFTER_S)
        digest = digest_key(session_id, self.pepper)
        found = await find_session(self.database, digest, self.rules, datetime.fromtimestamp(self.wall_s(), UTC), is_use=is_use)
        self.recall.note(digest, found)
        return found and found.admin

    def recalled_admin(self, session_id: str) -> Admin | None:
        """Who a cookie belonged to when the database last answered: good for looking, while it does not."""
        if len(session_id) > MAX_KEY_CHARS:
            return None
        return self.recall.admin(digest_key(session_id, self.pepper), self.directory.snapshot.admin_versions, self.wall_s())

    async def end_session(self, session_id: str) -> None:
        """The cookie is worth nothing from now on. Raises `Unavailable`."""
        digest = digest_key(session_id, self.pepper)
        await end_session(self.database, digest)
        self.recall.note(digest, None)

    def _check_csrf(self, connection: Connection, session_id: str) -> None:
        """A browser sends the cookie along whoever made it ask; only our own pages know the token."""
        given = sole_header(connection.headers, CSRF_HEADER) or ""
        if not compare_digest(given.encode(), csrf_token(session_id, self.pepper).encode()):
            raise Forbidden(f"send the session's csrf_token (see GET /api/v1/me) in the header {CSRF_HEADER}", code="csrf_failed")


def admin_of(request: Request[Any, Any, Any]) -> Admin:
    """Who was let in."""
    return request.scope["state"][ADMIN_STATE]


def actor_of(request: Request[Any, Any, Any]) -> Actor:
    """Who makes a change, as the audit names it."""
    state = request.scope["state"]
    admin: Admin = state[ADMIN_STATE]
    return Actor(admin.actor, source_of(request), state.get(REQUEST_ID_STATE, ""), admin.actor_id)


def source_of(request: Request[Any, Any, Any]) -> str:
    """The address a request came from; behind a trusted proxy the one it tells."""
    return request.client.host if request.client else ""
