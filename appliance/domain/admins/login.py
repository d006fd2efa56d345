"""Logging in: throttle, password, session; each attempt is audited."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest

import structlog
from sqlalchemy import select

from appliance.db.database import Database
from appliance.db.state import bump_version
from appliance.domain.access.principal import Role
from appliance.domain.admins.decisions import ADMIN_NAME, check_admin_name, check_password, normal_password
from appliance.domain.admins.models import AdminUser
from appliance.domain.admins.passwords import Passwords
from appliance.domain.admins.service import AdminChange, create_admin, has_owner, target_of, update_admin
from appliance.domain.admins.sessions import SessionRules, csrf_token, start_session
from appliance.domain.admins.throttle import LoginThrottle
from appliance.domain.audit.service import Actor, record
from appliance.errors import Conflict, Forbidden, Unauthenticated, Unavailable

log = structlog.get_logger(__name__)

UNKNOWN = "admin:(unknown)"
"""Target of a login under a name that nobody has: people type passwords into the wrong field, so it is not kept."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A session that began. `session_id` belongs into the cookie and nowhere else."""

    session_id: str
    csrf_token: str
    admin: AdminUser


@dataclass(frozen=True, slots=True)
class LoginService:
    """What the login route and the web pages share. `setup_token` makes the first owner; None where there is one."""

    database: Database
    pepper: bytes
    rules: SessionRules
    passwords: Passwords
    throttle: LoginThrottle
    setup_token: str | None
    monotonic_s: Callable[[], float]
    wall_s: Callable[[], float]

    async def login(self, name: str, password: str, source: str, request_id: str) -> LoggedIn:
        """Begin a session.

        Raises:
            OverOwnLimit: too many failures before; the password was not looked at.
            Unauthenticated: wrong name or password, or a disabled administrator: which one is not told.
            Unavailable: too many logins at once, or no database.
        """
        with self._attempt(name, source):
            admin = await self._find(name)
            await self._verify(admin, password, Actor("anonymous", source, request_id))
            assert admin is not None and admin.password_hash is not None, "verified"
            outdated = self.passwords.is_outdated(admin.password_hash)
            rehashed = await self.passwords.hash(normal_password(password)) if outdated else admin.password_hash
            async with self.database.write() as session:
                present = await session.get(AdminUser, admin.id)
                if present is None or present.version != admin.version:
                    raise Unauthenticated("the account was changed meanwhile: log in again", code="login_failed")
                present.password_hash = rehashed
                session_id = await start_session(session, admin.id, self.rules, self.pepper, self._now())
                record(session, Actor(f"admin:{name}", source, request_id, admin.id), "login", target_of(admin), None, None)
        return LoggedIn(session_id, csrf_token(session_id, self.pepper), present)

    async def change_own_password(self, admin_id: str, present: str, wanted: str, actor: Actor) -> None:
        """Change one's own password, which ends one's sessions. Raises as `login`, `Forbidden`, and `Invalid` for a weak one."""
        async with self.database.read() as session:
            admin = await session.get(AdminUser, admin_id)
        if admin is None:
            raise Forbidden("this credential belongs to no administrator: it has no password", code="no_password")
        spelled = check_password(wanted, admin.name)
        with self._attempt(admin.name, actor.source):
            await self._verify(admin, present, actor)
            change = AdminChange(password_hash=await self.passwords.hash(spelled))
        async with self.database.write() as session:
            await update_admin(session, admin_id, change, None, actor)

    async def set_up(self, token: str, name: str, password: str, source: str, request_id: str) -> AdminUser:
        """Make the first owner with the one-time token. Raises `Unauthenticated`, `Invalid`, or `Conflict` where there is an owner."""
        with self._attempt("(setup)", source):
            if self.setup_token is None or not compare_digest(token.encode(errors="surrogateescape"), self.setup_token.encode()):
                await self._audit_failure(Actor("anonymous", source, request_id), "setup.fail", UNKNOWN)
                raise Unauthenticated(
                    "wrong setup token: use the one that this server shows when it starts, or in setup-token of its data directory",
                    code="wrong_setup_token",
                )
        check_admin_name(name)
        password_hash = await self.passwords.hash(check_password(password, name))
        async with self.database.write() as session:
            await bump_version(session)
            if await has_owner(session):
                raise Conflict("there is an owner already: log in, or ask an owner for an account", code="already_set_up")
            return await create_admin(session, name, Role.OWNER, password_hash, Actor("setup", source, request_id))

    @contextmanager
    def _attempt(self, name: str, source: str) -> Iterator[None]:
        """One attempt under the throttle: it counts as failed where the block raises `Unauthenticated`, as none where it raises
        anything else."""
        self.throttle.begin(name, source, self.monotonic_s())
        try:
            yield
        except Unauthenticated:
            raise
        except BaseException:
            self.throttle.withdraw(name, source)
            raise
        self.throttle.succeed(name, source)

    async def _verify(self, admin: AdminUser | None, password: str, actor: Actor) -> None:
        """Raises `Unauthenticated`, and audits it, unless the password is the administrator's and logging in is allowed."""
        usable = None if admin is None or admin.disabled_at is not None else admin.password_hash
        if await self.passwords.verify(usable, password):
            return
        await self._audit_failure(actor, "login.fail", UNKNOWN if admin is None else target_of(admin))
        raise Unauthenticated("wrong name or password", code="login_failed")

    async def _find(self, name: str) -> AdminUser | None:
        """None also for a name that nobody can have: what was typed there may be a password, and goes no further."""
        if not ADMIN_NAME.fullmatch(name):
            return None
        async with self.database.read() as session:
            return (await session.scalars(select(AdminUser).where(AdminUser.name == name))).one_or_none()

    async def _audit_failure(self, actor: Actor, action: str, target: str) -> None:
        """A failed attempt stays one, and is throttled as one, where the database takes no writes: then the log alone has it."""
        try:
            async with self.database.write() as session:
                record(session, actor, action, target, None, None)
        except Unavailable:
            log.warning("failure_not_audited", action=action, target=target, source=actor.source)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.wall_s(), UTC)
