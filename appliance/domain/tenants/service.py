"""Reading and writing tenants, and the snapshot of who may do what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.database import Database
from appliance.db.state import bump_version, read_version
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Limits, Scope
from appliance.domain.access.service import KeySpec, create_key, revoke_key
from appliance.domain.access.snapshot import AccessSnapshot, KeyRecord
from appliance.domain.slas.decisions import Sla, check_sla, policy_of, sla_with
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import find_tier, list_tiers, sla_of
from appliance.domain.tenants.decisions import check_name, check_slug
from appliance.domain.tenants.models import Tenant
from appliance.errors import Conflict, NotFound
from engine.wire import TenantPolicy

DELETED = "deleted"
SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class TenantWithTier:
    """A tenant's row, its tier's, and what the two come to."""

    tenant: Tenant
    tier: SlaTier
    effective: Sla

    @property
    def policy(self) -> TenantPolicy:
        version = self.tenant.version + self.tier.version
        return policy_of(self.tenant.slug, self.tenant.trust_group, self.tier.name, self.effective, version)


async def create_tenant(
    session: AsyncSession, *, slug: str, name: str, tier: str, overrides: Mapping[str, Any], trust_group: str = ""
) -> TenantWithTier:
    """Add a tenant. Raises `Invalid` (slug, name, tier, overrides) or `Conflict` (the slug is taken)."""
    check_slug(slug)
    name = check_name(name)
    if trust_group:
        check_slug(trust_group, "trust_group")
    await bump_version(session)  # first: its lock makes look-then-insert safe between processes
    tier_row = await find_tier(session, tier)
    effective = sla_with(sla_of(tier_row), overrides)
    check_sla(effective)
    if (await session.scalars(select(Tenant.id).where(Tenant.slug == slug))).first() is not None:
        raise Conflict(f"there is a tenant {slug!r} already", code="tenant_exists", param="slug")
    tenant = Tenant(slug=slug, name=name, tier_id=tier_row.id, overrides=dict(overrides), trust_group=trust_group)
    session.add(tenant)
    await session.flush()
    return TenantWithTier(tenant, tier_row, effective)


async def list_tenants(session: AsyncSession) -> list[TenantWithTier]:
    """All tenants but deleted ones, by slug, each with its tier (read apart: a join would decode a tier for each tenant)."""
    tenants = (await session.scalars(select(Tenant).where(Tenant.status != DELETED).order_by(Tenant.slug))).all()
    tiers = {tier.id: (tier, sla_of(tier)) for tier in await list_tiers(session)}
    return [_with_tier(tenant, *tiers[tenant.tier_id]) for tenant in tenants]


async def find_tenant(session: AsyncSession, slug: str) -> TenantWithTier:
    """A tenant by slug. Raises `NotFound`."""
    found = select(Tenant, SlaTier).join(SlaTier, Tenant.tier_id == SlaTier.id).where(Tenant.slug == slug, Tenant.status != DELETED)
    row = (await session.execute(found)).one_or_none()
    if row is None:
        raise NotFound(f"there is no tenant {slug[:64]!r}", code="tenant_not_found")
    tenant, tier = row
    return _with_tier(tenant, tier, sla_of(tier))


async def create_tenant_key(session: AsyncSession, slug: str, spec: KeySpec, pepper: bytes) -> tuple[ApiKey, str]:
    """A new key of a tenant and its raw text. Raises `NotFound`."""
    await bump_version(session)
    return await create_key(session, (await find_tenant(session, slug)).tenant.id, spec, pepper)


async def revoke_tenant_key(session: AsyncSession, slug: str, key_id: str) -> ApiKey:
    """Revoke a key of a tenant. Raises `NotFound`."""
    await bump_version(session)
    return await revoke_key(session, (await find_tenant(session, slug)).tenant.id, key_id)


def _with_tier(tenant: Tenant, tier: SlaTier, base: Sla) -> TenantWithTier:
    return TenantWithTier(tenant, tier, sla_with(base, tenant.overrides, param=f"overrides of tenant {tenant.slug}"))


class DatabaseSource:
    """The `SnapshotSource` of a running appliance."""

    def __init__(self, database: Database, pepper: bytes, admin_digest: bytes | None) -> None:
        self._database = database
        self._pepper = pepper
        self._admin_digest = admin_digest

    async def version(self) -> int:
        async with self._database.read() as session:
            return await read_version(session)

    async def load(self) -> AccessSnapshot:
        """The version is read first: a write in between makes the next poll load again, never go unseen."""
        async with self._database.read() as session:
            version = await read_version(session)
            tenants = await list_tenants(session)
            slugs = {found.tenant.id: found.tenant.slug for found in tenants}
            rows = await session.scalars(select(ApiKey))
            keys = {row.digest: _key_record(row, slugs[row.tenant_id]) for row in rows if row.tenant_id in slugs}
        return AccessSnapshot(
            version=version,
            pepper=self._pepper,
            keys=keys,
            policies={found.tenant.slug: found.policy for found in tenants},
            suspended=frozenset(found.tenant.slug for found in tenants if found.tenant.status == SUSPENDED),
            admin_digest=self._admin_digest,
        )


def _key_record(row: ApiKey, slug: str) -> KeyRecord:
    return KeyRecord(
        key_id=row.id,
        tenant_id=slug,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        models=frozenset(row.models),
        lanes=frozenset(row.lanes),
        expires_at_s=row.expires_at.timestamp() if row.expires_at else None,
        grace_until_s=row.grace_until.timestamp() if row.grace_until else None,
        disabled=row.disabled_at is not None,
        limits=Limits(row.rpm, row.tpm, row.tokens_per_day, row.tokens_per_month),
    )
