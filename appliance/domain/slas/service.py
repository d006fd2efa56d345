"""Reading and writing tiers."""

from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.domain.slas.decisions import SLA_FIELDS, Sla, stored_sla
from appliance.domain.slas.models import SlaTier
from appliance.errors import Invalid, NotFound

log = structlog.get_logger(__name__)


def sla_of(row: SlaTier) -> Sla:
    """A row's SLA. What can not be read counts as not set, and is logged."""
    return sla_under(Sla(), {name: getattr(row, name) for name in SLA_FIELDS}, f"tier {row.name}")


def sla_under(base: Sla, fields: Mapping[str, Any], whose: str) -> Sla:
    """An SLA with stored fields on top, likewise."""
    sla, unreadable = stored_sla(base, fields)
    if unreadable:
        log.error("sla_unreadable", of=whose, fields=unreadable, advice="set these fields anew")
    return sla


async def list_tiers(session: AsyncSession) -> list[SlaTier]:
    """All tiers but removed ones, by name."""
    return list((await session.scalars(select(SlaTier).where(SlaTier.deleted_at.is_(None)).order_by(SlaTier.name))).all())


async def find_tier(session: AsyncSession, name: str) -> SlaTier:
    """A tier by its name. Raises `Invalid`, listing the tiers there are."""
    tiers = await list_tiers(session)
    for tier in tiers:
        if tier.name == name:
            return tier
    known = ", ".join(tier.name for tier in tiers)
    raise Invalid(f"there is no tier {name[:64]!r}; the tiers are {known}", code="unknown_tier", param="tier")


async def get_tier(session: AsyncSession, name: str) -> SlaTier:
    """The tier that a path names. Raises `NotFound`."""
    tier = (await session.scalars(select(SlaTier).where(SlaTier.name == name, SlaTier.deleted_at.is_(None)))).one_or_none()
    if tier is None:
        raise NotFound(f"there is no tier {name[:64]!r}", code="tier_not_found")
    return tier


def set_sla(row: SlaTier, sla: Sla) -> None:
    """Put an SLA into a row."""
    for field, value in msgspec.to_builtins(sla).items():
        setattr(row, field, value)
