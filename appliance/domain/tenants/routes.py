"""`/api/v1`: all admin routes behind one guard, which denies what it does not know."""

from litestar import Controller, Router
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler

from appliance.domain.admins.controller import AdminController, AdminTokenController, SessionController
from appliance.domain.admins.guard import Connection, actor_of, admin_of
from appliance.domain.audit.controller import AuditController
from appliance.domain.slas.controller import TierController
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.controller import KeyController, TenantController, TierEditor
from appliance.domain.tenants.usage_controller import UsageController
from appliance.strict_requests import refuse_repeated_fields, refuse_unknown_query

ADMIN_PATH = "/api/v1"


def admin_router(control: Control, *more: type[Controller]) -> Router:
    """The admin API; `more` are controllers that show other parts of the process. Each route declares who may use it
    (`appliance/route_access.py`); a body must be JSON, and nothing in a request may be unknown or come twice."""

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:  # a plain function: Litestar copies guards
        await control.gatekeeper.guard(connection, handler)
        refuse_unknown_query(connection, handler)

    return Router(
        ADMIN_PATH,
        route_handlers=[
            SessionController,
            AdminController,
            AdminTokenController,
            TenantController,
            KeyController,
            TierController,
            TierEditor,
            UsageController,
            AuditController,
            *more,
        ],
        guards=[guard],
        before_request=refuse_repeated_fields,
        dependencies={
            "store": Provide(lambda: control.store, sync_to_thread=False),
            "database": Provide(lambda: control.store.database, sync_to_thread=False),
            "actor": Provide(actor_of, sync_to_thread=False),
            "caller": Provide(admin_of, sync_to_thread=False),
            "directory": Provide(lambda: control.directory, sync_to_thread=False),
            "logins": Provide(lambda: control.logins, sync_to_thread=False),
            "gatekeeper": Provide(lambda: control.gatekeeper, sync_to_thread=False),
        },
        security=[{"bearer": []}],
    )


def guarded_router(control: Control, *controllers: type[Controller]) -> Router:
    """Routes outside `/api/v1` behind the same guard."""

    async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
        await control.gatekeeper.guard(connection, handler)

    return Router("/", route_handlers=list(controllers), guards=[guard], security=[{"bearer": []}])
