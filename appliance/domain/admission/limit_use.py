"""How near a tenant is to its ceilings. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.domain.admission.service import TenantUse
from engine.wire import TenantPolicy


@dataclass(frozen=True, slots=True)
class LimitUse:
    """One ceiling and what is used of it. `field` is the tier's, `name` what it counts."""

    field: str
    name: str
    used: float
    limit: int

    @property
    def ratio(self) -> float:
        return self.used / self.limit if self.limit else 1.0


def limit_uses(policy: TenantPolicy, use: TenantUse) -> list[LimitUse]:
    """Every ceiling that the tenant has."""
    standing = use.standing
    found = (
        ("max_concurrency", "in flight", use.in_flight, policy.max_concurrency),
        ("max_queued", "waiting", use.waiting, policy.max_queued),
        ("rpm", "requests a minute", standing.requests, policy.rpm),
        ("tpm", "tokens a minute", standing.tokens, policy.tpm),
        ("tokens_per_day", "tokens today", standing.today, policy.tokens_per_day),
        ("tokens_per_month", "tokens this month", standing.this_month, policy.tokens_per_month),
    )
    return [LimitUse(field, name, used, limit) for field, name, used, limit in found if limit is not None]


def tightest(uses: Iterable[LimitUse]) -> LimitUse | None:
    """The ceiling that is reached first; None without any."""
    return max(uses, key=lambda use: use.ratio, default=None)
