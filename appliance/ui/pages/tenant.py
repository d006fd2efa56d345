"""One tenant: what it is promised and where each value comes from, what it has in the house, its usage, what was changed of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect, Stream
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.domain.access.service import key_names
from appliance.domain.admins.guard import actor_of
from appliance.domain.admission.limit_use import limit_uses
from appliance.domain.audit.service import list_events
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.service import TenantWithTier, delete_tenant, find_tenant, update_tenant
from appliance.domain.usage.service import group_usage
from appliance.errors import ApplianceError
from appliance.problems import problem_of
from appliance.route_access import READS, WRITES
from appliance.ui.columns import columns_by_hour
from appliance.ui.edits import VERSION, check_confirmed, conflict_page, edit_of
from appliance.ui.forms import Form, read_form
from appliance.ui.pages.trial import KEY_ID as TRIAL_KEY
from appliance.ui.parts import Ui
from appliance.ui.sla_form import GROUPS, OVERRIDE, all_inputs, given_inputs, read_overrides
from appliance.ui.streams import live_stream
from appliance.ui.tenant_facts import kv_use
from appliance.ui.views import AnyRequest
from appliance.ui.wording import plain

Uis = NamedDependency[Ui]
SHOWN_EVENTS = 100
SPANS = {"day": timedelta(days=1), "week": timedelta(days=7), "month": timedelta(days=30)}


@dataclass(frozen=True, slots=True)
class SlaRow:
    """A field of the effective SLA, and the tier's value where the tenant has its own."""

    label: str
    name: str
    unit: str
    value: str
    is_own: bool
    of_tier: str
    help: str


class TenantController(Controller):
    """`/ui/tenants/{slug}`."""

    path = "/tenants/{slug:str}"

    @get(opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, slug: FromPath[str], done: FromQuery[str] = "") -> Response[str]:
        """What it is promised, and what it does now."""
        found = await _find(ui, slug)
        visitor = ui.doorkeeper.visitor(request)
        pieces = tenant_pieces(ui, found, may_write=visitor.may_write)
        values = {"tenant": found.tenant, "tier": found.tier, "groups": sla_rows(found), "pieces": pieces, "done": done}
        return ui.views.page(request, "tenants/show.html", page="tenants", grafana=ui.house.settings.grafana_url, **values)

    @get("/live", opt=READS)
    async def live(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Stream:
        """What it does now, once a second."""
        found = await _find(ui, slug)
        may_write = ui.doorkeeper.visitor(request).may_write
        key = f"tenant {slug} {may_write}"
        return live_stream(request, ui, key, lambda: tenant_pieces(ui, found, may_write=may_write))

    @get("/edit", opt=WRITES)
    async def edit(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[str]:
        """The form."""
        return await _edit_page(request, ui, slug)

    @post("/edit", opt=WRITES)
    async def change(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[Any]:
        """Change it; the next request is judged by it."""
        form, control = await read_form(request), ui.house.control
        changes: dict[str, Any] = {}
        try:
            async with control.store.database.write() as session:
                changes = await _changes_of(session, form)
                await update_tenant(session, slug, changes, form.whole(VERSION), actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            edit = edit_of(error)
            if edit is None:
                return await _edit_page(request, ui, slug, form, error)
            own = f"/ui/tenants/{slug}"
            what = f"tenant {slug}"
            return conflict_page(ui, request, edit, form, changes, what=what, action=f"{own}/edit", back=own, page="tenants")
        return Redirect(f"/ui/tenants/{slug}?done=saved", status_code=303)

    @get("/delete", opt=WRITES)
    async def ask(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[str]:
        """Asks for the name."""
        found = await _find(ui, slug)
        return ui.views.page(request, "tenants/delete.html", page="tenants", tenant=found.tenant, error=None)

    @post("/delete", opt=WRITES)
    async def remove(self, request: AnyRequest, ui: Uis, slug: FromPath[str]) -> Response[Any]:
        """Its keys are refused from now on."""
        form, control = await read_form(request), ui.house.control
        try:
            check_confirmed(form, slug)
            async with control.store.database.write() as session:
                await delete_tenant(session, slug, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            found = await _find(ui, slug)
            status = problem_of(error).status
            return ui.views.page(request, "tenants/delete.html", status, page="tenants", tenant=found.tenant, error=error)
        return Redirect("/ui/tenants", status_code=303)

    @get("/usage", opt=READS)
    async def usage(self, request: AnyRequest, ui: Uis, slug: FromPath[str], span: FromQuery[str] = "day") -> Response[str]:
        """Tokens by hour, and sums by key, lane and outcome."""
        found, end = await _find(ui, slug), utc_now()
        span = span if span in SPANS else "day"
        begin = (end - SPANS[span]).replace(minute=0, second=0, microsecond=0)
        async with ui.house.control.store.database.read() as session:
            hours = await group_usage(session, begin, end, slug, ("began_at",))
            sums = await group_usage(session, begin, end, slug, ("key_id", "lane", "outcome"))
            names = {TRIAL_KEY: "Try it"} | await key_names(session, {keys[0] for keys, _ in sums})
        chart = columns_by_hour({keys[0]: counts for keys, counts in hours}, begin, end)
        values = {"tenant": found.tenant, "chart": chart, "sums": sums, "names": names}
        values |= {"span": span, "spans": tuple(SPANS), "begin": begin}
        return ui.views.page(request, "tenants/usage.html", page="tenants", **values)

    @get("/audit", opt=READS)
    async def audit(
        self,
        request: AnyRequest,
        ui: Uis,
        slug: FromPath[str],
        before: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)] = None,
    ) -> Response[str]:
        """What was changed of it and of its keys."""
        found = await _find(ui, slug)
        async with ui.house.control.store.database.read() as session:
            events = await list_events(session, before, SHOWN_EVENTS + 1, f"tenant:{slug}", within=True)
        older = events[SHOWN_EVENTS - 1].id if len(events) > SHOWN_EVENTS else None
        values = {"tenant": found.tenant, "events": events[:SHOWN_EVENTS], "older": older}
        return ui.views.page(request, "tenants/audit.html", page="tenants", **values)


async def _find(ui: Ui, slug: str) -> TenantWithTier:
    async with ui.house.control.store.database.read() as session:
        return await find_tenant(session, slug)


def tenant_pieces(ui: Ui, found: TenantWithTier, *, may_write: bool) -> Mapping[str, str]:
    """What moves on its page. Without what belongs to a session: viewers share it."""
    slug, house = found.tenant.slug, ui.house
    policy = house.control.directory.snapshot.policies.get(slug, found.policy)
    running = sorted((report for report in house.backend.reports() if report.tenant_id == slug), key=lambda report: report.received_ns)
    uses = limit_uses(policy, house.admission.use_of(policy))
    if house.telemetry.engine.num_pages:
        uses.append(kv_use(policy, house.telemetry.engine.pages_by_tenant()[slug], house.telemetry.engine.num_pages))
    values: dict[str, dict[str, Any]] = {
        "limits": {"uses": uses},
        "objectives": {"views": house.telemetry.slo.views(slug)},
        "running": {"running": running, "may_write": may_write},
    }
    return {f"live-{name}": ui.views.fragment(f"tenants/{name}.html", **given) for name, given in values.items()}


def sla_rows(found: TenantWithTier) -> list[tuple[str, list[SlaRow]]]:
    """The effective SLA, in the groups of the form."""
    base, own = sla_of(found.tier), found.tenant.overrides
    return [
        (
            group.title,
            [
                SlaRow(
                    field.label,
                    field.name,
                    field.unit,
                    plain(getattr(found.effective, field.name)),
                    field.name in own,
                    plain(getattr(base, field.name)),
                    field.help,
                )
                for field in group.fields
            ],
        )
        for group in GROUPS
    ]


async def _changes_of(session: AsyncSession, form: Form) -> dict[str, Any]:
    """What the form asks for. Raises `Invalid`."""
    tiers = {row.name: sla_of(row) for row in await list_tiers(session)}
    tier = form.text("tier")
    changes = {name: form.text(name) for name in ("name", "tier", "status", "trust_group")}
    return {**changes, "overrides": read_overrides(form, tiers[tier]) if tier in tiers else {}}


async def _edit_page(
    request: AnyRequest, ui: Ui, slug: str, form: Form | None = None, error: ApplianceError | None = None
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        found, tiers = await find_tenant(session, slug), await list_tiers(session)
    tenant, base = found.tenant, sla_of(found.tier)
    fields = {name: getattr(tenant, name) for name in ("name", "status", "trust_group")} | {"tier": found.tier.name}
    inputs, ticked, version = all_inputs(found.effective), list(tenant.overrides), str(tenant.version)
    if form is not None:
        fields = {name: form.text(name) for name in fields}
        inputs, ticked, version = given_inputs(form), form.all(OVERRIDE), form.text(VERSION)
    of_tier = {field.name: plain(getattr(base, field.name)) for group in GROUPS for field in group.fields}
    values = {"tenant": tenant, "tiers": tiers, "fields": fields, "inputs": inputs, "ticked": ticked, "of_tier": of_tier, "error": error}
    status = problem_of(error).status if error else 200
    return ui.views.page(request, "tenants/edit.html", status, page="tenants", groups=GROUPS, version_read=version, **values)
