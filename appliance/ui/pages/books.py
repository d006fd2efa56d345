"""What is written down: usage of all tenants, and the audit."""

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from appliance.db.base import utc_now
from appliance.domain.audit.service import list_events
from appliance.domain.usage.decisions import Counts
from appliance.domain.usage.service import group_usage
from appliance.route_access import READS
from appliance.ui.columns import columns_by_hour
from appliance.ui.pages.tenant import SPANS
from appliance.ui.parts import Ui
from appliance.ui.views import AnyRequest

Uis = NamedDependency[Ui]
Text = Annotated[str, QueryParameter(max_length=200)]
SHOWN_EVENTS = 100
SHOWN_TENANTS = 100


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What a tenant had in a span of time."""

    tenant: str
    counts: Counts
    refused: int

    @property
    def tokens(self) -> int:
        return self.counts.prompt_tokens + self.counts.generated_tokens


class UsagePage(Controller):
    """`/ui/usage`."""

    @get("/usage", opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, span: FromQuery[str] = "day", tenant: Text = "") -> Response[str]:
        """Tokens by hour, and by tenant."""
        end, span = utc_now(), span if span in SPANS else "day"
        begin = (end - SPANS[span]).replace(minute=0, second=0, microsecond=0)
        async with ui.house.control.store.database.read() as session:
            hours = await group_usage(session, begin, end, tenant or None, ("began_at",))
            rows = await group_usage(session, begin, end, tenant or None, ("tenant", "outcome"))
        tenants = tenant_usages(rows)
        export = {"format": "csv", "resolution": "hour", "from": begin.isoformat()} | ({"tenant": tenant} if tenant else {})
        values: dict[str, Any] = {
            "chart": columns_by_hour({keys[0]: counts for keys, counts in hours}, begin, end),
            "tenants": tenants[:SHOWN_TENANTS],
            "more": max(0, len(tenants) - SHOWN_TENANTS),
            "span": span,
            "spans": tuple(SPANS),
            "tenant": tenant,
            "export": f"/api/v1/usage?{urlencode(export)}",
        }
        return ui.views.page(request, "books/usage.html", page="usage", **values)


class AuditPage(Controller):
    """`/ui/audit`."""

    @get("/audit", opt=READS)
    async def show(
        self,
        request: AnyRequest,
        ui: Uis,
        before: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)] = None,
        target: Text = "",
        actor: Text = "",
    ) -> Response[str]:
        """Who changed what, newest first."""
        target, actor = target.strip(), actor.strip()
        async with ui.house.control.store.database.read() as session:
            events = await list_events(session, before, SHOWN_EVENTS + 1, target or None, within=True, actor=actor)
        older = events[SHOWN_EVENTS - 1].id if len(events) > SHOWN_EVENTS else None
        query = urlencode({"target": target, "actor": actor, "before": older or ""})
        values = {"events": events[:SHOWN_EVENTS], "older": older, "query": query, "target": target, "actor": actor}
        return ui.views.page(request, "books/audit.html", page="audit", **values)


def tenant_usages(rows: list[tuple[tuple[Any, ...], Counts]]) -> list[TenantUsage]:
    """Rows by tenant and outcome as one a tenant, who used most first."""
    sums: dict[str, Counts] = {}
    refused: dict[str, int] = {}
    for (tenant, outcome), counts in rows:
        sums.setdefault(tenant, Counts()).add(counts)
        if outcome == "rejected":
            refused[tenant] = counts.requests
    usages = [TenantUsage(tenant, counts, refused.get(tenant, 0)) for tenant, counts in sums.items()]
    return sorted(usages, key=lambda usage: (-usage.tokens, usage.tenant))
