"""Reading a snapshot's tenants and keys again, where most of them have not changed.

Every row has a version that grows with each change, so a reload reads the versions of all rows and the rest only of those that
moved: with 10,000 tenants an admin write would otherwise hold up every stream for a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Limits, known_scopes
from appliance.domain.access.snapshot import KeyRecord
from appliance.domain.slas.decisions import Sla, policy_of
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import list_tiers, sla_of, sla_under
from appliance.domain.tenants.models import Tenant
from engine.wire import TenantPolicy

CHUNK = 500
"""Rows asked for by id at once; a database takes only so many parameters."""


@dataclass(frozen=True, slots=True)
class KnownTenant:
    """A tenant as a snapshot needs it, and the versions of what it was made from."""

    made_from: tuple[int, int, int]
    slug: str
    status: str
    policy: TenantPolicy


@dataclass(frozen=True, slots=True)
class KnownKey:
    made_from: tuple[int, str]
    digest: bytes
    record: KeyRecord


class SnapshotCache:
    """What the last snapshot was made of. One loader at a time uses it."""

    def __init__(self) -> None:
        self._tenants: dict[int, KnownTenant] = {}
        self._keys: dict[str, KnownKey] = {}

    async def tenants(self, session: AsyncSession) -> Mapping[int, KnownTenant]:
        """All tenants but deleted ones, by their row's id, in the order of their slugs."""
        tiers = {row.id: (row, sla_of(row)) for row in await list_tiers(session)}
        alive = select(Tenant.id, Tenant.version, Tenant.tier_id).where(Tenant.status != "deleted").order_by(Tenant.slug)
        stamps = {row.id: (row.version, row.tier_id, tiers[row.tier_id][0].version) for row in await session.execute(alive)}
        known = self._tenants
        moved = [row_id for row_id, stamp in stamps.items() if row_id not in known or known[row_id].made_from != stamp]
        fresh: dict[int, KnownTenant] = {}
        for row in await _rows(session, select(*Tenant.__table__.columns), Tenant.id, moved):
            fresh[row.id] = _known_tenant(row, *tiers[row.tier_id])
        self._tenants = {row_id: fresh.get(row_id) or known[row_id] for row_id in stamps if row_id in fresh or row_id in known}
        return self._tenants

    async def keys(self, session: AsyncSession, tenants: Mapping[int, KnownTenant]) -> dict[bytes, KeyRecord]:
        """All keys of these tenants, by digest."""
        owned = select(ApiKey.id, ApiKey.version, ApiKey.tenant_id)
        stamps = {row.id: (row.version, tenants[row.tenant_id].slug) for row in await session.execute(owned) if row.tenant_id in tenants}
        known = self._keys
        moved = [key_id for key_id, stamp in stamps.items() if key_id not in known or known[key_id].made_from != stamp]
        fresh: dict[str, KnownKey] = {}
        for row in await _rows(session, select(*ApiKey.__table__.columns), ApiKey.id, moved):
            if row.tenant_id in tenants:
                slug = tenants[row.tenant_id].slug
                fresh[row.id] = KnownKey((row.version, slug), row.digest, key_record(row, slug))
        self._keys = {key_id: fresh.get(key_id) or known[key_id] for key_id in stamps if key_id in fresh or key_id in known}
        return {key.digest: key.record for key in self._keys.values()}


async def _rows(session: AsyncSession, rows: Select[Any], column: Any, ids: Sequence[Any]) -> Iterable[Any]:
    """The rows with these ids; all of them in one go where that is cheaper."""
    if len(ids) > 4 * CHUNK:
        wanted = set(ids)
        return [row for row in await session.execute(rows) if row.id in wanted]
    found: list[Any] = []
    for begin in range(0, len(ids), CHUNK):
        found += await session.execute(rows.where(column.in_(ids[begin : begin + CHUNK])))
    return found


def _known_tenant(row: Any, tier: SlaTier, base: Sla) -> KnownTenant:
    effective = sla_under(base, row.overrides, f"tenant {row.slug}") if row.overrides else base
    policy = policy_of(row.slug, row.trust_group, tier.name, effective, row.version + tier.version)
    return KnownTenant((row.version, row.tier_id, tier.version), row.slug, row.status, policy)


def key_record(row: Any, slug: str) -> KeyRecord:
    """A row of `ApiKey` as the snapshot holds it."""
    return KeyRecord(
        key_id=row.id,
        tenant_id=slug,
        scopes=known_scopes(row.scopes),
        models=frozenset(row.models),
        lanes=frozenset(row.lanes),
        expires_at_s=row.expires_at.timestamp() if row.expires_at else None,
        grace_until_s=row.grace_until.timestamp() if row.grace_until else None,
        disabled=row.disabled_at is not None,
        limits=Limits(row.rpm, row.tpm, row.tokens_per_day, row.tokens_per_month),
        lineage_id=row.lineage_id,
        granted_by=row.granted_by,
    )
