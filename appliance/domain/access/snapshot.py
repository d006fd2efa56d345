"""Who may do what, as an immutable value: the inference path reads this and never waits for the database."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from appliance.domain.access.keys import MAX_KEY_CHARS, digest_key, masked
from appliance.domain.access.principal import NO_LIMITS, Limits, Principal, Role, Scope, known_scopes
from appliance.errors import Forbidden, NotFound, Unauthenticated
from engine.wire import TenantPolicy

ADMIN_KEY_SCOPES = frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE})
_ADMIN = "no credential: send the header `Authorization: Bearer TOKEN` with an administrator's token"
MISSING = {
    Scope.INFERENCE: "no API key: send the header `Authorization: Bearer KEY`",
    Scope.GATEWAY: "no API key: send the header `Authorization: Bearer KEY` with a key of scope 'gateway'",
    Scope.METRICS: "no key: send the header `Authorization: Bearer KEY` with the setting metrics_key, or a tenant's key of scope 'metrics'",
    Scope.ADMIN_READ: f"{_ADMIN}, or a tenant's key of scope 'admin:read', or log in (POST /api/v1/login) and send its cookie",
    Scope.ADMIN_WRITE: f"{_ADMIN}, or a tenant's key of scope 'admin:write', or log in (POST /api/v1/login) and send its cookie",
    Scope.ADMIN_MANAGE: f"{_ADMIN} (no tenant's key will do), or log in (POST /api/v1/login) and send its cookie",
}
"""What a caller without a credential is told, by what the route needs."""


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
    lineage_id: str | None = None
    """The first key of its row of rotations; None: it is that one itself."""
    granted_by: str | None = None
    """Who gave it its scopes of administration, as in `AccessSnapshot.grantors`; None: nobody whose end would be its end."""


@dataclass(frozen=True, slots=True)
class AdminTokenRecord:
    """A stored token of an administrator; its scopes are those that both the token's and the administrator's role have."""

    token_id: str
    admin_id: str
    admin_name: str
    scopes: frozenset[Scope]
    expires_at_s: float | None = None
    disabled: bool = False
    """The token was revoked, or its administrator is disabled."""


@dataclass(frozen=True, slots=True)
class Admin:
    """An authenticated caller of /api/v1. `actor` names it in the audit: `bootstrap-admin`, `key:` and the key's id, or `admin:` and
    the administrator's name; `actor_id` is the administrator's id, with that of the token where it was one."""

    actor: str
    scopes: frozenset[Scope]
    actor_id: str = ""
    admin_id: str = ""
    """Empty for the bootstrap token and for keys: they are nobody's."""
    expires_at_s: float | None = None
    """When its token ends."""

    def require(self, needs: Scope) -> None:
        """Raises `Forbidden` unless it has the scope; `admin:write` includes `admin:read`."""
        if needs not in self.scopes and not (needs is Scope.ADMIN_READ and Scope.ADMIN_WRITE in self.scopes):
            raise Forbidden(
                f"{self.actor} lacks the scope {needs.value!r}; of administration it has {_listed(self.scopes)}", code="missing_scope"
            )


def scopes_left(scopes: Collection[str], granted_by: str | None, grantors: Mapping[str, frozenset[Scope]]) -> frozenset[Scope]:
    """A key's scopes of administration that who granted them still has; all of them where nobody's end would be theirs."""
    granted = ADMIN_KEY_SCOPES & known_scopes(scopes)
    return granted if granted_by is None else granted & grantors.get(granted_by, frozenset())


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
    admin_tokens: Mapping[bytes, AdminTokenRecord] = field(default_factory=dict[bytes, AdminTokenRecord])
    """By digest."""
    metrics_digest: bytes | None = None
    """Of the settings' key for /metrics."""
    grantors: Mapping[str, frozenset[Scope]] = field(default_factory=dict[str, frozenset[Scope]])
    """What administrators (by id) and their tokens (`ADMIN/TOKEN`) may do now; disabled, revoked and removed ones are absent."""
    admin_versions: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of enabled administrators, by id: each change of one makes it higher."""

    @property
    def has_owner(self) -> bool:
        """Whether somebody manages administrators: the last owner can not be disabled."""
        return any(Scope.ADMIN_MANAGE in scopes for scopes in self.grantors.values())

    def authenticate(self, raw_key: str | None, tenant_header: str | None, now_s: float, needs: Scope = Scope.INFERENCE) -> Principal:
        """The caller behind a key. Raises `Unauthenticated` (no valid key) or `Forbidden` (scope, tenant)."""
        key = self._valid_key(raw_key, now_s, needs)
        if needs not in key.scopes and not (needs is Scope.INFERENCE and Scope.GATEWAY in key.scopes):
            raise _refused(key, f"this key lacks the scope {needs.value!r}; it has {_listed(key.scopes)}", "missing_scope")
        tenant_id = self._tenant(key, tenant_header)
        policy = self.policies[tenant_id]
        return Principal(tenant_id, key.key_id, key.scopes, policy, key.models, key.lanes, key.limits, key.lineage_id)

    def require_tenant(self, tenant_id: str, param: str | None = None) -> None:
        """Raises `NotFound` where there is no such tenant; `param` named it."""
        if tenant_id not in self.policies:
            raise no_tenant(tenant_id, param)

    def require_metrics(self, raw_key: str | None, now_s: float) -> None:
        """The settings' key for metrics passes, or a tenant's key of that scope. Raises as `authenticate`."""
        if not self._is_secret(raw_key, self.metrics_digest):
            self.authenticate(raw_key, None, now_s, Scope.METRICS)

    def stand_in(self, tenant_id: str, key_id: str) -> Principal:
        """Somebody who tries a tenant's limits without one of its keys; `key_id` names it in the books.

        Raises `NotFound`, or `Forbidden` where it is suspended.
        """
        self.require_tenant(tenant_id)
        if tenant_id in self.suspended:
            raise Forbidden(f"tenant {tenant_id[:64]!r} is suspended: set it active first", code="tenant_suspended")
        return Principal(tenant_id, key_id, frozenset({Scope.INFERENCE}), self.policies[tenant_id], frozenset(), frozenset())

    def authenticate_admin(self, raw_key: str | None, now_s: float, needs: Scope) -> Admin:
        """The caller of an admin route: the bootstrap token, which is an owner's, an administrator's token, or a key with the scope.

        Raises as `authenticate`.
        """
        admin = self._admin_of_token(raw_key, now_s)
        if admin is None:
            key = self._valid_key(raw_key, now_s, needs)
            self._require_active(key, key.tenant_id)
            admin = Admin(f"key:{key.key_id}", self._granted(key), key.key_id)
        admin.require(needs)
        return admin

    def _granted(self, key: KeyRecord) -> frozenset[Scope]:
        """A key's scopes of administration: those that who granted them still has. Raises `Forbidden` where none of them is left."""
        left = scopes_left(key.scopes, key.granted_by, self.grantors)
        if key.scopes & ADMIN_KEY_SCOPES and not left:
            message = "whoever gave this key its scopes of administration has them no more: an administrator can make a new key"
            raise _refused(key, message, "grantor_gone")
        return left

    def lost_scopes(self, scopes: Collection[str], granted_by: str | None) -> frozenset[Scope]:
        """Those of a key that ended with who granted them."""
        return scopes_left(scopes, None, self.grantors) - scopes_left(scopes, granted_by, self.grantors)

    def _admin_of_token(self, raw_token: str | None, now_s: float) -> Admin | None:
        """None where the token is neither the bootstrap one nor an administrator's."""
        if self._is_secret(raw_token, self.admin_digest):
            return Admin("bootstrap-admin", Role.OWNER.scopes)
        if not raw_token or len(raw_token) > MAX_KEY_CHARS:
            return None
        token = self.admin_tokens.get(digest_key(raw_token, self.pepper))
        if token is None:
            return None
        if token.disabled:
            raise Unauthenticated(f"admin token {masked(raw_token)} has been revoked", code="revoked_admin_token")
        if token.expires_at_s is not None and now_s >= token.expires_at_s:
            raise Unauthenticated(f"admin token {masked(raw_token)} has expired", code="expired_admin_token")
        actor_id = f"{token.admin_id}/{token.token_id}"
        return Admin(f"admin:{token.admin_name}", token.scopes, actor_id, token.admin_id, token.expires_at_s)

    def _is_secret(self, raw_key: str | None, digest: bytes | None) -> bool:
        """Whether it is the one of the settings with this digest."""
        if not raw_key or not digest or len(raw_key) > MAX_KEY_CHARS:
            return False
        return compare_digest(digest_key(raw_key, self.pepper), digest)

    def _valid_key(self, raw_key: str | None, now_s: float, needs: Scope) -> KeyRecord:
        if not raw_key:
            raise Unauthenticated(MISSING[needs], code="missing_api_key")
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
        """The tenant a request runs as: the key's own, or with scope `gateway` the one the header names. An empty header names none:
        the gateway that sends it means somebody, and it is not the gateway."""
        tenant_id = key.tenant_id if tenant_header is None else tenant_header
        if tenant_id != key.tenant_id and Scope.GATEWAY not in key.scopes:
            message = "X-Tenant-ID differs from the key's tenant; only a key with the scope 'gateway' may speak for others"
            raise _refused(key, message, "tenant_mismatch", param="X-Tenant-ID")
        if tenant_id not in self.policies:
            message = f"X-Tenant-ID names no tenant: {tenant_id[:64]!r}; send the slug of one as it is written"
            raise _refused(key, message, "unknown_tenant", param="X-Tenant-ID")
        for concerned in (key.tenant_id, tenant_id):
            self._require_active(key, concerned)
        return tenant_id

    def _require_active(self, key: KeyRecord, tenant_id: str) -> None:
        """Raises `Forbidden` while a tenant that a key belongs to, or speaks for, is suspended."""
        if tenant_id in self.suspended:
            raise _refused(key, f"tenant {tenant_id!r} is suspended, and its keys with it", "tenant_suspended")


def no_tenant(tenant_id: str, param: str | None = None, *, ever: bool = False) -> NotFound:
    """What to tell who names a tenant that is not there, or (`ever`) never was."""
    never = ", nor was there one" if ever else ""
    message = f"there is no tenant {tenant_id[:64]!r}{never}: `GET /api/v1/tenants` and `fairlane tenant list` show those there are"
    return NotFound(message, code="tenant_not_found", param=param)


def _refused(key: KeyRecord, message: str, code: str, param: str | None = None) -> Forbidden:
    """A valid key that may not do this."""
    return Forbidden(message, code=code, param=param, tenant_id=key.tenant_id, key_id=key.key_id)


def _listed(scopes: frozenset[Scope]) -> str:
    return ", ".join(sorted(scopes)) or "none"
