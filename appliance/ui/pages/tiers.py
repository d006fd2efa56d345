"""SLA tiers: shown, made, changed after a look at what that would do, removed."""

import asyncio
from dataclasses import dataclass
from typing import Any

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect

from appliance.domain.admins.guard import actor_of
from appliance.domain.slas.decisions import Sla, check_sla, sla_with
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import get_tier, list_tiers, sla_of
from appliance.domain.tenants.service import count_by_tier, list_tenants
from appliance.domain.tenants.tier_service import create_tier, delete_tier, update_tier
from appliance.errors import ApplianceError
from appliance.problems import problem_of
from appliance.route_access import READS, WRITES
from appliance.ui.edits import VERSION, check_confirmed, conflict_page, edit_of
from appliance.ui.forms import Form, read_form
from appliance.ui.parts import Ui
from appliance.ui.sla_form import GROUPS, all_inputs, given_inputs, read_sla
from appliance.ui.tier_impact import Impact, evidence_of, impact_of
from appliance.ui.views import AnyRequest

Uis = NamedDependency[Ui]
PREVIEW = "preview"
"""Name of the button that only asks."""


@dataclass(frozen=True, slots=True)
class TierRow:
    tier: SlaTier
    sla: Sla
    tenants: int


class TierPages(Controller):
    """`/ui/tiers`. The form for another one has an address that no tier's page can have."""

    @get("/tiers", opt=READS)
    async def list(self, request: AnyRequest, ui: Uis, done: FromQuery[str] = "") -> Response[str]:
        """All of them."""
        directory = ui.house.control.directory
        async with ui.house.control.store.database.read() as session:
            numbers = await count_by_tier(session)
            rows = [TierRow(row, sla_of(row), numbers.get(row.name, 0)) for row in await list_tiers(session)]
        committed = sum(policy.committed_tpm or 0 for policy in directory.snapshot.policies.values())
        values = {"rows": rows, "committed": committed, "capacity": directory.capacity.tpm, "done": done}
        return ui.views.page(request, "tiers/list.html", page="tiers", **values)

    @get("/new-tier", opt=WRITES)
    async def new(self, request: AnyRequest, ui: Uis) -> Response[str]:
        """The form, with what a tier has that says nothing."""
        return _new_page(request, ui)

    @post("/tiers", opt=WRITES)
    async def create(self, request: AnyRequest, ui: Uis) -> Response[Any]:
        """Make one."""
        form, control = await read_form(request), ui.house.control
        try:
            async with control.store.database.write() as session:
                await create_tier(session, form.text("tier_name"), read_sla(form, Sla()), actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return _new_page(request, ui, form, error)
        return Redirect(f"/ui/tiers/{form.text('tier_name')}", status_code=303)

    @get("/tiers/{name:str}", opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, name: FromPath[str], done: FromQuery[str] = "") -> Response[str]:
        """One, in the form that changes it; who may not change it sees the same, without a button."""
        return await _tier_page(request, ui, name, done=done)

    @post("/tiers/{name:str}", opt=WRITES)
    async def change(self, request: AnyRequest, ui: Uis, name: FromPath[str]) -> Response[Any]:
        """Say what it would do, or do it."""
        form, control = await read_form(request), ui.house.control
        changes: dict[str, Any] = {}
        try:
            async with control.store.database.read() as session:
                before = sla_of(await get_tier(session, name))
                tenants = await list_tenants(session, tier=name)
            changes = read_sla(form, before)
            if form.text(PREVIEW):
                check_sla(sla_with(before, changes, param="tier"), "tier")
                impact = await asyncio.to_thread(impact_of, evidence_of(ui.house), before, changes, tenants)
                return await _tier_page(request, ui, name, form, impact=impact)
            async with control.store.database.write() as session:
                await update_tier(session, name, changes, form.whole(VERSION), actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            edit, path = edit_of(error), f"/ui/tiers/{name}"
            if edit is None:
                return await _tier_page(request, ui, name, form, error)
            return conflict_page(ui, request, edit, form, changes, what=f"tier {name}", action=path, back=path, page="tiers")
        return Redirect(f"/ui/tiers/{name}?done=saved", status_code=303)

    @get("/tiers/{name:str}/delete", opt=WRITES)
    async def ask(self, request: AnyRequest, ui: Uis, name: FromPath[str]) -> Response[str]:
        """Asks for the name."""
        async with ui.house.control.store.database.read() as session:
            await get_tier(session, name)
        return ui.views.page(request, "tiers/delete.html", page="tiers", name=name, error=None)

    @post("/tiers/{name:str}/delete", opt=WRITES)
    async def remove(self, request: AnyRequest, ui: Uis, name: FromPath[str]) -> Response[Any]:
        """Remove one that no tenant is under."""
        form, control = await read_form(request), ui.house.control
        try:
            check_confirmed(form, name)
            async with control.store.database.write() as session:
                await delete_tier(session, name, actor_of(request))
            await control.directory.refresh()
        except ApplianceError as error:
            return ui.views.page(request, "tiers/delete.html", problem_of(error).status, page="tiers", name=name, error=error)
        return Redirect("/ui/tiers?done=removed", status_code=303)


def _new_page(request: AnyRequest, ui: Ui, form: Form | None = None, error: ApplianceError | None = None) -> Response[str]:
    inputs = given_inputs(form) if form else all_inputs(Sla())
    values = {"groups": GROUPS, "inputs": inputs, "error": error, "tier_name": form.text("tier_name") if form else ""}
    return ui.views.page(request, "tiers/new.html", problem_of(error).status if error else 200, page="tiers", **values)


async def _tier_page(
    request: AnyRequest,
    ui: Ui,
    name: str,
    form: Form | None = None,
    error: ApplianceError | None = None,
    impact: Impact | None = None,
    done: str = "",
) -> Response[str]:
    async with ui.house.control.store.database.read() as session:
        tier = await get_tier(session, name)
        num_tenants = (await count_by_tier(session)).get(name, 0)
    inputs = given_inputs(form) if form else all_inputs(sla_of(tier))
    version = form.text(VERSION) if form else str(tier.version)
    values = {"tier": tier, "num_tenants": num_tenants, "groups": GROUPS, "inputs": inputs, "impact": impact, "error": error, "done": done}
    status = problem_of(error).status if error else 200
    return ui.views.page(request, "tiers/show.html", status, page="tiers", version_read=version, **values)
