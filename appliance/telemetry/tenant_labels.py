"""Which tenants have series of their own: at most so many, the busiest; the others share the label `other`.

A tenant costs some 200 series. With 10,000 of them a scrape would be two million lines, and Prometheus would fall over first.
"""

from collections.abc import Iterable

OTHER = "other"
SWAP_RATIO = 2.0
"""A tenant without a label takes the place of one that has, when it was so much busier: labels do not flap."""
KEEP_RATIO = 0.5
"""What of its activity a tenant keeps at each `rebalance`."""


class TenantLabels:
    """Labels by tenant. Which tenants exist comes from the directory, how busy they are from their requests."""

    def __init__(self, limit: int) -> None:
        """`limit`: most tenants with a label of their own."""
        self._limit = limit
        self._known: frozenset[str] = frozenset()
        self._own: dict[str, None] = {}
        self._activity: dict[str, float] = {}

    @property
    def own(self) -> tuple[str, ...]:
        """Tenants with a label of their own."""
        return tuple(self._own)

    @property
    def has_others(self) -> bool:
        """Whether some tenant has none."""
        return len(self._known) > len(self._own)

    def of(self, tenant_id: str) -> str:
        """The label of a tenant, known or not."""
        return tenant_id if tenant_id in self._own else OTHER

    def note(self, tenant_id: str, tokens: float) -> None:
        """It was served so much."""
        self._activity[tenant_id] = self._activity.get(tenant_id, 0.0) + tokens

    def sync(self, tenant_ids: Iterable[str]) -> tuple[str, ...]:
        """All tenants there are now, in the order that gives labels while there is room. Those that lost theirs."""
        tenants = dict.fromkeys(tenant_ids)
        self._known = frozenset(tenants)
        lost = tuple(tenant for tenant in self._own if tenant not in tenants)
        for tenant in lost:
            del self._own[tenant]
        self._activity = {tenant: activity for tenant, activity in self._activity.items() if tenant in tenants}
        for tenant in tenants:
            if len(self._own) >= self._limit:
                break
            self._own[tenant] = None
        return lost

    def rebalance(self) -> tuple[str, ...]:
        """Give labels to those that became much busier than some that have one; those that lost theirs. Call it now and then."""
        outside = sorted((t for t in self._activity if t in self._known and t not in self._own), key=self._busy, reverse=True)
        inside = sorted(self._own, key=self._busy)
        lost = [old for new, old in zip(outside, inside, strict=False) if self._busy(new) > SWAP_RATIO * self._busy(old)]
        for new, old in zip(outside, lost, strict=False):
            del self._own[old]
            self._own[new] = None
        self._activity = {tenant: kept for tenant, activity in self._activity.items() if (kept := activity * KEEP_RATIO) >= 1}
        return tuple(lost)

    def _busy(self, tenant: str) -> float:
        return self._activity.get(tenant, 0.0)
