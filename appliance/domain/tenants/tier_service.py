"""Making, changing and removing tiers. It lies with the tenants because a change concerns those under the tier."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.state import bump_version, take_version_back
from appliance.domain.audit.service import Actor, record
from appliance.domain.slas.decisions import Sla, check_sla, sla_with
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import get_tier, set_sla, sla_of
from appliance.domain.tenants.decisions import check_slug
from appliance.domain.tenants.service import check_version, list_tenants
from appliance.errors import Conflict


async def create_tier(session: AsyncSession, name: str, fields: Mapping[str, Any], actor: Actor) -> SlaTier:
    """Add a tier with some fields of the SLA, the others at their defaults. A removed tier's name may be used again.

    Raises `Invalid` (name, fields) or `Conflict` (there is one of the name).
    """
    check_slug(name, "name")
    sla = sla_with(Sla(), fields, param="tier")
    check_sla(sla, "tier")
    await bump_version(session)  # first: its lock makes look-then-insert safe between processes
    tier = (await session.scalars(select(SlaTier).where(SlaTier.name == name))).one_or_none()
    if tier is not None and tier.deleted_at is None:
        raise Conflict(f"there is a tier {name!r} already", code="tier_exists", param="name")
    tier = tier or SlaTier(name=name)
    tier.deleted_at = None
    set_sla(tier, sla)
    session.add(tier)
    await session.flush()
    record(session, actor, "tier.create", f"tier:{name}", None, msgspec.to_builtins(sla))
    return tier


async def update_tier(
    session: AsyncSession, name: str, fields: Mapping[str, Any], version: int | None, actor: Actor, *, check_tenants: bool = True
) -> SlaTier:
    """Change fields of a tier for all tenants under it.

    Raises `NotFound`, `Conflict` where `version` is not the present one, and `Invalid`, also where a tenant's overrides would
    contradict the tier (`check_tenants` off: the caller looks, once all its changes are made).
    """
    await bump_version(session)
    tier = await get_tier(session, name)
    before = sla_of(tier)
    check_version(version, tier.version, f"tier {name!r}", msgspec.to_builtins(before))
    after = sla_with(before, fields, param="tier")
    check_sla(after, "tier")
    for found in await list_tenants(session, tier=name) if check_tenants else ():
        check_sla(sla_with(after, found.tenant.overrides), f"tenant {found.tenant.slug}")
    if after == before:
        await take_version_back(session)
        return tier
    set_sla(tier, after)
    await session.flush()
    record(session, actor, "tier.update", f"tier:{name}", msgspec.to_builtins(before), msgspec.to_builtins(after))
    return tier


async def delete_tier(session: AsyncSession, name: str, actor: Actor) -> None:
    """Remove a tier that no tenant is under. Raises `NotFound` or `Conflict`, naming tenants that are."""
    await bump_version(session)
    tier = await get_tier(session, name)
    users = [found.tenant.slug for found in await list_tenants(session, tier=name, limit=4)]
    if users:
        named = ", ".join(users[:3]) + (", ..." if len(users) > 3 else "")
        raise Conflict(f"tenants are under tier {name!r} ({named}): move them to another tier first", code="tier_in_use", param="name")
    tier.deleted_at = utc_now()
    await session.flush()
    record(session, actor, "tier.delete", f"tier:{name}", msgspec.to_builtins(sla_of(tier)), None)
