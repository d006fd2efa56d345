"""The page pool, the hash chain, and who is evicted first."""

import pytest

from engine.scheduling.eviction import LeastRecentlyUsed
from engine.scheduling.pages import PagePool
from engine.scheduling.prefix_cache import PrefixCache


def make_pool(num_pages: int) -> tuple[PagePool, PrefixCache]:
    cache = PrefixCache(page_size=4, version="v")
    return PagePool(num_pages, cache, LeastRecentlyUsed()), cache


def states(pool: PagePool) -> tuple[int, int, int]:
    pool.check_every_page()
    return pool.num_free, pool.num_used, pool.num_cached


def test_a_page_is_free_then_used_then_free() -> None:
    pool, _ = make_pool(3)
    page = pool.take("a")
    assert states(pool) == (2, 1, 0)
    pool.release(page)
    assert states(pool) == (3, 0, 0)


def test_a_page_the_cache_knows_is_kept_when_its_last_reference_goes() -> None:
    pool, cache = make_pool(3)
    page = pool.take("a")
    cache.insert(b"key", page)
    pool.retain(page, "a")
    pool.release(page)
    assert states(pool) == (2, 1, 0)
    pool.release(page)
    assert states(pool) == (2, 0, 1)
    pool.retain(page, "a")
    assert states(pool) == (2, 1, 0)


def test_cached_pages_are_evicted_only_when_no_page_is_free_and_the_longest_unused_goes_first() -> None:
    pool, cache = make_pool(3)
    first, second, third = pool.take("a"), pool.take("a"), pool.take("a")
    for page in (first, second, third):
        cache.insert(bytes([page]), page)
    for page in (second, first):
        pool.release(page)
    pool.retain(second, "a")
    pool.release(second)  # used again, so `first` is the oldest now
    assert pool.take("a") == first
    assert cache.find(bytes([first])) is None
    assert pool.num_evicted == {"over_cap": 0, "over_reserve": 1, "own": 0}
    assert states(pool) == (0, 2, 1)


def test_a_page_released_too_often_is_our_own_bug() -> None:
    pool, _ = make_pool(1)
    page = pool.take("a")
    pool.release(page)
    with pytest.raises(AssertionError, match="page 0 released more often than retained"):
        pool.release(page)


def test_an_empty_pool_gives_nothing() -> None:
    pool, _ = make_pool(1)
    pool.take("a")
    assert pool.available_to("a") == 0
    with pytest.raises(IndexError):
        pool.take("a")


def test_a_key_depends_on_tokens_parent_salt_and_version() -> None:
    cache = PrefixCache(4, "v")
    keys = {
        cache.child(cache.root("a"), (1, 2, 3, 4)),
        cache.child(cache.root("a"), (1, 2, 3, 5)),
        cache.child(cache.root("b"), (1, 2, 3, 4)),
        cache.child(cache.child(cache.root("a"), (1, 2, 3, 4)), (1, 2, 3, 4)),
        cache.child(PrefixCache(4, "w").root("a"), (1, 2, 3, 4)),
    }
    assert len(keys) == 5


def test_version_and_salt_can_not_be_shifted_into_each_other() -> None:
    assert PrefixCache(4, "v1").root("2") != PrefixCache(4, "v").root("12")


def test_the_page_that_came_first_keeps_the_key() -> None:
    _, cache = make_pool(2)
    cache.insert(b"key", 0)
    cache.insert(b"key", 1)
    assert cache.find(b"key") == 0
    assert 1 not in cache
