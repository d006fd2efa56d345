"""The first owner: by a password from the settings, or by a one-time token that whoever started the server reads."""

from collections.abc import Callable
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.state import bump_version
from appliance.domain.access.keys import SETUP_TOKEN_PREFIX, new_key
from appliance.domain.access.principal import Role
from appliance.domain.access.secret_files import read_or_make_secret
from appliance.domain.access.snapshot import AccessSnapshot
from appliance.domain.admins.decisions import check_password
from appliance.domain.admins.passwords import Passwords
from appliance.domain.admins.service import create_admin, has_owner
from appliance.domain.audit.service import Actor
from appliance.errors import Invalid
from appliance.settings import Settings, SettingsError, data_path

FIRST_OWNER = "admin"
SETUP_TOKEN_FILE = "setup-token"


async def ensure_owner(session: AsyncSession, settings: Settings, passwords: Passwords) -> str | None:
    """While there is no owner: make the one that the settings give a password for, or give back the setup token, which lies in a file.
    None where there is one.

    Raises `SettingsError` for a weak password.
    """
    if settings.bootstrap_admin_password and not await has_owner(session):
        try:
            spelled = check_password(settings.bootstrap_admin_password, FIRST_OWNER)
        except Invalid as error:
            raise SettingsError(f"bootstrap_admin_password=(hidden): {error.message}; set FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD") from error
        await bump_version(session)
        if not await has_owner(session):  # another process was first while we waited for the lock
            await create_admin(session, FIRST_OWNER, Role.OWNER, await passwords.hash(spelled), Actor("bootstrap", "settings"))
    if await has_owner(session):
        return None
    return read_or_make_secret(setup_token_path(settings), lambda: new_key(SETUP_TOKEN_PREFIX))


def setup_token_path(settings: Settings) -> Path:
    return data_path(settings) / SETUP_TOKEN_FILE


def forget_once_owned(path: Path) -> Callable[[AccessSnapshot], None]:
    """For `Directory.subscribe`: the setup token's file goes as soon as there is an owner, whoever made it."""

    def look(snapshot: AccessSnapshot) -> None:
        if snapshot.has_owner:
            path.unlink(missing_ok=True)

    return look
