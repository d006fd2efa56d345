"""Which cached page goes first, by each policy; and what a policy may not touch."""

import pytest

from engine.scheduling.eviction import POLICIES
from engine.scheduling.holdings import quotas_of
from engine.scheduling.pages import PagePool
from engine.scheduling.prefix_cache import PrefixCache
from engine.wire import Eviction, TenantPolicy


def make_pool(policy: str, num_pages: int = 8, *, most_reserved: int = 8, **weights_or_reserves: tuple[float, float]) -> PagePool:
    """Tenants by name: weight and reserve ratio."""
    pool = PagePool(num_pages, PrefixCache(4, "v"), POLICIES[policy])
    policies = [TenantPolicy(tenant_id=name, weight=w, kv_reserve_ratio=r) for name, (w, r) in weights_or_reserves.items()]
    pool.set_policies(policies, most_reserved)
    return pool


def cache_page(pool: PagePool, tenant: str) -> int:
    """A page of the tenant that is cached, and referenced by nobody."""
    page = pool.take(tenant)
    pool._cache.insert(page.to_bytes(4), page)
    pool.release(page)
    return page


def use_again(pool: PagePool, page: int, tenant: str) -> None:
    pool.retain(page, tenant)
    pool.release(page)


def evicted(pool: PagePool, count: int) -> list[int]:
    """Takes pages for a tenant without quota until `count` cached ones have gone; which."""
    cached = [page for page in range(pool.num_pages) if page in pool._cached]
    gone: list[int] = []
    while len(gone) < count:
        pool.take("taker")
        gone += [page for page in cached if page not in pool._cached and page not in gone]
    pool.check_every_page()
    return gone


def test_lru_evicts_what_was_unused_for_longest_whosever_it_is() -> None:
    pool = make_pool("lru", a=(9.0, 0.0), b=(1.0, 0.0))
    first, second, third = cache_page(pool, "a"), cache_page(pool, "b"), cache_page(pool, "a")
    use_again(pool, first, "a")
    assert evicted(pool, 3) == [second, third, first]


def test_lfu_evicts_what_was_wanted_least_often() -> None:
    pool = make_pool("lfu", a=(1.0, 0.0))
    often, seldom, once = (cache_page(pool, "a") for _ in range(3))
    for page, uses in ((often, 3), (seldom, 1)):
        for _ in range(uses):
            use_again(pool, page, "a")
    assert evicted(pool, 3) == [once, seldom, often]


def test_size_evicts_from_whoever_caches_most_for_its_weight() -> None:
    pool = make_pool("size", a=(4.0, 0.0), b=(1.0, 0.0))
    of_a = [cache_page(pool, "a") for _ in range(4)]
    of_b = [cache_page(pool, "b") for _ in range(2)]
    assert evicted(pool, 3) == [of_b[0], of_a[0], of_b[1]]  # 4 / 4 against 2 / 1, then a tie, and the older page goes


def test_weighted_lru_keeps_a_page_of_twice_the_weight_through_twice_the_turns() -> None:
    survived = []
    for weight in (1.0, 2.0, 4.0):
        pool = make_pool("weighted-lru", num_pages=3, a=(weight, 0.0), b=(1.0, 0.0))
        cache_page(pool, "a")
        count = 0
        while pool.holdings.of("a").cached and count < 100:
            cache_page(pool, "b")
            count += 1
        survived.append(count)
    assert survived == [3, 5, 9]  # two pages of b fit beside it; each turn of both is worth a weight of 1


def test_decayed_lfu_forgets_what_was_popular_long_ago() -> None:
    for policy, goes_first in (("lfu", "new"), ("decayed-lfu", "old")):
        pool = make_pool(policy, num_pages=8, a=(1.0, 0.0))
        pages = {"old": cache_page(pool, "a")}
        for _ in range(6):
            use_again(pool, pages["old"], "a")
        busy = cache_page(pool, "a")
        for _ in range(40):  # five half-lives of a pool of 8 pages
            use_again(pool, busy, "a")
        pages["new"] = cache_page(pool, "a")
        use_again(pool, pages["new"], "a")
        assert pages[goes_first] == evicted(pool, 1)[0], policy


def test_decayed_lfu_divides_by_how_much_its_tenant_caches_for_its_weight() -> None:
    pool = make_pool("decayed-lfu", a=(1.0, 0.0), b=(1.0, 0.0))
    of_b = cache_page(pool, "b")
    of_a = [cache_page(pool, "a") for _ in range(4)]
    assert evicted(pool, 3) == of_a[:3] and of_b in pool._cached


@pytest.mark.parametrize("policy", POLICIES)
def test_a_reserve_keeps_its_cached_pages_from_everybody_else_and_not_from_its_tenant(policy: str) -> None:
    pool = make_pool(policy, a=(1.0, 0.5), b=(1.0, 0.0))
    own = [cache_page(pool, "a") for _ in range(6)]
    assert pool.available_to("b") == 4
    for _ in range(4):
        pool.take("b")
    with pytest.raises(IndexError, match="no page is available to tenant b"):
        pool.take("b")
    assert sum(page in pool._cached for page in own) == 4
    assert pool.num_evicted == {"over_cap": 0, "over_reserve": 2, "own": 0}
    assert pool.available_to("a") == 4
    pool.take("a")
    assert pool.num_evicted["own"] == 1
    assert pool.take_evictions() == (Eviction("a", "b", 2), Eviction("a", "a", 1)) and pool.take_evictions() == ()
    pool.check_every_page()


def test_a_reserve_that_nobody_uses_is_not_given_away() -> None:
    pool = make_pool("lru", a=(1.0, 0.5), b=(1.0, 0.0))
    for _ in range(4):
        pool.take("b")
    assert (pool.num_free, pool.available_to("b"), pool.available_to("a")) == (4, 0, 4)


def test_pages_beyond_a_cap_go_before_all_others() -> None:
    pool = PagePool(8, PrefixCache(4, "v"), POLICIES["lru"])
    pool.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b", kv_cap_ratio=0.25)], 8)
    of_a = [cache_page(pool, "a") for _ in range(3)]
    of_b = [cache_page(pool, "b") for _ in range(3)]
    assert evicted(pool, 2) == [of_b[0], of_a[0]]
    assert pool.num_evicted == {"over_cap": 1, "over_reserve": 1, "own": 0}


def test_reserves_that_leave_too_little_are_cut_in_proportion() -> None:
    policies = [TenantPolicy(tenant_id=name, kv_reserve_ratio=ratio) for name, ratio in (("a", 0.6), ("b", 0.3))]
    assert [quota.reserve_pages for quota in quotas_of(policies, 100, 90).values()] == [60, 30]
    assert [quota.reserve_pages for quota in quotas_of(policies, 100, 45).values()] == [30, 15]
    assert [quota.reserve_pages for quota in quotas_of(policies, 100, -5).values()] == [0, 0]


def test_below_the_low_water_mark_pages_are_evicted_up_to_the_high_one_and_no_reserve_is_touched() -> None:
    pool = make_pool("weighted-lru", num_pages=320, most_reserved=320, a=(1.0, 0.5), b=(1.0, 0.0))
    for tenant, count in (("a", 155), ("b", 156)):
        for page in [pool.take(tenant) for _ in range(count)]:
            pool._cache.insert(page.to_bytes(4), page)
            pool.release(page)
    assert pool.num_free == 9  # of 320: fewer than one of 32
    pool.refill()
    assert (pool.num_free, pool.holdings.of("a").cached, pool.holdings.of("b").cached) == (20, 155, 145)
    assert pool.take_evictions() == (Eviction("b", "b", 11),), "who had taken the pages that were replaced"
    pool.refill()
    assert pool.num_free == 20


@pytest.mark.parametrize("policy", POLICIES)
def test_stale_entries_do_not_pile_up(policy: str) -> None:
    pool = make_pool(policy, num_pages=64, a=(1.0, 0.0))
    pages = [cache_page(pool, "a") for _ in range(8)]
    for _ in range(200):
        for page in pages:
            use_again(pool, page, "a")
    assert len(pool.holdings.of("a").ranked) < 100 and len(pool._cached._tenants) < 100
    pool.check_every_page()
