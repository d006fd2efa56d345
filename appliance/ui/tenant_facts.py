"""How near a tenant is to its limits, and how far its objectives are met. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.domain.admission.service import TenantUse
from appliance.telemetry.slo import SloView
from engine.wire import TenantPolicy


@dataclass(frozen=True, slots=True)
class LimitUse:
    """One ceiling and what is used of it."""

    name: str
    used: float
    limit: int

    @property
    def ratio(self) -> float:
        return self.used / self.limit if self.limit else 1.0


def limit_uses(policy: TenantPolicy, use: TenantUse) -> list[LimitUse]:
    """Every ceiling that the tenant has."""
    standing = use.standing
    pairs = (
        ("in flight", use.in_flight, policy.max_concurrency),
        ("waiting", use.waiting, policy.max_queued),
        ("requests a minute", standing.requests, policy.rpm),
        ("tokens a minute", standing.tokens, policy.tpm),
        ("tokens today", standing.today, policy.tokens_per_day),
        ("tokens this month", standing.this_month, policy.tokens_per_month),
    )
    return [LimitUse(name, used, limit) for name, used, limit in pairs if limit is not None]


def kv_use(policy: TenantPolicy, used_pages: int, num_pages: int) -> LimitUse:
    """Of the pages of all KV pools, what it uses of the most it may."""
    reserved = int(policy.kv_reserve_ratio * num_pages)
    return LimitUse(f"KV pages ({reserved} reserved)" if reserved else "KV pages", used_pages, int(policy.kv_cap_ratio * num_pages))


def tightest(uses: Iterable[LimitUse]) -> LimitUse | None:
    """The ceiling that is reached first; None without any."""
    return max(uses, key=lambda use: use.ratio, default=None)


def worst_by_tenant(views: Iterable[SloView]) -> dict[str, SloView]:
    """Of each tenant the objective with the least budget left."""
    worst: dict[str, SloView] = {}
    for view in views:
        if view.tenant not in worst or view.budget_left < worst[view.tenant].budget_left:
            worst[view.tenant] = view
    return worst
