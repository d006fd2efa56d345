"""Administrators: made, changed, removed. Each change is audited, and takes the open sessions with it where it changes what they may."""

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.state import bump_version, take_version_back
from appliance.domain.access.principal import Role
from appliance.domain.admins.decisions import check_admin_name, check_owner_left
from appliance.domain.admins.models import AdminSession, AdminToken, AdminUser
from appliance.domain.audit.service import MASK, Actor, record
from appliance.errors import Conflict, EditConflict, NotFound


@dataclass(frozen=True, slots=True)
class AdminChange:
    """What to change of an administrator; None leaves it. The password comes as its hash: hashing is no work for a transaction."""

    role: Role | None = None
    disabled: bool | None = None
    password_hash: str | None = None


async def create_admin(session: AsyncSession, name: str, role: Role, password_hash: str | None, actor: Actor) -> AdminUser:
    """Add an administrator; without a password for tokens only. Raises `Invalid` (name) or `Conflict` (it is taken)."""
    check_admin_name(name)
    await bump_version(session)  # first: its lock makes look-then-insert safe between processes
    if (await session.scalars(select(AdminUser.id).where(AdminUser.name == name))).first() is not None:
        raise Conflict(f"there is an administrator {name!r} already", code="admin_exists", param="name")
    row = AdminUser(id=f"adm_{secrets.token_hex(8)}", name=name, role=role.value, password_hash=password_hash)
    session.add(row)
    await session.flush()
    record(session, actor, "admin.create", target_of(row), None, _facts(row))
    return row


async def list_admins(session: AsyncSession) -> list[AdminUser]:
    """All administrators, by name."""
    return list((await session.scalars(select(AdminUser).order_by(AdminUser.name))).all())


async def find_admin(session: AsyncSession, admin_id: str) -> AdminUser:
    """An administrator by id. Raises `NotFound`."""
    row = await session.get(AdminUser, admin_id)
    if row is None:
        raise NotFound(f"there is no administrator {admin_id[:64]!r}", code="admin_not_found")
    return row


async def find_admin_by_name(session: AsyncSession, name: str) -> AdminUser:
    """An administrator by name. Raises `NotFound`."""
    row = (await session.scalars(select(AdminUser).where(AdminUser.name == name))).one_or_none()
    if row is None:
        raise NotFound(f"there is no administrator {name[:64]!r}", code="admin_not_found")
    return row


async def load_admin_versions(session: AsyncSession) -> dict[str, int]:
    """As `AccessSnapshot.admin_versions` has them."""
    rows = await session.execute(select(AdminUser.id, AdminUser.version).where(AdminUser.disabled_at.is_(None)))
    return {row.id: row.version for row in rows}


async def has_owner(session: AsyncSession) -> bool:
    """Whether there is an owner, disabled or not."""
    return (await session.scalars(select(AdminUser.id).where(AdminUser.role == Role.OWNER.value).limit(1))).first() is not None


async def update_admin(session: AsyncSession, admin_id: str, change: AdminChange, version: int | None, actor: Actor) -> AdminUser:
    """Change an administrator; sessions end where role, password or access changed.

    Raises `NotFound`, or `Conflict` where `version` is not the present one or no owner would be left.
    """
    await bump_version(session)
    row = await find_admin(session, admin_id)
    before = _facts(row)
    if version is not None and version != row.version:
        message = f"administrator {row.name!r} is at version {row.version}, and this change was made on version {version}: read it again"
        raise Conflict(message, code="version_conflict", param="version", edit=EditConflict(version, row.version, before))
    demoted = change.role is not None and change.role is not Role.OWNER
    if row.role == Role.OWNER.value and row.disabled_at is None and (demoted or change.disabled):
        await _check_owner_left(session, row)
    if change.role is not None:
        row.role = change.role.value
    if change.disabled is not None and change.disabled is not (row.disabled_at is not None):
        row.disabled_at = utc_now() if change.disabled else None
    if change.password_hash is not None:
        row.password_hash = change.password_hash
    await session.flush()
    after = _facts(row)
    if change.password_hash is not None:
        after["password"] = "(changed)"
    if before != after:
        await session.execute(delete(AdminSession).where(AdminSession.admin_id == row.id))
    if not record(session, actor, "admin.update", target_of(row), before, after):
        await take_version_back(session)
    return row


async def delete_admin(session: AsyncSession, admin_id: str, actor: Actor) -> None:
    """Remove an administrator with all sessions and tokens. Raises `NotFound` or `Conflict` (the last owner)."""
    await bump_version(session)
    row = await find_admin(session, admin_id)
    if row.role == Role.OWNER.value and row.disabled_at is None:
        await _check_owner_left(session, row)
    before, target = _facts(row), target_of(row)
    for table in (AdminSession, AdminToken):
        await session.execute(delete(table).where(table.admin_id == row.id))
    await session.delete(row)
    await session.flush()
    record(session, actor, "admin.delete", target, before, None)


def target_of(row: AdminUser) -> str:
    """As the audit names an administrator."""
    return f"admin:{row.name}"


async def _check_owner_left(session: AsyncSession, row: AdminUser) -> None:
    owners = select(AdminUser.id).where(AdminUser.role == Role.OWNER.value, AdminUser.disabled_at.is_(None))
    check_owner_left((await session.scalars(owners)).all(), row.id)


def _facts(row: AdminUser) -> dict[str, Any]:
    disabled_at = None if row.disabled_at is None else row.disabled_at.isoformat()
    return {"id": row.id, "name": row.name, "role": row.role, "disabled_at": disabled_at, "password": MASK if row.password_hash else None}
