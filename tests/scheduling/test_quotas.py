"""Reserves, caps and who yields: what a scheduler keeps, and that the checks see a scheduler that does not."""

import pytest

from engine.scheduling.holdings import Holding, quotas_of
from engine.scheduling.scheduler import Scheduler
from engine.wire import Sampling, Submit, TenantPolicy
from tests.scheduling.driver import Driver, make_limits, with_quotas
from tests.scheduling.traffic import TRAFFIC, run_traffic

RESERVED, CAPPED = with_quotas((0.3, 1.0), (0.0, 1.0)), with_quotas((0.0, 1.0), (0.0, 0.5))


def driver_of(scheduler_type: type[Scheduler] = Scheduler, policies: tuple[TenantPolicy, ...] = RESERVED, **changes) -> Driver:
    values = {"num_pages": 40, "max_num_seqs": 8, "scheduling_policy": "vtc"}
    limits = make_limits(**(values | changes))
    driver = Driver(limits, scheduler_type(limits))
    driver.scheduler.set_policies(policies)
    return driver


def submit(driver: Driver, number: int, tenant: str, prompt_tokens: int, output_tokens: int, *, lane: str = "slow", seed: int = 0) -> None:
    prompt = tuple(2 + (number * 7 + i * i + seed) % 38 for i in range(prompt_tokens))
    sampling = Sampling(max_tokens=output_tokens, ignore_eos=True)
    driver.submit(Submit(number, "r", tenant, lane, tenant, prompt, sampling, received_ns=number))


def flood(driver: Driver, tenant: str, count: int = 30) -> None:
    for number in range(100, 100 + count):
        submit(driver, number, tenant, 20 + number % 20, 8)


@pytest.mark.parametrize(("enabled", "cached"), [(True, 32), (False, 0)])
def test_a_reserve_keeps_a_cached_prefix_through_anothers_flood(enabled: bool, cached: int) -> None:
    driver = driver_of(enable_kv_quota=enabled)
    submit(driver, 1, "a", 36, 1)
    driver.run(overlap=True)
    flood(driver, "b")
    driver.run(overlap=True)
    submit(driver, 2, "a", 36, 1, seed=-7)
    driver.run(overlap=True)
    assert driver.outcomes[2].events[0].cached_tokens == cached


@pytest.mark.parametrize(
    ("tenants", "had_at_once", "most_rows"), [("a", 0, 16), ("ab", 0, 15), ("ab", 1, 15), ("ab", 2, 14), ("ab", 3, 14)]
)
def test_the_last_rows_are_for_others_as_many_as_they_had_lately(tenants: str, had_at_once: int, most_rows: int) -> None:
    """Of sixteen at most two."""
    driver = driver_of(max_num_seqs=16, num_pages=400, policies=tuple(TenantPolicy(tenant_id=name) for name in tenants))
    for number in range(had_at_once):
        submit(driver, number, "b", 8, 1)
    driver.run(overlap=True)
    for number in range(100, 120):
        submit(driver, number, "a", 8, 40)
    for _ in range(20):
        driver.start_step()
        driver.finish_step()
    assert len(driver.scheduler._roster.running) == most_rows


def test_a_reserve_that_nobody_uses_stays_free_for_its_tenants_next_request() -> None:
    driver = driver_of(max_num_seqs=16)
    driver.scheduler.set_policies((TenantPolicy(tenant_id="a", kv_reserve_ratio=0.3), TenantPolicy(tenant_id="b")))
    flood(driver, "b")
    for _ in range(12):
        driver.start_step()
        driver.finish_step()
        pool = driver.scheduler._roster.memory.pool
        assert pool.num_free + pool.num_cached >= 12
    submit(driver, 1, "a", 40, 4)
    driver.start_step()
    assert [chunk.sequence_id for chunk in driver.plans[-1].prefills] == [1]
    driver.finish_step()
    driver.run(overlap=True)


def test_a_cap_holds_a_tenant_however_much_is_free() -> None:
    driver = driver_of(num_pages=128)
    driver.scheduler.set_policies((TenantPolicy(tenant_id="a", kv_cap_ratio=0.2), TenantPolicy(tenant_id="b")))
    for number in range(1, 7):
        submit(driver, number, "a", 40, 8)
    most = 0
    while not driver.scheduler.is_idle:
        driver.start_step()
        driver.finish_step()
        most = max(most, driver.scheduler._roster.memory.pool.holdings.of("a").used)
    assert 12 <= most <= 25  # 0.2 of 128


def test_one_sequence_may_run_whatever_the_cap() -> None:
    driver = driver_of()
    driver.scheduler.set_policies((TenantPolicy(tenant_id="a", kv_cap_ratio=0.0), TenantPolicy(tenant_id="b")))
    for number in (1, 2, 3):
        submit(driver, number, "a", 30, 6)
    driver.run(overlap=True)
    assert max(len(plan.decodes) + len(plan.prefills) for plan in driver.plans) == 1


@pytest.mark.parametrize("with_interactive", [False, True])
def test_batch_work_leaves_pages_to_interactive_work_and_takes_all_where_there_is_none(with_interactive: bool) -> None:
    driver = driver_of(num_pages=64, enable_prefix_caching=False)
    driver.scheduler.set_policies(())
    if with_interactive:
        submit(driver, 1, "a", 4, 3)
        driver.start_step()
        driver.finish_step()
    for number in range(2, 10):
        submit(driver, number, "a", 32, 30, lane="batch")
        driver.start_step()  # two steps a prompt of 32 tokens beside decodes
        driver.finish_step()
        if number == 2 and with_interactive:
            submit(driver, 10, "a", 4, 40)
    least_free = 64
    for _ in range(4):
        driver.start_step()
        driver.finish_step()
        least_free = min(least_free, driver.scheduler._roster.memory.pool.num_free)
    assert (least_free >= 4) == with_interactive
    driver.run(overlap=False)


@pytest.mark.parametrize("enabled", [True, False])
def test_an_interactive_request_gets_the_pages_of_its_own_tenants_batch_work_unless_that_is_switched_off(enabled: bool) -> None:
    driver = driver_of(num_pages=32, enable_prefix_caching=False, enable_batch_preemption=enabled)
    driver.scheduler.set_policies((TenantPolicy(tenant_id="a"),))
    for number in (1, 2):
        submit(driver, number, "a", 40, 20, lane="batch")
        driver.start_step()
        driver.finish_step()
    submit(driver, 3, "a", 40, 4, lane="fast")
    driver.run(overlap=True)
    last_rows = {row.sequence_id: plan.step for plan in driver.plans for row in (*plan.decodes, *plan.prefills)}
    assert (min(last_rows, key=last_rows.__getitem__) == 3) == enabled
    preempted = [each.sequence_id for record in driver.records for each in record.preempted]
    assert (preempted[:1] == [2]) == enabled


def test_without_reserves_a_pool_smaller_than_the_longest_sequence_has_quotas_too() -> None:
    assert quotas_of((TenantPolicy(tenant_id="a"),), num_pages=10, most_reserved=-6)["a"].reserve_pages == 0


# ---- planted faults -------------------------------------------------------------------------------------------------


class GivesReservesAway(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        self._roster.memory.pool.holdings.set_aside_for_others = lambda holding: 0  # type: ignore[method-assign]
        self._roster.memory.has_room = lambda sequence, pages, keep_back=0: (  # type: ignore[method-assign]
            pages <= self._roster.memory.pool.num_free + self._roster.memory.pool.num_cached
        )


class KnowsNoCaps(Scheduler):
    def set_policies(self, policies) -> None:
        super().set_policies(policies)
        self._roster.memory.has_room = lambda sequence, pages, keep_back=0: (  # type: ignore[method-assign]
            pages <= self._roster.memory.pool.available_to(sequence.submit.tenant_id)
        )


class PreemptsInteractiveFirst(Scheduler):
    """And knows nothing of outputs, so that memory runs short often."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        self._roster.outputs.expected = lambda tenant_id, produced: None  # type: ignore[method-assign]
        by_claim = self._roster.shares.by_claim
        self._roster.shares.by_claim = lambda: sorted(by_claim(), key=lambda s: s.submit.lane != "batch")  # type: ignore[method-assign]


class KeepsRetainedPagesEvictable(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        cached = self._roster.memory.pool._cached

        def remove(page, holding) -> None:
            cached._holdings.uncache(holding)

        cached.remove = remove  # type: ignore[method-assign]


FAULTS = {
    "referenced pages took a reserve|pop from an empty deque": (GivesReservesAway, RESERVED, 24),
    "is beyond its cap|can itself be preempted": (KnowsNoCaps, CAPPED, 24),
    "while batch work could yield": (PreemptsInteractiveFirst, (), 22),
    "must exclude each other": (KeepsRetainedPagesEvictable, (), 24),
}


@pytest.mark.parametrize("message", FAULTS)
def test_the_checks_see_a_scheduler_that_keeps_no_quota(message: str) -> None:
    faulty, policies, num_pages = FAULTS[message]
    with pytest.raises((AssertionError, IndexError), match=message):
        run_traffic(driver_of(faulty, policies, num_pages=num_pages), TRAFFIC, overlap=True)
    run_traffic(driver_of(Scheduler, policies, num_pages=num_pages), TRAFFIC, overlap=True)


def test_the_checks_see_what_is_evicted_from_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    run_traffic(driver_of(num_pages=32), TRAFFIC, overlap=True)
    monkeypatch.setattr(Holding, "evictable_by_others", property(lambda holding: holding.cached))
    with pytest.raises(AssertionError, match="evicted from a reserve"):
        run_traffic(driver_of(num_pages=32), TRAFFIC, overlap=True)


def test_reserves_of_many_tenants_that_are_away_leave_half_the_pool_to_whoever_comes() -> None:
    away = tuple(TenantPolicy(tenant_id=f"away{number}", kv_reserve_ratio=0.05) for number in range(30))
    driver = driver_of(policies=away, num_pages=200)
    for number in range(8):
        submit(driver, number, "x", 30, 8)
    used: list[int] = []
    while driver.scheduler.has_work:
        driver.start_step()
        used.append(driver.scheduler.load(0).pages_used)
        driver.finish_step()
    assert max(used) >= 60
