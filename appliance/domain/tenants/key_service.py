"""Keys of a tenant: made, changed, rotated, revoked. Each change is audited; of a key never more than may be shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Select, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.state import bump_version, take_version_back
from appliance.domain.access.grants import check_key_grant, grantor_of
from appliance.domain.access.models import ApiKey
from appliance.domain.access.service import KeySpec, check_key_spec, create_key, find_key, revoke_key, spec_of
from appliance.domain.access.snapshot import Admin
from appliance.domain.audit.service import Actor, record
from appliance.domain.tenants.models import Tenant
from appliance.domain.tenants.service import DELETED, check_version, find_tenant
from appliance.errors import Conflict, Invalid, NotFound

AUDITED = ("name", "prefix", "last4", "scopes", "models", "lanes", "rpm", "tpm", "tokens_per_day", "tokens_per_month")
TIMES = ("expires_at", "grace_until", "disabled_at")
MAX_GRACE_S = 30 * 86_400.0


async def create_tenant_key(
    session: AsyncSession, slug: str, spec: KeySpec, pepper: bytes, actor: Actor, raw_key: str | None = None
) -> tuple[ApiKey, str]:
    """A new key of a tenant and its raw text (`raw_key`, or one made here). Raises `NotFound`."""
    await bump_version(session)
    tenant_id = (await find_tenant(session, slug)).tenant.id
    row, raw_key = await create_key(session, tenant_id, spec, pepper, raw_key, granted_by=grantor_of(actor.id, spec.scopes))
    record(session, actor, "key.create", key_target(slug, row), None, key_facts(row))
    return row, raw_key


KeyState = Literal["valid", "expired", "replaced", "disabled"]


@dataclass(frozen=True, slots=True)
class KeyOfTenant:
    """A key, and whose it is."""

    key: ApiKey
    slug: str

    def state(self, now: datetime) -> KeyState:
        """`replaced` is one that still works, until its grace time ends."""
        if self.key.disabled_at is not None:
            return "disabled"
        if any(end is not None and end <= now for end in (self.key.expires_at, self.key.grace_until)):
            return "expired"
        return "replaced" if self.key.grace_until is not None else "valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """Which keys: of all tenants or of one, with a text in name, id, tenant or last characters, those that have ended too or not."""

    now: datetime
    search: str = ""
    tenant: str = ""
    with_ended: bool = False


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Keys `first` up to before `end`, from 0, of `total`."""

    keys: list[KeyOfTenant]
    first: int
    total: int

    @property
    def end(self) -> int:
        return self.first + len(self.keys)


async def find_keys(session: AsyncSession, wanted: KeySearch, limit: int, *, after: str = "", before: str = "") -> KeyPage:
    """A page of them, newest first: behind a key, in front of one, or the first page, as where those would be none or fewer than a page.

    A key keeps its place, so one that is made meanwhile shifts no page. Raises `NotFound` where there is no such key.
    """
    among, keys = _narrowed(wanted), []
    age, newest_first = tuple_(ApiKey.created_at, ApiKey.id), (ApiKey.created_at.desc(), ApiKey.id.desc())
    if after:
        behind = among.where(age < await _age_of(session, after, "after"))
        keys = await _read(session, behind.order_by(*newest_first).limit(limit))
    elif before:
        in_front = among.where(age > await _age_of(session, before, "before"))
        nearest = await _read(session, in_front.order_by(ApiKey.created_at, ApiKey.id).limit(limit))
        keys = nearest[::-1] if len(nearest) == limit else []
    total = await _count(session, among)
    if not keys:
        return KeyPage(await _read(session, among.order_by(*newest_first).limit(limit)), 0, total)
    first = keys[0].key
    return KeyPage(keys, await _count(session, among.where(age > (first.created_at, first.id))), total)


async def _age_of(session: AsyncSession, key_id: str, param: str) -> tuple[datetime, str]:
    row = await session.get(ApiKey, key_id)
    if row is None:
        raise NotFound(f"there is no key {key_id[:64]!r}", code="key_not_found", param=param)
    return row.created_at, row.id


async def _read(session: AsyncSession, wanted: Select[ApiKey, str]) -> list[KeyOfTenant]:
    return [KeyOfTenant(key, slug) for key, slug in await session.execute(wanted)]


async def _count(session: AsyncSession, wanted: Select[ApiKey, str]) -> int:
    return (await session.scalars(select(func.count()).select_from(wanted.subquery()))).one()


def _narrowed(by: KeySearch) -> Select[ApiKey, str]:
    wanted = select(ApiKey, Tenant.slug).join(Tenant, ApiKey.tenant_id == Tenant.id).where(Tenant.status != DELETED)
    if by.tenant:
        wanted = wanted.where(Tenant.slug == by.tenant)
    if by.search:
        texts = (ApiKey.name, ApiKey.id, ApiKey.last4, Tenant.slug)
        wanted = wanted.where(or_(*(text.icontains(by.search, autoescape=True) for text in texts)))
    if not by.with_ended:
        wanted = wanted.where(ApiKey.disabled_at.is_(None))
        for end in (ApiKey.expires_at, ApiKey.grace_until):
            wanted = wanted.where(or_(end.is_(None), end > by.now))
    return wanted


async def find_tenant_key(session: AsyncSession, slug: str, key_id: str) -> KeyOfTenant:
    """A key of a tenant. Raises `NotFound`."""
    return KeyOfTenant(await find_key(session, (await find_tenant(session, slug)).tenant.id, key_id), slug)


async def revoke_tenant_key(session: AsyncSession, slug: str, key_id: str, actor: Actor) -> ApiKey:
    """Revoke a key of a tenant. Raises `NotFound`."""
    await bump_version(session)
    tenant_id = (await find_tenant(session, slug)).tenant.id
    before = key_facts(await find_key(session, tenant_id, key_id))
    row = await revoke_key(session, tenant_id, key_id)
    if not record(session, actor, "key.revoke", key_target(slug, row), before, key_facts(row)):
        await take_version_back(session)
    return row


async def update_tenant_key(
    session: AsyncSession,
    slug: str,
    key_id: str,
    changes: Mapping[str, Any],
    version: int | None,
    actor: Actor,
    caller: Admin | None = None,
) -> ApiKey:
    """Change a key's name, scopes, models, lanes, expiry or own limits. `caller`: who asks over HTTP; None may do all.

    Raises `NotFound`, `Invalid`, `Forbidden` (see `check_key_grant`), or `Conflict` (version, or a revoked key).
    """
    await bump_version(session)
    row = await find_key(session, (await find_tenant(session, slug)).tenant.id, key_id)
    before = key_facts(row)
    check_version(version, row.version, f"key {key_id!r}", before)
    _refuse_revoked(row)
    present = spec_of(row)
    checked = check_key_spec(
        name=changes.get("name", present.name),
        scopes=changes.get("scopes", present.scopes),
        models=changes.get("models", present.models),
        lanes=changes.get("lanes", present.lanes),
        expires_at=changes.get("expires_at"),
        now=None,
    )
    if caller is not None:
        expires_at = checked.expires_at if "expires_at" in changes else row.expires_at
        check_key_grant(caller, row.id, (*present.scopes, *checked.scopes), expires_at)
    spelled = {"name": checked.name, "scopes": [scope.value for scope in checked.scopes]}
    spelled |= {"models": list(checked.models), "lanes": list(checked.lanes), "expires_at": checked.expires_at}
    for field, value in changes.items():
        setattr(row, field, spelled.get(field, value))
    if set(checked.scopes) != set(present.scopes):
        row.granted_by = grantor_of(actor.id, checked.scopes)
    await session.flush()
    if not record(session, actor, "key.update", key_target(slug, row), before, key_facts(row)):
        await take_version_back(session)
    return row


async def rotate_tenant_key(
    session: AsyncSession, slug: str, key_id: str, grace_s: float, pepper: bytes, actor: Actor, caller: Admin | None = None
) -> tuple[ApiKey, str]:
    """Another key like it, and its raw text; the old one works for the grace time, and is replaced once only. `caller` as above.

    Raises `NotFound`, `Invalid`, `Forbidden`, or `Conflict` (revoked, expired or replaced already).
    """
    if not 0 <= grace_s <= MAX_GRACE_S:
        raise Invalid(f"grace_s is {grace_s:g}; it must be from 0 to {MAX_GRACE_S:.0f}", param="grace_s")
    await bump_version(session)
    tenant_id = (await find_tenant(session, slug)).tenant.id
    old = await find_key(session, tenant_id, key_id)
    _refuse_revoked(old)
    _refuse_replaced_or_expired(old)
    if caller is not None:
        check_key_grant(caller, old.id, spec_of(old).scopes, old.expires_at)
    before = key_facts(old)
    old.grace_until = utc_now() + timedelta(seconds=grace_s)
    spec = spec_of(old)
    granted_by = grantor_of(actor.id, spec.scopes)
    row, raw_key = await create_key(session, tenant_id, spec, pepper, lineage_id=old.lineage_id or old.id, granted_by=granted_by)
    record(session, actor, "key.rotate", key_target(slug, old), before, key_facts(old))
    record(session, actor, "key.create", key_target(slug, row), None, key_facts(row))
    return row, raw_key


def _refuse_revoked(row: ApiKey) -> None:
    if row.disabled_at is not None:
        raise Conflict(f"key {row.id!r} is revoked, which is for ever: make a new one", code="revoked_api_key")


def _refuse_replaced_or_expired(row: ApiKey) -> None:
    """Another grace time would bring a key back that was replaced because it leaked."""
    if row.grace_until is not None:
        raise Conflict(f"key {row.id!r} was replaced already: rotate the newer one, or revoke this one", code="replaced_api_key")
    if row.expires_at is not None and row.expires_at <= utc_now():
        raise Conflict(f"key {row.id!r} has expired: make a new one", code="expired_api_key")


def key_target(slug: str, row: ApiKey) -> str:
    """As the audit names a key."""
    return f"tenant:{slug}/key:{row.id}"


def key_facts(row: ApiKey) -> dict[str, Any]:
    """What the audit tells of a key."""
    times = {name: None if (time := getattr(row, name)) is None else time.isoformat() for name in TIMES}
    return {**{name: getattr(row, name) for name in AUDITED}, **times}
