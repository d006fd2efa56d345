"""The pages that nobody references and the prefix cache still knows, in the order in which they go. O(log n) an act."""

from heapq import heapify, heappop, heappush
from typing import Literal

from engine.scheduling.eviction import EvictionPolicy, Use
from engine.scheduling.holdings import STALE_ENTRIES, Holding, Holdings

type Victim = Literal["over_cap", "over_reserve", "own"]
"""Why a page was the tenant's to lose: it held more than its cap, more than its reserve, or needed the page itself."""

VICTIMS: tuple[Victim, ...] = ("over_cap", "over_reserve", "own")
NOT_CACHED = 0
UNRANKED = float("-inf")

type Entry = tuple[bool, float, int, int, Holding]
"""Within its cap, precedence, order of release, version (each is used once), whose."""


class CachedPages:
    """Never gives another tenant's page where that tenant holds no more than its reserve."""

    def __init__(self, num_pages: int, holdings: Holdings, policy: EvictionPolicy) -> None:
        self._holdings = holdings
        self._policy = policy
        self._half_life = float(max(1, num_pages))
        self._orders = [NOT_CACHED] * num_pages
        self._ranks = [UNRANKED] * num_pages
        self._uses = [1] * num_pages
        self._uses_ranked = [0] * num_pages
        self._num_released = 0
        self._floor = UNRANKED
        self._num_versions = 0
        self._tenants: list[Entry] = []
        """A heap of tenants with a page to give up."""

    def __contains__(self, page: int) -> bool:
        return self._orders[page] != NOT_CACHED

    def note_computed(self, page: int) -> None:
        """The page is taken for new tokens: whatever it held before was wanted by nobody."""
        self._uses[page], self._uses_ranked[page], self._ranks[page] = 1, 0, UNRANKED

    def note_found(self, page: int) -> None:
        """Somebody wants what it holds."""
        self._uses[page] += 1

    def add(self, page: int, holding: Holding) -> None:
        """Its last reference is gone."""
        self._num_released += 1
        use = Use(
            tick=self._num_released,
            uses=self._uses[page],
            new_uses=max(1, self._uses[page] - self._uses_ranked[page]),
            earlier=self._ranks[page],
            floor=self._floor,
            weight=holding.quota.weight,
            half_life=self._half_life,
        )
        rank = self._policy.rank(use)
        self._ranks[page], self._uses_ranked[page], self._orders[page] = rank, self._uses[page], self._num_released
        self._holdings.cached += 1
        holding.push((rank, self._num_released, page), self._orders)
        self._holdings.changed[holding.tenant_id] = holding

    def remove(self, page: int, holding: Holding) -> None:
        """It is referenced again."""
        self._orders[page] = NOT_CACHED
        self._holdings.uncache(holding)

    def pop(self, taker: Holding | None) -> tuple[int, Holding, Victim] | None:
        """Take out the page to evict for `taker`, or for nobody in particular; None where no page may go."""
        self._refresh()
        while self._tenants:
            within_cap, _, _, version, holding = heappop(self._tenants)
            if version == holding.version:
                return self._pop_first(holding), holding, "over_reserve" if within_cap else "over_cap"
        return (self._pop_first(taker), taker, "own") if taker is not None and taker.cached else None

    def _pop_first(self, holding: Holding) -> int:
        first = holding.first(self._orders)
        assert first is not None, f"{holding.tenant_id} has {holding.cached} cached pages, and none is ranked"
        rank, _, page = first
        self._floor = max(self._floor, rank)
        self.remove(page, holding)
        return page

    def _refresh(self) -> None:
        """Give each tenant that changed its new place."""
        changed = self._holdings.changed
        for holding in changed.values():
            self._num_versions += 1
            holding.version = self._num_versions
            if holding.cached and holding.evictable_by_others:
                first = holding.first(self._orders)
                if first is not None:
                    heappush(self._tenants, self._entry(holding, first[0], first[1]))
        changed.clear()
        if len(self._tenants) > 2 * len(self._holdings) + STALE_ENTRIES:
            self._tenants = [entry for entry in self._tenants if entry[4].version == entry[3]]
            heapify(self._tenants)

    def _entry(self, holding: Holding, rank: float, order: int) -> Entry:
        precedence = self._policy.precedence(rank, holding.cached, holding.quota.weight)
        return not holding.is_over_cap, precedence, order, holding.version, holding
