"""Tokens of administrators: made, listed, revoked; and as the access snapshot holds them."""

import secrets
from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now, utc_of
from appliance.db.state import bump_version
from appliance.domain.access.keys import ADMIN_TOKEN_PREFIX, digest_key, last4, new_key, visible_prefix
from appliance.domain.access.principal import Role, Scope
from appliance.domain.access.service import check_key_spec
from appliance.domain.access.snapshot import Admin, AdminTokenRecord
from appliance.domain.admins.decisions import check_token_grant
from appliance.domain.admins.models import AdminToken, AdminUser
from appliance.domain.admins.service import find_admin, target_of
from appliance.domain.audit.service import Actor, record
from appliance.errors import Conflict, Forbidden, NotFound


async def create_token(
    session: AsyncSession,
    admin_id: str,
    *,
    name: str,
    role: Role | None,
    expires_at: datetime | None,
    maker: Admin | None,
    pepper: bytes,
    actor: Actor,
) -> tuple[AdminToken, str]:
    """A new token of an administrator and its raw text. Without a role it has the administrator's; without a maker (the command
    line) nobody's rights bound it but the administrator's.

    Raises `NotFound`, `Invalid`, `Forbidden` (more than its maker or its administrator may) or `Conflict` (disabled).
    """
    await bump_version(session)
    row = await find_admin(session, admin_id)
    if row.disabled_at is not None:
        raise Conflict(f"administrator {row.name!r} is disabled: enable it first", code="admin_disabled")
    admin_role = Role(row.role)
    spec = check_key_spec(name, ["inference"], [], [], expires_at, utc_now())
    role = role or admin_role
    ends = None if maker is None or maker.expires_at_s is None else utc_of(maker.expires_at_s)
    check_token_grant(admin_role.scopes if maker is None else maker.scopes, ends, role, spec.expires_at, admin_role)
    raw_token = new_key(ADMIN_TOKEN_PREFIX)
    token = AdminToken(
        id=f"adt_{secrets.token_hex(8)}",
        admin_id=row.id,
        name=spec.name,
        role=role.value,
        prefix=visible_prefix(raw_token),
        last4=last4(raw_token),
        digest=digest_key(raw_token, pepper),
        expires_at=spec.expires_at,
    )
    session.add(token)
    await session.flush()
    record(session, actor, "admin.token.create", f"{target_of(row)}/token:{token.id}", None, _facts(token))
    return token, raw_token


async def list_tokens(session: AsyncSession, admin_id: str) -> list[AdminToken]:
    """An administrator's tokens, revoked ones too, oldest first. Raises `NotFound`."""
    await find_admin(session, admin_id)
    of_admin = select(AdminToken).where(AdminToken.admin_id == admin_id).order_by(AdminToken.created_at, AdminToken.id)
    return list((await session.scalars(of_admin)).all())


async def revoke_token(session: AsyncSession, admin_id: str, token_id: str, actor: Actor, caller: Admin | None = None) -> AdminToken:
    """Refuse a token for ever; again is no error. `caller`: who asks over HTTP; None may do all.

    Raises `NotFound`, also for another administrator's token, or `Forbidden` for one that may do more than who asks.
    """
    await bump_version(session)
    row = await find_admin(session, admin_id)
    token = await session.get(AdminToken, token_id)
    if token is None or token.admin_id != admin_id:
        raise NotFound(f"this administrator has no token {token_id[:64]!r}", code="token_not_found")
    is_own = caller is not None and caller.actor_id == f"{admin_id}/{token_id}"
    if caller is not None and not is_own and not Role(token.role).scopes <= caller.scopes:
        raise Forbidden(f"a token of role {token.role!r} is revoked by somebody who may do as much", code="role_too_high")
    before = _facts(token)
    token.disabled_at = token.disabled_at or utc_now()
    await session.flush()
    record(session, actor, "admin.token.revoke", f"{target_of(row)}/token:{token.id}", before, _facts(token))
    return token


async def load_admin_tokens(session: AsyncSession) -> dict[bytes, AdminTokenRecord]:
    """All tokens by digest."""
    rows = await session.execute(select(AdminToken, AdminUser).join(AdminUser, AdminToken.admin_id == AdminUser.id))
    return {
        token.digest: AdminTokenRecord(
            token_id=token.id,
            admin_id=admin.id,
            admin_name=admin.name,
            scopes=Role(token.role).scopes & Role(admin.role).scopes,
            expires_at_s=token.expires_at.timestamp() if token.expires_at else None,
            disabled=token.disabled_at is not None or admin.disabled_at is not None,
        )
        for token, admin in rows
    }


async def load_grantors(session: AsyncSession, tokens: Iterable[AdminTokenRecord]) -> dict[str, frozenset[Scope]]:
    """What enabled administrators and their valid tokens may do, as `AccessSnapshot.grantors` names them."""
    rows = await session.execute(select(AdminUser.id, AdminUser.role).where(AdminUser.disabled_at.is_(None)))
    admins = {admin_id: Role(role).scopes for admin_id, role in rows}
    return admins | {f"{token.admin_id}/{token.token_id}": token.scopes for token in tokens if not token.disabled}


async def read_grantors(session: AsyncSession) -> dict[str, frozenset[Scope]]:
    """What `load_grantors` gives, where no tokens are loaded yet."""
    return await load_grantors(session, (await load_admin_tokens(session)).values())


def _facts(token: AdminToken) -> dict[str, object]:
    times = {"expires_at": token.expires_at, "disabled_at": token.disabled_at}
    shown = {name: None if time is None else time.isoformat() for name, time in times.items()}
    return {"name": token.name, "role": token.role, "prefix": token.prefix, "last4": token.last4, **shown}
