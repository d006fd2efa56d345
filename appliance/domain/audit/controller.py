"""`GET /api/v1/audit`."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from appliance.db.database import Database
from appliance.domain.audit.models import AuditEvent
from appliance.domain.audit.service import list_events, require_target
from appliance.problems import problem_responses
from appliance.route_access import READS

MAX_PAGE = 1_000


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """One change. `before` and `after` hold the fields that differ; secrets are hidden."""

    id: int
    at: datetime
    actor: str
    actor_id: str
    source: str
    request_id: str
    action: str
    target: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first; `next` is the `before` of the next page, null on the last one."""

    events: list[AuditView]
    next: int | None


def audit_view(row: AuditEvent) -> AuditView:
    return AuditView(**{name: getattr(row, name) for name in AuditView.__struct_fields__})


class AuditController(Controller):
    """Audit."""

    path = "/audit"
    tags = ["Audit"]

    @get(summary="What administrators changed", opt=READS, responses=problem_responses(401, 403, 404, 503))
    async def list(
        self,
        database: NamedDependency[Database],
        before: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1, description="events older than this one")] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)] = 100,
        target: Annotated[
            str | None,
            QueryParameter(description="only events of it and of what belongs to it: `tenant:acme` with its keys", max_length=200),
        ] = None,
    ) -> AuditPage:
        """Who changed what, when and from where, newest first."""
        async with database.read() as session:
            found = await list_events(session, before, limit + 1, target, within=True)
            if target is not None and not found:
                await require_target(session, target)
        return AuditPage(events=[audit_view(row) for row in found[:limit]], next=found[limit - 1].id if len(found) > limit else None)
