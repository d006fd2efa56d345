"""How many KV pages each tenant holds, and what it may: its reserve, its cap, its cached pages in the order they go."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from engine.wire import TenantPolicy

type Ranked = tuple[float, int, int]
"""Rank, order of release, page."""

STALE_ENTRIES = 64
"""Entries of pages that are not cached any more may be so many before a heap is built anew, beside as many as are valid."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one tenant, in pages of the pool."""

    reserve_pages: int
    cap_pages: int
    weight: float


@dataclass(slots=True, eq=False)
class Holding:
    """One tenant's pages. A page counts for whoever first referenced it, until nobody does; a cached page for whom it did last."""

    tenant_id: str
    quota: Quota
    used: int = 0
    """Referenced by sequences."""
    cached: int = 0
    sequences: int = 0
    """Those that run."""
    promised: int = 0
    """Pages that these are expected to take still."""
    ranked: list[Ranked] = field(default_factory=list)
    """A heap of its cached pages; entries whose order is not the page's own are stale."""
    version: int = 0
    """Of its entry among the tenants that have something to give up."""

    @property
    def set_aside(self) -> int:
        """Pages that are its own although no sequence of it uses them."""
        reserve_pages = self.quota.reserve_pages
        return max(0, reserve_pages - self.used) if reserve_pages else 0

    @property
    def spoken_for(self) -> int:
        """Free or cached pages that are as good as its own: promises are drawn from its reserve first."""
        return max(self.set_aside, self.promised)

    @property
    def evictable_by_others(self) -> int:
        """Cached pages above its reserve."""
        return max(0, self.cached - self.set_aside)

    @property
    def is_above_reserve(self) -> bool:
        """A sequence of it may lose pages to another tenant."""
        return self.used > self.quota.reserve_pages

    @property
    def is_over_cap(self) -> bool:
        """Cached pages included: those go first."""
        return self.used + self.cached > self.quota.cap_pages

    @property
    def room_under_cap(self) -> int:
        """Pages that its sequences may still take."""
        return max(0, self.quota.cap_pages - self.used)

    def push(self, entry: Ranked, orders: list[int]) -> None:
        """One more cached page; `orders` holds for each page the order of its valid entry."""
        self.cached += 1
        heappush(self.ranked, entry)
        if len(self.ranked) > 2 * self.cached + STALE_ENTRIES:
            self.ranked = [entry for entry in self.ranked if orders[entry[2]] == entry[1]]
            heapify(self.ranked)

    def first(self, orders: list[int]) -> Ranked | None:
        """The cached page that goes first."""
        ranked = self.ranked
        while ranked:
            first = ranked[0]
            if orders[first[2]] == first[1]:
                return first
            heappop(ranked)
        return None


def quotas_of(policies: Iterable[TenantPolicy], num_pages: int, most_reserved: int) -> dict[str, Quota]:
    """Ratios as pages, rounded down. Reserves that exceed `most_reserved` together are cut in proportion: what is set aside for
    tenants that are away may not keep the longest sequence from running."""
    policies = tuple(policies)
    wanted = sum(int(policy.kv_reserve_ratio * num_pages) for policy in policies)
    cut = 1.0 if wanted <= max(0, most_reserved) else max(0, most_reserved) / wanted
    return {
        policy.tenant_id: Quota(int(int(policy.kv_reserve_ratio * num_pages) * cut), int(policy.kv_cap_ratio * num_pages), policy.weight)
        for policy in policies
    }


class Holdings:
    """All tenants. Counts by differences: no question costs more for more tenants."""

    def __init__(self, num_pages: int) -> None:
        self._unlimited = Quota(0, num_pages, 1.0)
        self._quotas: Mapping[str, Quota] = {}
        self._by_tenant: dict[str, Holding] = {}
        self.set_aside = 0
        """Sum over all tenants."""
        self.spoken_for = 0
        """Sum over all tenants."""
        self.cached = 0
        self.changed: dict[str, Holding] = {}
        """Tenants whose place in the order of eviction may be another now."""

    def of(self, tenant_id: str) -> Holding:
        """A tenant's holding; without reserve and cap where no quota is known."""
        holding = self._by_tenant.get(tenant_id)
        if holding is None:
            holding = self._by_tenant[tenant_id] = Holding(tenant_id, self._quotas.get(tenant_id, self._unlimited))
        return holding

    def __len__(self) -> int:
        return len(self._by_tenant)

    def all(self) -> Iterable[Holding]:
        """Tenants that hold something, or may."""
        return self._by_tenant.values()

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Replace all; a tenant that holds nothing and is not among them is forgotten."""
        self._quotas = quotas
        for name, holding in tuple(self._by_tenant.items()):
            if name not in quotas and not (holding.used or holding.cached or holding.sequences):
                del self._by_tenant[name]
                self.changed.pop(name, None)
        for name in quotas:
            self.of(name)
        for name, holding in self._by_tenant.items():
            holding.quota = quotas.get(name, self._unlimited)
            self.changed[name] = holding
        self.set_aside = sum(holding.set_aside for holding in self._by_tenant.values())
        self.spoken_for = sum(holding.spoken_for for holding in self._by_tenant.values())

    def use(self, holding: Holding, pages: int) -> None:
        """So many more pages of it are referenced, or fewer where negative."""
        self.changed[holding.tenant_id] = holding
        if not holding.quota.reserve_pages:  # nothing is set aside, and only promises are spoken for
            holding.used += pages
            return
        set_aside, spoken_for = holding.set_aside, holding.spoken_for
        holding.used += pages
        self.set_aside += holding.set_aside - set_aside
        self.spoken_for += holding.spoken_for - spoken_for

    def promise(self, holding: Holding, pages: int) -> None:
        """Its running sequences are expected to take so many more pages, or fewer where negative."""
        if not pages:
            return
        spoken_for = holding.spoken_for
        holding.promised += pages
        self.spoken_for += holding.spoken_for - spoken_for

    def uncache(self, holding: Holding) -> None:
        """One cached page less."""
        holding.cached -= 1
        self.cached -= 1
        self.changed[holding.tenant_id] = holding

    def set_aside_for_others(self, holding: Holding) -> int:
        """Free or cached pages that this tenant can not have."""
        return self.set_aside - holding.set_aside if self.set_aside else 0
