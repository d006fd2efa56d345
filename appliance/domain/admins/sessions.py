"""Sessions of browsers: an opaque random id in a cookie, its digest in the database. A session lives as long as its row."""

import contextlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.database import Database
from appliance.domain.access.keys import digest_key
from appliance.domain.access.principal import Role
from appliance.domain.access.snapshot import Admin
from appliance.domain.admins.models import AdminSession, AdminUser
from appliance.errors import Unavailable

COOKIE = "fairlane_session"
SEEN_EVERY_S = 60.0
"""How exactly the idle time is known, so that reading a page is seldom a write."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """How long a session lives, in seconds: from its login, and from its last request."""

    ttl_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that goes on."""

    admin: Admin
    admin_version: int
    """Of the administrator's row; each change of it ends the sessions of before."""
    ends_s: float
    """When it ends by itself, unless it is used meanwhile; wall clock."""


async def start_session(session: AsyncSession, admin_id: str, rules: SessionRules, pepper: bytes, now: datetime) -> str:
    """A fresh session's id, which goes into the cookie. Ended sessions of everybody are cleared away."""
    idle = now - timedelta(seconds=rules.idle_s)
    await session.execute(delete(AdminSession).where(or_(AdminSession.expires_at <= now, AdminSession.seen_at <= idle)))
    session_id = secrets.token_urlsafe(32)
    ends = now + timedelta(seconds=rules.ttl_s)
    session.add(AdminSession(digest=digest_key(session_id, pepper), admin_id=admin_id, created_at=now, seen_at=now, expires_at=ends))
    await session.flush()
    return session_id


async def find_session(database: Database, digest: bytes, rules: SessionRules, now: datetime, *, is_use: bool = True) -> OpenSession | None:
    """The session of a cookie; None where it has ended, however. `is_use` off: a look, after which it is as idle as before.

    Raises `Unavailable`.
    """
    wanted = select(AdminSession, AdminUser).join(AdminUser, AdminSession.admin_id == AdminUser.id).where(AdminSession.digest == digest)
    async with database.read() as session:
        found = (await session.execute(wanted)).one_or_none()
    if found is None:
        return None
    row, admin = found
    idle_s = (now - row.seen_at).total_seconds()
    if now >= row.expires_at or idle_s >= rules.idle_s or admin.disabled_at is not None:
        return None
    if is_use and database.takes_writes and idle_s >= min(SEEN_EVERY_S, rules.idle_s / 4):
        with contextlib.suppress(Unavailable):  # looking needs no writes
            async with database.write() as session:
                await session.execute(update(AdminSession).where(AdminSession.digest == digest).values(seen_at=now))
    ends_s = min(row.expires_at.timestamp(), (now if is_use else row.seen_at).timestamp() + rules.idle_s)
    return OpenSession(Admin(f"admin:{admin.name}", Role(admin.role).scopes, admin.id, admin.id), admin.version, ends_s)


async def end_session(database: Database, digest: bytes) -> None:
    """The cookie is worth nothing from now on."""
    async with database.write() as session:
        await session.execute(delete(AdminSession).where(AdminSession.digest == digest))


def csrf_token(session_id: str, pepper: bytes) -> str:
    """What a page of ours sends along with a change and a page of others can not know (OWASP: HMAC bound to the session)."""
    return digest_key(f"csrf:{session_id}", pepper).hex()
