"""Reading and writing API keys. The raw key leaves `create_key` once and is nowhere else."""

import dataclasses
import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.domain.access.keys import digest_key, last4, new_key, visible_prefix
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import KEY_SCOPES, NO_LIMITS, Limits, Scope, known_scopes
from appliance.errors import Invalid, NotFound
from engine.wire import LANES

MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class KeySpec:
    """What an operator chooses of a key, checked by `check_key_spec`."""

    name: str
    scopes: tuple[Scope, ...] = (Scope.INFERENCE,)
    models: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    expires_at: datetime | None = None
    limits: Limits = NO_LIMITS


def check_key_spec(
    name: str,
    scopes: Iterable[str],
    models: Iterable[str],
    lanes: Iterable[str],
    expires_at: datetime | None,
    now: datetime | None,
    limits: Limits = NO_LIMITS,
) -> KeySpec:
    """A key's specification from outside; without `now` it may have expired already. Raises `Invalid`, naming the field and what
    is allowed."""
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise Invalid(f"name must be 1 to {MAX_NAME_CHARS} printable characters", param="name")
    known = [scope.value for scope in KEY_SCOPES]
    for scope in scopes:
        if scope not in known:
            raise Invalid(f"there is no scope {scope[:64]!r}; the scopes are {', '.join(known)}", param="scopes")
    for lane in lanes:
        if lane not in LANES:
            raise Invalid(f"there is no lane {lane[:64]!r}; the lanes are {', '.join(LANES)}", param="lanes")
    if any(not model or len(model) > MAX_NAME_CHARS or not model.isprintable() for model in models):
        raise Invalid(f"models must be names of 1 to {MAX_NAME_CHARS} printable characters", param="models")
    chosen = tuple(Scope(scope) for scope in dict.fromkeys(scopes))
    if not chosen:
        raise Invalid(f"a key without scopes can do nothing; choose from {', '.join(known)}", param="scopes")
    if expires_at is not None and expires_at.tzinfo is None:
        raise Invalid("expires_at needs a time zone, for example 2030-01-31T12:00:00Z", param="expires_at")
    if expires_at is not None:
        try:
            expires_at = expires_at.astimezone(UTC)
        except OverflowError as error:
            raise Invalid(f"expires_at is {expires_at.isoformat()}, which UTC can not express", param="expires_at") from error
    if expires_at is not None and now is not None and expires_at <= now:
        raise Invalid(f"expires_at is {expires_at.isoformat()}, which has passed", param="expires_at")
    return KeySpec(name.strip(), chosen, tuple(dict.fromkeys(models)), tuple(dict.fromkeys(lanes)), expires_at, limits)


async def create_key(
    session: AsyncSession,
    tenant_row_id: int,
    spec: KeySpec,
    pepper: bytes,
    raw_key: str | None = None,
    lineage_id: str | None = None,
    granted_by: str | None = None,
) -> tuple[ApiKey, str]:
    """Store a new key and return it with its raw text (`raw_key`, or one made here). `lineage_id`: the key whose counts it continues;
    `granted_by`: see `grantor_of`."""
    raw_key = raw_key or new_key()
    row = ApiKey(
        id=f"key_{secrets.token_hex(8)}",
        tenant_id=tenant_row_id,
        name=spec.name,
        prefix=visible_prefix(raw_key),
        last4=last4(raw_key),
        digest=digest_key(raw_key, pepper),
        scopes=[scope.value for scope in spec.scopes],
        models=list(spec.models),
        lanes=list(spec.lanes),
        lineage_id=lineage_id,
        granted_by=granted_by,
        expires_at=spec.expires_at,
        **dataclasses.asdict(spec.limits),
    )
    session.add(row)
    await session.flush()
    return row, raw_key


async def list_keys(session: AsyncSession, tenant_row_id: int, *, after: str = "", limit: int | None = None) -> list[ApiKey]:
    """A tenant's keys, revoked ones too, oldest first; those made after a key. Raises `NotFound` where the tenant has no such key."""
    of_tenant = select(ApiKey).where(ApiKey.tenant_id == tenant_row_id).order_by(ApiKey.created_at, ApiKey.id).limit(limit)
    if after:
        last = await find_key(session, tenant_row_id, after, "after")
        of_tenant = of_tenant.where(tuple_(ApiKey.created_at, ApiKey.id) > (last.created_at, last.id))
    return list((await session.scalars(of_tenant)).all())


async def key_names(session: AsyncSession, key_ids: Collection[str]) -> dict[str, str]:
    """Names of keys by id; ids of none are left out."""
    rows = await session.execute(select(ApiKey.id, ApiKey.name).where(ApiKey.id.in_(key_ids)))
    return {row.id: row.name for row in rows}


async def find_key(session: AsyncSession, tenant_row_id: int, key_id: str, param: str | None = None) -> ApiKey:
    """A key of a tenant; `param` named it. Raises `NotFound`, also for another tenant's key."""
    row = await session.get(ApiKey, key_id)
    if row is None or row.tenant_id != tenant_row_id:
        raise NotFound(f"this tenant has no key {key_id[:64]!r}", code="key_not_found", param=param)
    return row


def spec_of(row: ApiKey) -> KeySpec:
    """What was chosen of a key, for another one like it."""
    limits = Limits(row.rpm, row.tpm, row.tokens_per_day, row.tokens_per_month)
    known = known_scopes(row.scopes)
    scopes = tuple(Scope(scope) for scope in row.scopes if scope in known)
    return KeySpec(row.name, scopes, tuple(row.models), tuple(row.lanes), row.expires_at, limits)


async def revoke_key(session: AsyncSession, tenant_row_id: int, key_id: str) -> ApiKey:
    """Disable a key for ever; again is no error. Raises `NotFound`, also for another tenant's key."""
    row = await find_key(session, tenant_row_id, key_id)
    if row.disabled_at is None:
        row.disabled_at = utc_now()
        await session.flush()
    return row
