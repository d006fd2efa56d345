"""What keys somebody may make or change: none that could do more than who asks for it, or outlast it. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime

from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import ADMIN_KEY_SCOPES, Admin
from appliance.errors import Forbidden


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
        ends = datetime.fromtimestamp(caller.expires_at_s, UTC).isoformat()
        message = f"a token can make no key with {_listed(powers)} that outlasts it: set expires_at to {ends} or earlier"
        raise Forbidden(message, code="outlasts_its_maker", param="expires_at")


def _listed(powers: Iterable[Scope]) -> str:
    return " or ".join(f"scope {scope.value!r}" for scope in sorted(powers))
