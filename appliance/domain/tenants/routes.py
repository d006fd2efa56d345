"""`/api/v1`: all admin routes behind one guard, which denies what it does not know."""

from typing import Any

from litestar import Router
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from appliance.domain.access.keys import bearer
from appliance.domain.access.principal import Scope
from appliance.domain.slas.controller import TierController
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.controller import KeyController, TenantController
from appliance.domain.usage.controller import UsageController
from appliance.problems import require_json

ADMIN_PATH = "/api/v1"
READING_METHODS = frozenset({"GET", "HEAD"})


def admin_router(control: Control) -> Router:
    """The admin API. Reading needs scope `admin:read`, anything else `admin:write`; a body must be JSON."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        reads = connection.scope.get("method") in READING_METHODS
        token = bearer(connection.headers.get("authorization"))
        control.directory.authenticate_admin(token, Scope.ADMIN_READ if reads else Scope.ADMIN_WRITE)
        if not reads:
            require_json(connection.headers.get("content-type"))

    return Router(
        ADMIN_PATH,
        route_handlers=[TenantController, KeyController, TierController, UsageController],
        guards=[guard],
        dependencies={
            "store": Provide(lambda: control.store, sync_to_thread=False),
            "database": Provide(lambda: control.store.database, sync_to_thread=False),
            "directory": Provide(lambda: control.directory, sync_to_thread=False),
        },
        security=[{"bearer": []}],
    )
