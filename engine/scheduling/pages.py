"""The pool of KV pages. A page is free, referenced (used), or cached: known to the prefix cache, referenced by nobody."""

from collections import Counter, deque
from collections.abc import Iterable

from engine.scheduling.cached_pages import VICTIMS, CachedPages, Victim
from engine.scheduling.eviction import EvictionPolicy
from engine.scheduling.holdings import Holding, Holdings, quotas_of
from engine.scheduling.prefix_cache import PrefixCache
from engine.wire import Eviction, TenantPolicy

LOW_WATER_PART, HIGH_WATER_PART = 32, 16
"""Where fewer than one page of 32 is free, cached ones are evicted until one of 16 is: between steps, before somebody waits for it."""
EVICTIONS_A_STEP = 32
"""Most of them at once: some 3 microseconds each."""


class PagePool:
    """Counts references. free + used + cached == total, always. Each page that is not free belongs to one tenant's holding."""

    def __init__(self, num_pages: int, cache: PrefixCache, eviction: EvictionPolicy) -> None:
        self.num_pages = num_pages
        self.num_used = 0
        self.num_evicted: dict[Victim, int] = dict.fromkeys(VICTIMS, 0)
        """Since the start."""
        self.holdings = Holdings(num_pages)
        self._cache = cache
        self._free = deque(range(num_pages))
        self._references = [0] * num_pages
        self._owners: list[Holding | None] = [None] * num_pages
        self._takers: deque[str] = deque(maxlen=EVICTIONS_A_STEP)
        """Tenants that took the newest pages: what `refill` evicts is put down to them."""
        self._evictions: Counter[tuple[str, str]] = Counter()
        """Pages by owner and taker, since they were asked for."""
        self._cached = CachedPages(num_pages, self.holdings, eviction)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self.holdings.cached

    def available_to(self, tenant_id: str) -> int:
        """Pages that `take` can give this tenant: not what is set aside for others."""
        others = self.holdings.set_aside_for_others(self.holdings.of(tenant_id))
        return max(0, len(self._free) + self.holdings.cached - others)

    @property
    def num_spare(self) -> int:
        """Free pages that can be taken before `refill` evicts any."""
        return max(0, len(self._free) - self.num_pages // LOW_WATER_PART)

    def references(self, page: int) -> int:
        return self._references[page]

    def set_policies(self, policies: Iterable[TenantPolicy], most_reserved: int) -> None:
        """Reserves and caps of all tenants, replacing the earlier ones."""
        self.holdings.set_quotas(quotas_of(policies, self.num_pages, most_reserved))

    def take(self, tenant_id: str) -> int:
        """A page with one reference: a free one, else the one that the eviction policy gives up.

        Raises:
            IndexError: `available_to` the tenant is 0.
        """
        holding = self.holdings.of(tenant_id)
        if len(self._free) + self.holdings.cached <= self.holdings.set_aside_for_others(holding):
            raise IndexError(f"no page is available to tenant {tenant_id}")
        if not self._free:
            self._evict_one(holding)
        self._takers.append(tenant_id)
        page = self._free.popleft()
        self._references[page] = 1
        self._owners[page] = holding
        self._cached.note_computed(page)
        self.holdings.use(holding, 1)
        self.num_used += 1
        return page

    def retain(self, page: int, tenant_id: str) -> None:
        """One more reference to a used or cached page. A cached one is the tenant's from now on."""
        if self._references[page] == 0:
            self._cached.remove(page, self._owner(page))
            holding = self._owners[page] = self.holdings.of(tenant_id)
            self.holdings.use(holding, 1)
            self.num_used += 1
        self._references[page] += 1
        self._cached.note_found(page)

    def release(self, page: int) -> None:
        """One reference less; the last one makes the page cached if the prefix cache knows it, else free."""
        assert self._references[page] > 0, f"page {page} released more often than retained"
        self._references[page] -= 1
        if self._references[page]:
            return
        owner = self._owner(page)
        self.num_used -= 1
        self.holdings.use(owner, -1)
        if page in self._cache:
            self._cached.add(page, owner)
        else:
            self._free_up(page)

    def refill(self) -> None:
        """Between steps: evict ahead of need, what no reserve protects, so that a step rarely evicts."""
        if len(self._free) >= self.num_pages // LOW_WATER_PART:
            return
        for _ in range(min(EVICTIONS_A_STEP, self.num_pages // HIGH_WATER_PART - len(self._free))):
            if not self._evict_one(None):
                return

    def take_evictions(self) -> tuple[Eviction, ...]:
        """Whose pages went, and for whom, since this was asked before."""
        found = tuple(Eviction(owner, taker, pages) for (owner, taker), pages in self._evictions.items())
        self._evictions.clear()
        return found

    def check(self) -> None:
        """Constant-time part of the invariant, for every idle moment."""
        total = self.num_free + self.num_used + self.num_cached
        assert total == self.num_pages, (
            f"free {self.num_free} + used {self.num_used} + cached {self.num_cached} pages is not {self.num_pages}"
        )

    def check_every_page(self) -> None:
        """The whole invariant: each page is in exactly the state that its references and the cache imply, and counted where it belongs."""
        self.check()
        free = frozenset(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        held: dict[str, list[int]] = {}
        for page, references in enumerate(self._references):
            cached = page in self._cached
            assert (page in free) + cached + (references > 0) == 1, f"page {page}: free, used and cached must exclude each other"
            assert not cached or page in self._cache, f"cached page {page} can not be found"
            assert page not in free or page not in self._cache, f"free page {page} can still be found"
            owner = self._owners[page]
            assert (page in free) == (owner is None), f"page {page} is free and somebody's, or nobody's and not free"
            if owner is not None:
                counts = held.setdefault(owner.tenant_id, [0, 0])
                counts[cached] += 1
        for holding in self.holdings.all():
            assert [holding.used, holding.cached] == held.get(holding.tenant_id, [0, 0]), f"{holding.tenant_id}'s pages are miscounted"
        assert self.holdings.set_aside == sum(holding.set_aside for holding in self.holdings.all()), "reserves are miscounted"

    def _evict_one(self, taker: Holding | None) -> bool:
        evicted = self._cached.pop(taker)
        if evicted is None:
            return False
        page, owner, victim = evicted
        self._cache.forget(page)
        self._free_up(page)
        self.num_evicted[victim] += 1
        taker_id = taker.tenant_id if taker is not None else self._takers.popleft() if self._takers else ""
        self._evictions[owner.tenant_id, taker_id] += 1
        return True

    def _free_up(self, page: int) -> None:
        self._owners[page] = None
        self._free.append(page)

    def _owner(self, page: int) -> Holding:
        owner = self._owners[page]
        assert owner is not None, f"page {page} is nobody's"
        return owner
