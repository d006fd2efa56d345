"""The pepper that keys are digested with: found or made, compared with the one of the stored keys, and begun anew once it is lost."""

from pathlib import Path

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.state import InstallationState, bump_version, read_text, write_text
from appliance.domain.access.keys import digest_key, new_key
from appliance.domain.access.models import ApiKey
from appliance.domain.access.secret_files import read_or_make_secret, read_secret
from appliance.domain.admins.models import AdminSession, AdminToken
from appliance.domain.audit.service import Actor, record
from appliance.settings import Settings, SettingsError, data_path

PEPPER_FILE = "key-pepper"
PEPPER_CHECK = "pepper_check"
BOOTSTRAP_KEY_ID = "bootstrap_key_id"


def pepper_path(settings: Settings) -> Path:
    """Where the pepper lies that the settings do not give."""
    return data_path(settings) / PEPPER_FILE


async def pepper_fault(session: AsyncSession, settings: Settings) -> str | None:
    """Why the keys in the database can not be checked here, and what to do; None where they can, or where none was ever made."""
    stored = await read_text(session, PEPPER_CHECK)
    given = settings.key_pepper or read_secret(pepper_path(settings))
    if stored is None or (given is not None and stored == _fingerprint(given)):
        return None
    path = pepper_path(settings)
    whose = "FAIRLANE_KEY_PEPPER" if settings.key_pepper else f"the one in {path}"
    there = f"{whose} is another one" if given else f"there is none in {path}, nor in FAIRLANE_KEY_PEPPER"
    return (
        f"the keys in this database were made with a pepper that is not here: {there}. Put the `{PEPPER_FILE}` that was kept with the "
        "backup there, or set FAIRLANE_KEY_PEPPER to the value that other processes on this database use; where it is lost, "
        "`fairlane key new-pepper` revokes all keys and begins anew"
    )


async def settle_pepper(session: AsyncSession, settings: Settings) -> bytes:
    """The pepper of the stored keys; where the database has none yet, one is found or made and its fingerprint remembered.

    Raises `SettingsError` where the stored keys were made with another one: each of them would silently be wrong.
    """
    if fault := await pepper_fault(session, settings):
        raise SettingsError(fault)
    pepper = settings.key_pepper or read_or_make_secret(pepper_path(settings), lambda: new_key(""))
    if await read_text(session, PEPPER_CHECK) is None:
        await write_text(session, PEPPER_CHECK, _fingerprint(pepper))
    return pepper.encode()


async def forget_pepper(session: AsyncSession, actor: Actor) -> tuple[int, int]:
    """Revoke all that the lost pepper digested, so that another one may begin; how many keys and administrators' tokens that ended."""
    await bump_version(session)
    ended: list[int] = []
    for table in (ApiKey, AdminToken):
        alive = table.disabled_at.is_(None)
        ended.append((await session.scalars(select(func.count()).select_from(table).where(alive))).one())
    now = utc_now()
    await session.execute(update(ApiKey).where(ApiKey.disabled_at.is_(None)).values(disabled_at=now, version=ApiKey.version + 1))
    await session.execute(update(AdminToken).where(AdminToken.disabled_at.is_(None)).values(disabled_at=now))
    await session.execute(delete(AdminSession))
    await session.execute(delete(InstallationState).where(InstallationState.name.in_((PEPPER_CHECK, BOOTSTRAP_KEY_ID))))
    keys, tokens = ended
    record(session, actor, "pepper.forget", "installation", None, {"keys_revoked": keys, "tokens_revoked": tokens})
    return keys, tokens


def _fingerprint(pepper: str) -> str:
    """What the database remembers of it."""
    return digest_key("pepper-check", pepper.encode()).hex()
