"""The pool of KV pages. A page is free, referenced (used), or cached: known to the prefix cache, referenced by nobody."""

from collections import deque

from engine.scheduling.eviction import EvictionPolicy
from engine.scheduling.prefix_cache import PrefixCache


class PagePool:
    """Counts references. free + used + cached == total, always."""

    def __init__(self, num_pages: int, cache: PrefixCache, eviction: EvictionPolicy) -> None:
        self.num_pages = num_pages
        self.num_used = 0
        self.num_evicted = 0
        """Since the start."""
        self._cache = cache
        self._free = deque(range(num_pages))
        self._references = [0] * num_pages
        self._evictable = eviction

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._evictable)

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._evictable)

    def references(self, page: int) -> int:
        return self._references[page]

    def take(self) -> int:
        """A page with one reference: a free one, else the one that the eviction policy gives up.

        Raises:
            IndexError: `num_available` is 0.
        """
        if not self._free and len(self._evictable):
            evicted = self._evictable.pop()
            self._cache.forget(evicted)
            self._free.append(evicted)
            self.num_evicted += 1
        page = self._free.popleft()
        self._references[page] = 1
        self.num_used += 1
        return page

    def retain(self, page: int) -> None:
        """One more reference to a used or cached page."""
        if self._references[page] == 0:
            self._evictable.remove(page)
            self.num_used += 1
        self._references[page] += 1

    def release(self, page: int) -> None:
        """One reference less; the last one makes the page cached if the prefix cache knows it, else free."""
        assert self._references[page] > 0, f"page {page} released more often than retained"
        self._references[page] -= 1
        if self._references[page]:
            return
        self.num_used -= 1
        if page in self._cache:
            self._evictable.add(page)
        else:
            self._free.append(page)

    def check(self) -> None:
        """Constant-time part of the invariant, for every idle moment."""
        total = self.num_free + self.num_used + self.num_cached
        assert total == self.num_pages, (
            f"free {self.num_free} + used {self.num_used} + cached {self.num_cached} pages is not {self.num_pages}"
        )

    def check_every_page(self) -> None:
        """The whole invariant: each page is in exactly the state that its references and the cache imply."""
        self.check()
        free = frozenset(self._free)
        assert len(free) == len(self._free), "a page is free twice"
        for page, references in enumerate(self._references):
            cached = page in self._evictable
            assert (page in free) + cached + (references > 0) == 1, f"page {page}: free, used and cached must exclude each other"
            assert not cached or page in self._cache, f"cached page {page} can not be found"
            assert page not in free or page not in self._cache, f"free page {page} can still be found"
