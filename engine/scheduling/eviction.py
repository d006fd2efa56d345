"""Which cached page goes first when a page is needed. Policies are pure: a page is ranked once, when its last reference ends.

Within a tenant the page with the lowest rank goes first, and between tenants the one whose first page has the lowest precedence;
among equals the page that was released first. A sequence's pages are released last page first, so a chain loses its tail before
its head: a head without its tail is still a useful prefix, a tail without its head can not be found.
"""

import math
from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

type PolicyName = Literal["lru", "lfu", "size", "weighted-lru", "decayed-lfu"]


class Use(msgspec.Struct, frozen=True, gc=False):
    """What is known of a page whose last reference just ended."""

    tick: int
    """Releases of any page so far."""
    uses: int
    """How often it was wanted since it was computed: 1 + times it was found in the prefix cache."""
    new_uses: int
    """Of these, those since it was ranked before."""
    earlier: float
    """That rank; minus infinity where it has none."""
    floor: float
    """Highest rank of any page evicted so far."""
    weight: float
    """Of its tenant."""
    half_life: float
    """In ticks: as many releases as the pool has pages."""


class EvictionPolicy(Protocol):
    """Orders the pages that nobody references and the prefix cache still knows."""

    def rank(self, use: Use) -> float:
        """Of one page; the lowest of a tenant goes first."""
        ...

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        """Of the tenant whose first page has this rank, with so many cached pages; the lowest goes first."""
        ...


class LeastRecentlyUsed:
    """The page whose last reference ended longest ago, whosever it is."""

    def rank(self, use: Use) -> float:
        return use.tick

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        return rank


class LeastFrequentlyUsed:
    """The page that was wanted least often since it was computed."""

    def rank(self, use: Use) -> float:
        return use.uses

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        return rank


class LargestByWeight:
    """The tenant with the most cached pages for its weight gives up its oldest one."""

    def rank(self, use: Use) -> float:
        return use.tick

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        return -cached_pages / weight


class WeightedLeastRecentlyUsed:
    """Landlord, or GreedyDual (Young, "On-line file caching", 1998): a page starts with its tenant's weight above the rank evicted
    last. So each is kept through turns of the others in proportion to its weight, and with equal weights it is LRU."""

    def rank(self, use: Use) -> float:
        return max(0.0, use.floor) + use.weight

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        return rank


class DecayedFrequencyBySize:
    """The lowest use count, each use counting half after a half-life, times weight over the tenant's cached pages: LFU without its
    memory of what was popular long ago, and GreedyDual-Size-Frequency's division by size (Cherkasova, 1998).

    All counts decay alike, so their order does not change with time: a rank is the logarithm of the sum of 2^(tick / half-life).
    """

    def rank(self, use: Use) -> float:
        newest = math.log2(use.new_uses) + use.tick / use.half_life
        high, low = max(newest, use.earlier), min(newest, use.earlier)
        return high + math.log2(1.0 + 2.0 ** (low - high))

    def precedence(self, rank: float, cached_pages: int, weight: float) -> float:
        return rank + math.log2(weight / max(1, cached_pages))


POLICIES: Mapping[str, EvictionPolicy] = {
    "lru": LeastRecentlyUsed(),
    "lfu": LeastFrequentlyUsed(),
    "size": LargestByWeight(),
    "weighted-lru": WeightedLeastRecentlyUsed(),
    "decayed-lfu": DecayedFrequencyBySize(),
}
"""By the names of the setting `eviction_policy`."""
