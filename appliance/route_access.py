"""Who may use a route. Every route declares it (`opt=READS`); one without a declaration is refused to everybody."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler

from appliance.errors import Forbidden


class Access(StrEnum):
    """What a caller needs."""

    PUBLIC = "public"
    INFERENCE = "inference"
    """A tenant's key, which the inference service judges itself: a refusal there is counted like any other outcome."""
    TENANT_OR_ADMIN = "tenant-or-admin"
    """A tenant's key for what is its own, or an administrator's token; the handler judges which."""
    METRICS = "metrics"
    """On loopback nothing, elsewhere a key with scope `metrics`."""
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"
    ADMIN_MANAGE = "admin:manage"
    ADMIN_SELF = "admin:self"
    """The administrator that the path names, or an owner."""


ACCESS = "access"
PUBLIC = {ACCESS: Access.PUBLIC}
INFERS = {ACCESS: Access.INFERENCE}
TENANTS_OR_ADMINS = {ACCESS: Access.TENANT_OR_ADMIN}
MEASURES = {ACCESS: Access.METRICS}
READS = {ACCESS: Access.ADMIN_READ}
WRITES = {ACCESS: Access.ADMIN_WRITE}
MANAGES = {ACCESS: Access.ADMIN_MANAGE}
OWN = {ACCESS: Access.ADMIN_SELF}


def access_of(handler: BaseRouteHandler) -> Access | None:
    """What a route declares; None where it declares nothing."""
    return handler.opt.get(ACCESS)


async def refuse_undeclared(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard of the whole application. Litestar's own answers to OPTIONS only name methods.

    It waits for nothing, and is no plain function all the same: Litestar would run that in a thread, at each request.
    """
    if access_of(handler) is None and connection.scope.get("method") != "OPTIONS":
        raise Forbidden("this route does not say who may use it, so nobody may", code="undeclared_access")


def routes_of(app: Litestar) -> Iterator[tuple[str, str, Access | None]]:
    """Method, path and declaration of every route, but the answers to OPTIONS."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler, HTTPRouteHandler):
                for method in sorted(handler.http_methods):
                    if method != "OPTIONS":
                        yield str(method), route.path, access_of(handler)
