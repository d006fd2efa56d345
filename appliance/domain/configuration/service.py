"""Reading the database as a document, and bringing it to one in a single transaction."""

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.state import bump_version, read_capacity_tpm, read_version
from appliance.domain.audit.service import Actor
from appliance.domain.configuration.decisions import (
    Change,
    Configuration,
    Plan,
    TenantSpec,
    configuration_faults,
    contracts_after,
    plan_changes,
    refuse,
)
from appliance.domain.slas.decisions import Sla, check_sla, contract_warnings
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.service import create_tenant, delete_tenant, list_tenants, removed_slugs, update_tenant
from appliance.domain.tenants.tier_service import create_tier, delete_tier, update_tier
from appliance.errors import Conflict, Fault


async def read_configuration(session: AsyncSession) -> tuple[int, Configuration]:
    """The access version, then all that is there: of each object the fields that are not at their defaults."""
    version = await read_version(session)
    defaults = msgspec.to_builtins(Sla())
    tiers = {
        row.name: {field: value for field, value in msgspec.to_builtins(sla_of(row)).items() if value != defaults[field]}
        for row in await list_tiers(session)
    }
    tenants = {
        found.tenant.slug: TenantSpec(
            name=None if found.tenant.name == found.tenant.slug else found.tenant.name,
            tier=found.tier.name,
            status="suspended" if found.tenant.status == "suspended" else "active",
            trust_group=found.tenant.trust_group,
            overrides=dict(found.tenant.overrides),
        )
        for found in await list_tenants(session)
    }
    return version, Configuration(tiers=tiers, tenants=tenants)


async def plan_configuration(session: AsyncSession, wanted: Configuration, *, prune: bool) -> Plan:
    """How the database differs from a document. Raises `Invalid` with all faults, each with its place in the document."""
    refuse(configuration_faults(wanted))
    version, present = await read_configuration(session)
    plan, faults = plan_changes(version, present, wanted, prune=prune)
    new = [change.name for change in plan.changes if (change.kind, change.action) == ("tenant", "create")]
    for slug in await removed_slugs(session, new):
        message = f"a tenant {slug!r} was removed, and its slug stays taken, for usage and audit name it: choose another slug"
        faults.append(Fault(f"tenants.{slug}", message))
    refuse(faults)
    warnings = contract_warnings(contracts_after(present, wanted, prune=prune), await read_capacity_tpm(session))
    return msgspec.structs.replace(plan, warnings=warnings)


async def apply_configuration(session: AsyncSession, wanted: Configuration, *, prune: bool, version: int | None, actor: Actor) -> Plan:
    """Make the changes of the plan, all or none, each one audited; without a change nothing is written. What was done.

    Raises `Invalid` as `plan_configuration`, and `Conflict` where the database is no longer at `version` (None does not ask).
    """
    plan = await plan_configuration(session, wanted, prune=prune)
    if version is not None and plan.version != version:
        message = f"the database is at version {plan.version}, and the plan was made at {version}: plan again and look at it"
        raise Conflict(message, code="version_conflict", param="version")
    if not plan.changes:
        return plan
    if await bump_version(session) != plan.version + 1:  # somebody wrote while we read
        raise Conflict("the database changed meanwhile: plan again", code="version_conflict", param="version")
    for change in plan.changes:
        await _make(session, change, actor)
    for found in await list_tenants(session):  # also those that the document does not name
        check_sla(found.effective, f"tenants.{found.tenant.slug}")
    return plan


async def _make(session: AsyncSession, change: Change, actor: Actor) -> None:
    fields = {each.field: each.after for each in change.fields}
    match change.kind, change.action:
        case "tier", "create":
            await create_tier(session, change.name, fields, actor)
        case "tier", "update":
            await update_tier(session, change.name, fields, None, actor, check_tenants=False)
        case "tier", "delete":
            await delete_tier(session, change.name, actor)
        case "tenant", "create":
            await _create_tenant(session, change.name, fields, actor)
        case "tenant", "update":
            await update_tenant(session, change.name, fields, None, actor)
        case _:
            await delete_tenant(session, change.name, actor)


async def _create_tenant(session: AsyncSession, slug: str, fields: dict[str, object], actor: Actor) -> None:
    spec = msgspec.convert(fields, TenantSpec)
    await create_tenant(
        session,
        slug=slug,
        name=spec.name or slug,
        tier=spec.tier,
        overrides=spec.overrides,
        trust_group=spec.trust_group,
        actor=actor,
    )
    if spec.status != "active":
        await update_tenant(session, slug, {"status": spec.status}, None, actor)
