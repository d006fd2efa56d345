"""Who is asking: what a key turns into."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from engine.wire import TenantPolicy


class Scope(StrEnum):
    """What a key may do."""

    INFERENCE = "inference"
    GATEWAY = "gateway"
    """Speak for any tenant by `X-Tenant-ID`."""
    METRICS = "metrics"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"
    ADMIN_MANAGE = "admin:manage"
    """Manage the administrators themselves. Owners have it; no key can."""


KEY_SCOPES = (Scope.INFERENCE, Scope.GATEWAY, Scope.METRICS, Scope.ADMIN_READ, Scope.ADMIN_WRITE)
"""What may be asked for a tenant's key."""


def known_scopes(stored: Collection[str]) -> frozenset[Scope]:
    """A stored key's scopes. What is none (of a newer version, or damaged) allows nothing."""
    return frozenset(scope for scope in Scope if scope in stored)


class Role(StrEnum):
    """What an administrator is."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"

    @property
    def scopes(self) -> frozenset[Scope]:
        return ROLE_SCOPES[self]


ROLE_SCOPES: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.ADMIN_READ}),
    Role.OPERATOR: frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE}),
    Role.OWNER: frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE, Scope.ADMIN_MANAGE}),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of rate and budget; None is "no limit". Tokens count prompt plus output; days and months are UTC's."""

    rpm: int | None = None
    tpm: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller of an inference route. `policy` is the tenant's effective SLA at this moment."""

    tenant_id: str
    """The slug, which is also the label in metrics."""
    key_id: str
    scopes: frozenset[Scope]
    policy: TenantPolicy
    models: frozenset[str]
    """Models the key may use; empty means all."""
    lanes: frozenset[str]
    """Lanes the key may ask for; empty means the tenant's."""
    limits: Limits = NO_LIMITS
    """The key's own, beneath the tenant's."""
    lineage_id: str | None = None
    """The first key of its row of rotations; None: it is that one itself."""
    ratio: float = 1.0
    """The part of each ceiling that falls to this process, where several share it; `policy` and `limits` hold that part."""
    whole: "Principal | None" = None
    """The same caller under the whole limits; None where nothing is divided."""
    even_ratio: float = 1.0
    """What falls to each where demand is even."""

    @property
    def has_rates(self) -> bool:
        """Whether requests or tokens a minute are limited."""
        policy, own = self.policy, self.limits
        return not (policy.rpm is policy.tpm is own.rpm is own.tpm is None)

    @property
    def meter_id(self) -> str:
        """Under which the key's own limits are counted: a rotated key goes on where the one before it stands."""
        return self.lineage_id or self.key_id

    @property
    def cache_salt(self) -> str:
        """Prefix-cache namespace: the trust group's where there is one, else the tenant's own."""
        return f"group:{self.policy.trust_group}" if self.policy.trust_group else f"tenant:{self.tenant_id}"
