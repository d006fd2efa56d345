"""Who may use a route. Every route declares it (`opt=READS`); with one that does not no server starts.

UndeclaredRoutes         a fault of whoever added them
"""

from collections.abc import Iterator
from enum import StrEnum

from litestar import Litestar
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler


class UndeclaredRoutes(Exception):
    """Routes that do not say who may use them; the message names them."""


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


def routes_of(app: Litestar) -> Iterator[tuple[str, str, Access | None]]:
    """Method, path and declaration of every route, but the answers to OPTIONS."""
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler, HTTPRouteHandler):
                for method in sorted(handler.http_methods):
                    if method != "OPTIONS":
                        yield str(method), route.path, access_of(handler)


def refuse_undeclared(app: Litestar) -> None:
    """Raises `UndeclaredRoutes`, so that no server starts with a route that does not say who may use it.

    Once, and not as a guard at each request: Litestar copies the whole route for each guard that it asks.
    """
    undeclared = [f"{method} {path}" for method, path, access in routes_of(app) if access is None]
    if undeclared:
        raise UndeclaredRoutes(f"who may use these routes? Declare it with `opt=` (appliance/route_access.py): {undeclared}")
