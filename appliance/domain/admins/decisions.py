"""What an administrator may be called, what a password must be, and that an owner is always left. Pure."""

import re
import unicodedata
from collections.abc import Iterable
from datetime import datetime

from appliance.domain.access.principal import Role, Scope
from appliance.errors import Conflict, Forbidden, Invalid
from appliance.settings import MAX_PASSWORD_CHARS, MIN_PASSWORD_CHARS

ADMIN_NAME = re.compile(r"[a-z0-9][a-z0-9_.@-]{0,62}")


def check_admin_name(name: str) -> str:
    """A name as it stands. Raises `Invalid`: the alphabet is small, so that no two names look alike and logs stay lines."""
    if not ADMIN_NAME.fullmatch(name):
        allowed = "1 to 63 of a-z, 0-9, -, _, . and @, beginning with a letter or digit"
        raise Invalid(f"name is {name[:80]!r}: use {allowed}", code="invalid_name", param="name")
    return name


def check_password(password: str, name: str) -> str:
    """A password in the form it is hashed in (Unicode's NFKC: one text, however a keyboard composes it). Raises `Invalid`.

    Length is what makes a password strong; rules on kinds of characters are not made (NIST SP 800-63B, section 5.1.1.2).
    """
    if not MIN_PASSWORD_CHARS <= len(password) <= MAX_PASSWORD_CHARS:
        raise Invalid(f"password must have {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters", code="weak_password", param="password")
    spelled = normal_password(password)
    if name in spelled.lower() and len(spelled) - len(name) < MIN_PASSWORD_CHARS:
        raise Invalid("password must not be the name with a little around it", code="weak_password", param="password")
    if len(set(spelled)) < 5:
        raise Invalid("password repeats a few characters: use a longer phrase", code="weak_password", param="password")
    return spelled


def normal_password(password: str) -> str:
    """As it is hashed."""
    return unicodedata.normalize("NFKC", password)


def role_of(role: str) -> Role:
    """A role by its name. Raises `Invalid`, listing the roles."""
    try:
        return Role(role)
    except ValueError as error:
        raise Invalid(f"there is no role {role[:64]!r}; the roles are {', '.join(Role)}", param="role") from error


def check_owner_left(owners: Iterable[str], changed: str) -> None:
    """Raises `Conflict` where the enabled owners (ids) are none but the one that a change would take away."""
    if set(owners) <= {changed}:
        message = "this is the last owner: make another one first, or nobody could manage administrators any more"
        raise Conflict(message, code="last_owner")


def check_token_grant(
    scopes: frozenset[Scope], ends: datetime | None, role: Role, expires_at: datetime | None, admin_role: Role | None = None
) -> None:
    """Who asks for a token has `scopes`, by a credential that `ends` (None: never). Raises `Forbidden` where the token could do or
    outlast more than its maker or its administrator."""
    if not role.scopes <= scopes or (admin_role is not None and not role.scopes <= admin_role.scopes):
        raise Forbidden(f"a token of role {role.value!r} could do more than who it is for or who makes it", code="role_too_high")
    if ends is not None and (expires_at is None or expires_at > ends):
        raise Forbidden(f"a token can not make one that outlasts it: set expires_at to {ends.isoformat()} or earlier", param="expires_at")
