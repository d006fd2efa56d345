"""Who may do what, as an immutable value: the inference path reads this and never waits for the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest

from appliance.domain.access.keys import MAX_KEY_CHARS, digest_key, masked
from appliance.domain.access.principal import NO_LIMITS, Limits, Principal, Scope
from appliance.errors import Forbidden, Unauthenticated
from engine.wire import TenantPolicy


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A stored key as the snapshot holds it. Times are seconds of the wall clock; None is "never"."""

    key_id: str
    tenant_id: str
    scopes: frozenset[Scope]
    models: frozenset[str] = frozenset()
    lanes: frozenset[str] = frozenset()
    expires_at_s: float | None = None
    grace_until_s: float | None = None
    """Set by a rotation: the old key works until then."""
    disabled: bool = False
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Admin:
    """An authenticated caller of /api/v1. `actor` names it in logs: `bootstrap-admin`, or `key:` and the key's id."""

    actor: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class AccessSnapshot:
    """All keys and policies at one version of the database. Times passed in are seconds of the wall clock."""

    version: int
    pepper: bytes
    keys: Mapping[bytes, KeyRecord]
    """By digest."""
    policies: Mapping[str, TenantPolicy]
    """Effective policy by tenant slug; deleted tenants are absent."""
    suspended: frozenset[str] = frozenset()
    admin_digest: bytes | None = None
    """Of the bootstrap admin token."""

    def authenticate(self, raw_key: str | None, tenant_header: str | None, now_s: float, needs: Scope = Scope.INFERENCE) -> Principal:
        """The caller behind a key. Raises `Unauthenticated` (no valid key) or `Forbidden` (scope, tenant)."""
        key = self._valid_key(raw_key, now_s)
        if needs not in key.scopes and not (needs is Scope.INFERENCE and Scope.GATEWAY in key.scopes):
            raise Forbidden(f"this key lacks the scope {needs.value!r}; it has {_listed(key.scopes)}", code="missing_scope")
        tenant_id = self._tenant(key, tenant_header)
        return Principal(tenant_id, key.key_id, key.scopes, self.policies[tenant_id], key.models, key.lanes, key.limits)

    def authenticate_admin(self, raw_key: str | None, now_s: float, needs: Scope) -> Admin:
        """The caller of an admin route: the bootstrap token, or a key with the scope. Raises as `authenticate`.

        `admin:write` includes `admin:read`.
        """
        if self._is_admin_token(raw_key):
            return Admin("bootstrap-admin", frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE}))
        key = self._valid_key(raw_key, now_s)
        if needs not in key.scopes and not (needs is Scope.ADMIN_READ and Scope.ADMIN_WRITE in key.scopes):
            raise Forbidden(f"this key lacks the scope {needs.value!r}; it has {_listed(key.scopes)}", code="missing_scope")
        return Admin(f"key:{key.key_id}", key.scopes)

    def _is_admin_token(self, raw_key: str | None) -> bool:
        if not raw_key or not self.admin_digest or len(raw_key) > MAX_KEY_CHARS:
            return False
        return compare_digest(digest_key(raw_key, self.pepper), self.admin_digest)

    def _valid_key(self, raw_key: str | None, now_s: float) -> KeyRecord:
        if not raw_key:
            raise Unauthenticated("no API key: send the header `Authorization: Bearer KEY`", code="missing_api_key")
        key = self.keys.get(digest_key(raw_key, self.pepper)) if len(raw_key) <= MAX_KEY_CHARS else None
        if key is None:
            raise Unauthenticated(f"incorrect API key: {masked(raw_key)}")
        if key.disabled:
            raise Unauthenticated(f"API key {masked(raw_key)} has been revoked", code="revoked_api_key")
        ends_s = min((end for end in (key.expires_at_s, key.grace_until_s) if end is not None), default=None)
        if ends_s is not None and now_s >= ends_s:
            raise Unauthenticated(f"API key {masked(raw_key)} has expired", code="expired_api_key")
        if key.tenant_id not in self.policies:
            raise Unauthenticated(f"API key {masked(raw_key)} belongs to a tenant that was removed", code="revoked_api_key")
        return key

    def _tenant(self, key: KeyRecord, tenant_header: str | None) -> str:
        """The tenant a request runs as: the key's own, or with scope `gateway` the one the header names."""
        tenant_id = tenant_header or key.tenant_id
        if tenant_id != key.tenant_id and Scope.GATEWAY not in key.scopes:
            message = "X-Tenant-ID differs from the key's tenant; only a key with the scope 'gateway' may speak for others"
            raise Forbidden(message, code="tenant_mismatch", param="X-Tenant-ID")
        if tenant_id not in self.policies:
            raise Forbidden(f"X-Tenant-ID names no tenant: {tenant_id[:64]!r}", code="unknown_tenant", param="X-Tenant-ID")
        if tenant_id in self.suspended:
            raise Forbidden(f"tenant {tenant_id!r} is suspended", code="tenant_suspended")
        return tenant_id


def _listed(scopes: frozenset[Scope]) -> str:
    return ", ".join(sorted(scopes)) or "none"
