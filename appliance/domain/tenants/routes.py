"""`/api/v1`: all admin routes behind one guard, which denies what it does not know."""

from typing import Any

from litestar import Controller, Request, Router
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from appliance.domain.access.keys import bearer
from appliance.domain.access.principal import Scope
from appliance.domain.audit.controller import AuditController
from appliance.domain.audit.service import Actor
from appliance.domain.slas.controller import TierController
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.controller import KeyController, TenantController, TierEditor
from appliance.domain.usage.controller import UsageController
from appliance.problems import REQUEST_ID_STATE, require_json

ADMIN_PATH = "/api/v1"
ADMIN_STATE = "admin"
"""Key of the ASGI scope's `state`: the `Admin` that the guard let in."""
READING_METHODS = frozenset({"GET", "HEAD"})


def admin_router(control: Control, *more: type[Controller]) -> Router:
    """The admin API; `more` are controllers that show other parts of the process. Reading needs scope `admin:read`, anything else
    `admin:write`; a body must be JSON."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        reads = connection.scope.get("method") in READING_METHODS
        token = bearer(connection.headers.get("authorization"))
        admin = control.directory.authenticate_admin(token, Scope.ADMIN_READ if reads else Scope.ADMIN_WRITE)
        connection.scope.setdefault("state", {})[ADMIN_STATE] = admin
        if not reads:
            require_json(connection.headers.get("content-type"))

    return Router(
        ADMIN_PATH,
        route_handlers=[TenantController, KeyController, TierController, TierEditor, UsageController, AuditController, *more],
        guards=[guard],
        dependencies={
            "store": Provide(lambda: control.store, sync_to_thread=False),
            "database": Provide(lambda: control.store.database, sync_to_thread=False),
            "actor": Provide(actor_of, sync_to_thread=False),
            "directory": Provide(lambda: control.directory, sync_to_thread=False),
        },
        security=[{"bearer": []}],
    )


def actor_of(request: Request[Any, Any, Any]) -> Actor:
    """Who makes a change, as the audit names it."""
    state = request.scope["state"]
    return Actor(state[ADMIN_STATE].actor, request.client.host if request.client else "", state.get(REQUEST_ID_STATE, ""))
