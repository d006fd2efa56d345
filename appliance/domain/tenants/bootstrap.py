"""Opening the control plane: schema, secrets, what a first start puts into the database, the first snapshot."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.backup import is_sqlite, sqlite_path
from appliance.db.base import Base, utc_now
from appliance.db.database import Database
from appliance.db.revision import SchemaError, SchemaState, migrate, read_schema, refuse_unless_current
from appliance.db.state import bump_version, read_capacity_tpm, read_text, write_text
from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import ADMIN_TOKEN_PREFIX, digest_key, last4, new_key, visible_prefix
from appliance.domain.access.models import ApiKey
from appliance.domain.access.secret_files import read_or_make_secret, read_secret
from appliance.domain.access.service import KeySpec
from appliance.domain.admins.first_owner import ensure_owner, forget_once_owned, setup_token_path
from appliance.domain.admins.guard import Gatekeeper
from appliance.domain.admins.login import LoginService
from appliance.domain.admins.passwords import Passwords
from appliance.domain.admins.recall import SessionRecall
from appliance.domain.admins.sessions import SessionRules
from appliance.domain.admins.throttle import LoginThrottle
from appliance.domain.audit.service import Actor, record
from appliance.domain.models import MODELS
from appliance.domain.slas.decisions import SEED_TIERS, UNLIMITED
from appliance.domain.tenants.key_service import create_tenant_key, key_facts, key_target
from appliance.domain.tenants.models import Tenant
from appliance.domain.tenants.pepper import BOOTSTRAP_KEY_ID, settle_pepper
from appliance.domain.tenants.service import DEFAULT_TENANT, DatabaseSource, create_tenant, find_tenant
from appliance.domain.tenants.tier_service import create_tier
from appliance.errors import NotFound, Unavailable
from appliance.settings import Settings, SettingsError, data_path, sqlalchemy_url, tenant_shares

log = structlog.get_logger(__name__)

API_KEY_FILE = "bootstrap-key"
ADMIN_TOKEN_FILE = "bootstrap-admin-token"
SEEDED = "seeded"
FIRST_START = Actor("bootstrap", "first start")
"""As the audit names who made what a database begins with."""
BY_SETTINGS = Actor("bootstrap", "settings")
NO_DATABASE = (
    "`fairlane serve` or `fairlane migrate` makes one; where a server has another data directory or database, name it with --data-dir or "
    "--database-url (FAIRLANE_DATA_DIR, FAIRLANE_DATABASE_URL)"
)

assert all(model.metadata is Base.metadata for model in MODELS)


@dataclass(frozen=True, slots=True)
class Store:
    """A database with our schema and seeds, and the pepper its keys are digested with. The CLI works on this."""

    database: Database
    pepper: bytes


@dataclass(frozen=True, slots=True)
class Control:
    """What the server runs on. `close()` at shutdown, after the task of `directory.follow()` is cancelled."""

    store: Store
    directory: Directory
    gatekeeper: Gatekeeper
    logins: LoginService
    api_key: str | None
    """The bootstrap key as text, for the first request shown at start; None where it was revoked or is unknown here."""
    api_key_path: Path | None
    """File the bootstrap key is stored in; None where the settings gave it."""
    admin_token_path: Path | None
    """File the admin token is stored in; None where the settings gave it."""

    async def close(self) -> None:
        await self.store.database.close()


def make_data_dir(settings: Settings) -> Path:
    """The data directory, made where it is missing. Raises `SettingsError` when it can not be written."""
    folder = data_path(settings)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # digests, hashes and the audit are nobody else's to read
    except OSError as error:
        message = f"data_dir={settings.data_dir!r} can not be made ({error.strerror}): name another folder with FAIRLANE_DATA_DIR"
        raise SettingsError(message) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        reason = "its disk is read-only" if is_read_only else "it belongs to another user"
        raise SettingsError(f"data_dir={settings.data_dir!r} can not be written ({reason}): name another folder with FAIRLANE_DATA_DIR")
    return folder


def require_database(settings: Settings) -> None:
    """Raises `SchemaError` where there is no file of a SQLite database: opening it would make one."""
    url = sqlalchemy_url(settings)
    if is_sqlite(url) and not sqlite_path(url).exists():
        raise SchemaError(f"there is no database {sqlite_path(url)}: {NO_DATABASE}")


@contextmanager
def names_its_file(url: str) -> Iterator[None]:
    """A SQLite database that is `Unavailable` is named: whoever starts a process may know, other than whoever asks a server."""
    try:
        yield
    except Unavailable as error:
        if not is_sqlite(url):
            raise
        message = f"{sqlite_path(url)}: {error.message}"
        raise Unavailable(message, reason=error.reason, retry_after_s=error.retry_after_s) from error


async def open_existing(settings: Settings) -> Database:
    """A database with our schema, to look at; makes nothing. Raises `SchemaError` or `Unavailable`."""
    require_database(settings)
    url = sqlalchemy_url(settings)
    database = Database(url)
    try:
        with names_its_file(url):
            schema = await read_schema(database, Base.metadata)
        if schema.state is SchemaState.EMPTY:
            raise SchemaError(f"the database is empty: {NO_DATABASE}")
        refuse_unless_current(schema)
    except BaseException:
        await database.close()
        raise
    return database


async def open_store(settings: Settings) -> Store:
    """Open the database; an empty one is migrated and seeded.

    Raises:
        SchemaError: the database is behind, newer or half-migrated.
        SettingsError: the data directory can not be written, or the pepper is not the one of the stored keys.
        Unavailable: the database does not answer.
    """
    make_data_dir(settings)
    url = sqlalchemy_url(settings)
    database = Database(url)
    try:
        with names_its_file(url):
            schema = await read_schema(database, Base.metadata)
            if schema.state is SchemaState.EMPTY:
                await migrate(url)
            else:
                refuse_unless_current(schema)
            async with database.write() as session:
                await seed(session)
                pepper = await settle_pepper(session, settings)
    except BaseException:
        await database.close()
        raise
    return Store(database, pepper)


async def open_control(settings: Settings) -> Control:
    """`open_store`, then the bootstrap key, admin token and first owner, then the first snapshot. Raises the same."""
    store = await open_store(settings)
    try:
        folder = data_path(settings)
        async with store.database.write() as session:
            api_key = await _bootstrap_key(session, settings.bootstrap_api_key, folder / API_KEY_FILE, store.pepper)
        if settings.bootstrap_api_key:
            _forget(folder / API_KEY_FILE)
        token_path = None if settings.bootstrap_admin_token else folder / ADMIN_TOKEN_FILE
        token = settings.bootstrap_admin_token or read_or_make_secret(folder / ADMIN_TOKEN_FILE, lambda: new_key(ADMIN_TOKEN_PREFIX))
        passwords = Passwords()
        async with store.database.write() as session:
            setup_token = await ensure_owner(session, settings, passwords)
        metrics_digest = digest_key(settings.metrics_key, store.pepper) if settings.metrics_key else None
        source = DatabaseSource(store.database, store.pepper, digest_key(token, store.pepper), metrics_digest, tenant_shares(settings))
        async with store.database.read() as session:
            capacity_tpm = await read_capacity_tpm(session)
        directory = Directory(source, await source.load(), capacity_tpm=capacity_tpm)
        directory.subscribe(forget_once_owned(setup_token_path(settings)))
        rules = SessionRules(settings.session_ttl_s, settings.session_idle_s)
        gatekeeper = Gatekeeper(directory, store.database, store.pepper, rules, SessionRecall(), time.time)
        logins = LoginService(
            store.database, store.pepper, rules, passwords, LoginThrottle(), setup_token, monotonic_s=time.monotonic, wall_s=time.time
        )
    except BaseException:
        await store.database.close()
        raise
    key_path = None if settings.bootstrap_api_key or not api_key else folder / API_KEY_FILE
    return Control(store, directory, gatekeeper, logins, api_key, key_path, token_path)


def _forget(path: Path) -> None:
    """Remove the file of a key that the settings replaced: it is refused now."""
    path.unlink(missing_ok=True)


async def seed(session: AsyncSession) -> None:
    """Tiers and tenant `default`, once in the life of a database: what an operator removes stays removed."""
    if await read_text(session, SEEDED) is not None:
        return
    await bump_version(session)
    if await read_text(session, SEEDED) is not None:  # another process was first while we waited for the lock
        return
    for name, sla in SEED_TIERS.items():
        await create_tier(session, name, msgspec.to_builtins(sla), FIRST_START)
    await create_tenant(session, slug=DEFAULT_TENANT, name="Default", tier="standard", overrides=UNLIMITED, actor=FIRST_START)
    await write_text(session, SEEDED, "1")


async def _owner_of_first_key(session: AsyncSession) -> Tenant | None:
    """None where it was removed: its keys are refused."""
    try:
        return (await find_tenant(session, DEFAULT_TENANT)).tenant
    except NotFound:
        return None


def _has_ended(row: ApiKey) -> bool:
    """It was rotated or given an end, and that has come."""
    return any(end is not None and end <= utc_now() for end in (row.expires_at, row.grace_until))


async def _bootstrap_key(session: AsyncSession, wanted: str, path: Path, pepper: bytes) -> str | None:
    """Make the bootstrap key at the first start; later, let a changed setting replace it. Its text, where it is valid."""
    key_id = await read_text(session, BOOTSTRAP_KEY_ID)
    if key_id is None:
        await bump_version(session)
        key_id = await read_text(session, BOOTSTRAP_KEY_ID)
    row = await session.get(ApiKey, key_id) if key_id else None
    owner = await _owner_of_first_key(session)
    if owner is None:
        if wanted:
            log.warning(
                "bootstrap_key_refused", reason=f"tenant {DEFAULT_TENANT!r}, which owns it, was removed: make keys of other tenants"
            )
        return None
    if key_id is None:
        raw = wanted or read_or_make_secret(path, new_key)
        row, raw = await create_tenant_key(session, owner.slug, KeySpec("bootstrap"), pepper, FIRST_START, raw)
        await write_text(session, BOOTSTRAP_KEY_ID, row.id)
        return raw
    raw = wanted or read_secret(path)
    if row is None or raw is None or row.disabled_at is not None or _has_ended(row):
        return None
    digest = digest_key(raw, pepper)
    if row.digest == digest:
        return raw
    if not wanted:
        return None
    await bump_version(session)
    before = key_facts(row)
    row.digest, row.prefix, row.last4 = digest, visible_prefix(raw), last4(raw)
    record(session, BY_SETTINGS, "key.replace", key_target(owner.slug, row), before, key_facts(row) | {"value": "(changed)"})
    log.info("bootstrap_key_replaced", key_id=row.id, reason="FAIRLANE_BOOTSTRAP_API_KEY differs from the stored key")
    return raw
