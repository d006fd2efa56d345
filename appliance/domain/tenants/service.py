"""Reading and writing tenants, and the snapshot of who may do what."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.database import Database
from appliance.db.state import CAPACITY_TPM, bump_version, read_capacity_tpm, read_version, take_version_back, write_text
from appliance.domain.access.snapshot import AccessSnapshot, no_tenant
from appliance.domain.admins.service import load_admin_versions
from appliance.domain.admins.token_service import load_admin_tokens, load_grantors
from appliance.domain.audit.service import Actor, record
from appliance.domain.slas.decisions import Sla, check_sla, contract_warnings, policy_of, sla_with
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import find_tier, list_tiers, sla_of, sla_under
from appliance.domain.tenants.decisions import check_name, check_slug, check_status
from appliance.domain.tenants.models import Tenant
from appliance.domain.tenants.snapshot_cache import SnapshotCache
from appliance.errors import Conflict, EditConflict
from engine.wire import TenantPolicy

DEFAULT_TENANT = "default"
"""Owns the first key."""
WRITE_TRIED = "write_tried_at"
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
    session: AsyncSession, *, slug: str, name: str, tier: str, overrides: Mapping[str, Any], actor: Actor, trust_group: str = ""
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
        what = f"a tenant {slug!r} was removed, and its slug stays taken" if await removed_slugs(session, [slug]) else None
        raise Conflict(what or f"there is a tenant {slug!r} already", code="tenant_exists", param="slug")
    tenant = Tenant(slug=slug, name=name, tier_id=tier_row.id, overrides=dict(overrides), trust_group=trust_group)
    session.add(tenant)
    await session.flush()
    created = TenantWithTier(tenant, tier_row, effective)
    record(session, actor, "tenant.create", f"tenant:{slug}", None, _facts(created))
    return created


async def list_tenants(
    session: AsyncSession,
    *,
    after: str = "",
    limit: int | None = None,
    status: str | None = None,
    tier: str | None = None,
    search: str = "",
) -> list[TenantWithTier]:
    """Tenants but deleted ones, by slug: those behind `after`, of a status, under a tier, with a text in slug or name.

    Each with its tier, which is read apart: a join would decode a tier for each tenant.
    """
    tiers = {row.id: (row, sla_of(row)) for row in await list_tiers(session)}
    wanted = select(Tenant).where(Tenant.slug > after).order_by(Tenant.slug).limit(limit)
    if tier is not None:
        wanted = wanted.where(Tenant.tier_id == (await find_tier(session, tier)).id)
    wanted = _narrowed(wanted, status, search)
    return [_with_tier(tenant, *tiers[tenant.tier_id]) for tenant in (await session.scalars(wanted)).all()]


type TenantOrder = Literal["slug", "name", "tier", "status"]


async def list_slugs(
    session: AsyncSession, *, search: str = "", status: str | None = None, tier: str | None = None, order: TenantOrder = "slug"
) -> list[str]:
    """Slugs of the tenants that `list_tenants` would give, in another order. Raises `Invalid` for an unknown tier."""
    columns = {"slug": Tenant.slug, "name": Tenant.name, "tier": SlaTier.name, "status": Tenant.status}
    wanted = select(Tenant.slug).join(SlaTier, Tenant.tier_id == SlaTier.id).order_by(columns[order], Tenant.slug)
    if tier is not None:
        await find_tier(session, tier)
        wanted = wanted.where(SlaTier.name == tier)
    return list((await session.scalars(_narrowed(wanted, status, search))).all())


async def tenants_by_slug(session: AsyncSession, slugs: Sequence[str]) -> list[TenantWithTier]:
    """These tenants, in this order; those that are no more are left out."""
    tiers = {row.id: (row, sla_of(row)) for row in await list_tiers(session)}
    rows = await session.scalars(select(Tenant).where(Tenant.status != DELETED, Tenant.slug.in_(slugs)))
    found = {tenant.slug: _with_tier(tenant, *tiers[tenant.tier_id]) for tenant in rows}
    return [found[slug] for slug in slugs if slug in found]


async def count_by_tier(session: AsyncSession) -> dict[str, int]:
    """How many tenants are under each tier that has some."""
    counted = select(SlaTier.name, func.count()).join(Tenant, Tenant.tier_id == SlaTier.id).where(Tenant.status != DELETED)
    return {row[0]: row[1] for row in await session.execute(counted.group_by(SlaTier.name))}


async def find_tenant(session: AsyncSession, slug: str) -> TenantWithTier:
    """A tenant by slug. Raises `NotFound`."""
    found = select(Tenant, SlaTier).join(SlaTier, Tenant.tier_id == SlaTier.id).where(Tenant.slug == slug, Tenant.status != DELETED)
    row = (await session.execute(found)).one_or_none()
    if row is None:
        raise no_tenant(slug)
    tenant, tier = row
    return _with_tier(tenant, tier, sla_of(tier))


async def read_contract_warnings(session: AsyncSession) -> list[str]:
    """What there is to say about the contracts of all tenants as they are now."""
    contracts = [found.effective.committed_tpm for found in await list_tenants(session)]
    return contract_warnings(contracts, await read_capacity_tpm(session))


async def require_known(session: AsyncSession, slug: str) -> None:
    """Raises `NotFound` for a slug that no tenant has or had: a removed one's usage stays."""
    if (await session.scalars(select(Tenant.id).where(Tenant.slug == slug))).first() is None:
        raise no_tenant(slug, "tenant", ever=True)


async def removed_slugs(session: AsyncSession, slugs: Sequence[str]) -> list[str]:
    """Which of these are a removed tenant's."""
    removed = await session.scalars(select(Tenant.slug).where(Tenant.status == DELETED).order_by(Tenant.slug))
    wanted = set(slugs)
    return [slug for slug in removed if slug in wanted]


async def update_tenant(session: AsyncSession, slug: str, changes: Mapping[str, Any], version: int | None, actor: Actor) -> TenantWithTier:
    """Change some of name, tier, overrides (all of them), status and trust_group.

    Raises `NotFound`, `Invalid`, or `Conflict` where `version` is not the present one.
    """
    await bump_version(session)
    found = await find_tenant(session, slug)
    tenant = found.tenant
    before = _facts(found)
    check_version(version, tenant.version, f"tenant {slug!r}", before)
    tier = await find_tier(session, changes["tier"]) if "tier" in changes else found.tier
    tenant.tier_id = tier.id
    if "name" in changes:
        tenant.name = check_name(changes["name"])
    if "overrides" in changes:
        tenant.overrides = dict(changes["overrides"])
    if "status" in changes:
        tenant.status = check_status(changes["status"])
    if "trust_group" in changes:
        tenant.trust_group = check_slug(changes["trust_group"], "trust_group") if changes["trust_group"] else ""
    effective = sla_with(sla_of(tier), tenant.overrides)
    check_sla(effective)
    await session.flush()
    updated = TenantWithTier(tenant, tier, effective)
    if not record(session, actor, "tenant.update", f"tenant:{slug}", before, _facts(updated)):
        await take_version_back(session)
    return updated


async def delete_tenant(session: AsyncSession, slug: str, actor: Actor) -> None:
    """Remove a tenant from sight; its keys are refused, its slug stays taken, its usage stays. Raises `NotFound`."""
    await bump_version(session)
    found = await find_tenant(session, slug)
    before = _facts(found)
    found.tenant.status = DELETED
    await session.flush()
    record(session, actor, "tenant.delete", f"tenant:{slug}", before, None)


def _narrowed[Rows: Select[Any]](rows: Rows, status: str | None, search: str) -> Rows:
    """Without deleted tenants, and of a status, with a text in slug or name, where given."""
    rows = rows.where(Tenant.status != DELETED)
    if status is not None:
        rows = rows.where(Tenant.status == status)
    if search:
        rows = rows.where(Tenant.slug.icontains(search, autoescape=True) | Tenant.name.icontains(search, autoescape=True))
    return rows


def check_version(given: int | None, present: int, what: str, facts: Mapping[str, Any]) -> None:
    """Raises `Conflict` where an editor saw another version than the present one, which the error holds; None does not ask."""
    if given is not None and given != present:
        message = f"{what} is at version {present}, and this change was made on version {given}: read it again and repeat the change"
        raise Conflict(message, code="version_conflict", param="version", edit=EditConflict(given, present, dict(facts)))


def _facts(found: TenantWithTier) -> dict[str, Any]:
    """What the audit tells of a tenant."""
    tenant = found.tenant
    fields = {"name": tenant.name, "status": tenant.status, "tier": found.tier.name, "trust_group": tenant.trust_group}
    return {**fields, "overrides": dict(tenant.overrides)}


def _with_tier(tenant: Tenant, tier: SlaTier, base: Sla) -> TenantWithTier:
    return TenantWithTier(tenant, tier, sla_under(base, tenant.overrides, f"tenant {tenant.slug}"))


class DatabaseSource:
    """The `SnapshotSource` of a running appliance."""

    def __init__(
        self,
        database: Database,
        pepper: bytes,
        admin_digest: bytes | None,
        metrics_digest: bytes | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """`shares`: weights of tenants that win over the database's."""
        self._database = database
        self._pepper = pepper
        self._admin_digest = admin_digest
        self._metrics_digest = metrics_digest
        self._shares = shares or {}
        self._cache = SnapshotCache()

    async def version(self) -> int:
        async with self._database.read() as session:
            return await read_version(session)

    @property
    def takes_writes(self) -> bool:
        return self._database.takes_writes

    async def try_writing(self, quiet_s: float) -> None:
        if time.monotonic() - self._database.tried_writing_s >= quiet_s:
            async with self._database.write() as session:
                await write_text(session, WRITE_TRIED, utc_now().isoformat())

    async def keep_capacity(self, capacity_tpm: int) -> None:
        async with self._database.write() as session:
            await write_text(session, CAPACITY_TPM, str(capacity_tpm))

    async def load(self) -> AccessSnapshot:
        """The version is read first: a write in between makes the next poll load again, never go unseen."""
        async with self._database.read() as session:
            version = await read_version(session)
            tenants = await self._cache.tenants(session)
            keys = await self._cache.keys(session, tenants)
            admin_tokens = await load_admin_tokens(session)
            grantors = await load_grantors(session, admin_tokens.values())
            admin_versions = await load_admin_versions(session)
        return AccessSnapshot(
            version=version,
            pepper=self._pepper,
            keys=keys,
            policies={tenant.slug: self._with_share(tenant.policy) for tenant in tenants.values()},
            suspended=frozenset(tenant.slug for tenant in tenants.values() if tenant.status == SUSPENDED),
            admin_digest=self._admin_digest,
            admin_tokens=admin_tokens,
            metrics_digest=self._metrics_digest,
            grantors=grantors,
            admin_versions=admin_versions,
        )

    def _with_share(self, policy: TenantPolicy) -> TenantPolicy:
        share = self._shares.get(policy.tenant_id)
        return policy if share is None else msgspec.structs.replace(policy, weight=share)
