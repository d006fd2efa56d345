"""May a request enter? Pure: what is known goes in, a named answer comes out."""

from dataclasses import dataclass

from engine.wire import TenantPolicy

RETRY_AFTER_S = 1.0
"""A place in flight, or in the queue, comes free about once a request."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Requests in the house: of the asking tenant, and of all tenants those that wait for their first step."""

    tenant_in_flight: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Admit:
    """It may enter."""


@dataclass(frozen=True, slots=True)
class Reject:
    """It may not. `reason` is the metric's label; `own_limit` tells the tenant's ceiling from our shortage."""

    reason: str
    message: str
    retry_after_s: float
    own_limit: bool


def decide(policy: TenantPolicy, occupancy: Occupancy, max_queue_depth: int) -> Admit | Reject:
    """The tenant's own ceiling first, then the room there is."""
    if policy.max_concurrency is not None and occupancy.tenant_in_flight >= policy.max_concurrency:
        return Reject(
            "concurrency",
            f"tenant {policy.tenant_id!r} has {occupancy.tenant_in_flight} requests in flight; its tier allows {policy.max_concurrency}",
            RETRY_AFTER_S,
            own_limit=True,
        )
    if occupancy.waiting >= max_queue_depth:
        return Reject(
            "queue_full",
            f"{occupancy.waiting} requests are waiting, the limit is {max_queue_depth}: try again shortly",
            RETRY_AFTER_S,
            own_limit=False,
        )
    return Admit()
