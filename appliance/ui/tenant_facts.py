"""How much of the KV memory a tenant uses, and how far its objectives are met. Pure."""

from collections.abc import Iterable

from appliance.domain.admission.limit_use import LimitUse
from appliance.telemetry.slo import SloView
from engine.wire import TenantPolicy


def kv_use(policy: TenantPolicy, used_pages: int, num_pages: int) -> LimitUse:
    """Of the pages of all KV pools, what it uses of the most it may."""
    reserved = int(policy.kv_reserve_ratio * num_pages)
    return LimitUse(
        "kv_cap", f"KV pages ({reserved} reserved)" if reserved else "KV pages", used_pages, int(policy.kv_cap_ratio * num_pages)
    )


def worst_by_tenant(views: Iterable[SloView]) -> dict[str, SloView]:
    """Of each tenant the objective with the least budget left."""
    worst: dict[str, SloView] = {}
    for view in views:
        if view.tenant not in worst or view.budget_left < worst[view.tenant].budget_left:
            worst[view.tenant] = view
    return worst
