"""What keys somebody may make or change: none that could do more than who asks for it, or outlast it. Pure."""

from collections.abc import Iterable
from datetime import datetime

from appliance.db.base import utc_of
from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import ADMIN_KEY_SCOPES, Admin
from appliance.errors import Forbidden


def grantor_of(actor_id: str, scopes: Iterable[Scope | str]) -> str | None:
    """Whom a key needs for its scopes of administration from now on, where it has any: the administrator, or the token, that gives them.

    None for the command line and the bootstrap token: whoever has those can do all.
    """
    return (actor_id or None) if ADMIN_KEY_SCOPES & {Scope(scope) for scope in scopes} else None


def check_key_grant(caller: Admin, key_id: str | None, scopes: Iterable[Scope | str], expires_at: datetime | None) -> None:
    """`key_id`: of the key that is changed or replaced, None for a new one; `scopes`: all that it has or is to have.

    Raises:
        Forbidden: a key would change itself, or one with a scope of administration would be made by a key, by somebody without that
            scope, or for longer than the token that makes it.
    """
    if key_id is not None and caller.actor == f"key:{key_id}":
        raise Forbidden("a key can not change or replace itself: an administrator's token can", code="own_key")
    powers = ADMIN_KEY_SCOPES & {Scope(scope) for scope in scopes}
    if not powers:
        return
    if caller.actor.startswith("key:"):
        message = f"a key can make no key with {_listed(powers)}, and change none: an administrator's token can"
        raise Forbidden(message, code="missing_scope", param="scopes")
    for scope in sorted(powers):
        caller.require(scope)
    if caller.expires_at_s is not None and (expires_at is None or expires_at.timestamp() > caller.expires_at_s):
        ends = utc_of(caller.expires_at_s).isoformat()
        message = f"a token can make no key with {_listed(powers)} that outlasts it: set expires_at to {ends} or earlier"
        raise Forbidden(message, code="outlasts_its_maker", param="expires_at")


def _listed(powers: Iterable[Scope]) -> str:
    return " or ".join(f"scope {scope.value!r}" for scope in sorted(powers))
