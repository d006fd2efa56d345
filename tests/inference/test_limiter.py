"""The limiter without a server: meters on a clock of our own, reservations, budgets, what it answers."""

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.access.principal import Limits, Principal, Scope
from appliance.domain.admission.decisions import Standing, duration, rate_headers
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.service import Admission, Ticket
from appliance.errors import ApplianceError, OverBudget, OverOwnLimit
from engine.wire import TenantPolicy

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


@dataclass
class FakeClock:
    """Both clocks, moved by hand."""

    seconds: float = 0.0

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1e9)

    def wall_s(self) -> float:
        return NOON + self.seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def admission(clock: FakeClock) -> Admission:
    gate = Gate()
    gate.open()
    return Admission(gate, 10_000, clock.monotonic_ns, clock.wall_s)


def caller(key_id: str = "k", limits: Limits = Limits(), **fields: object) -> Principal:  # noqa: B008
    policy = TenantPolicy(tenant_id="t", **{"max_concurrency": None, **fields})
    return Principal("t", key_id, frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset(), limits)


def refusal(admission: Admission, principal: Principal, tokens: int = 0) -> OverOwnLimit:
    with pytest.raises(OverOwnLimit) as refused:
        admission.enter(principal, tokens)
    return refused.value


def test_a_minutes_requests_may_come_at_once_and_then_one_each_share_of_a_minute(admission: Admission, clock: FakeClock) -> None:
    principal = caller(rpm=60)
    for _ in range(60):
        admission.enter(principal).close()
    refused = refusal(admission, principal)
    assert (refused.reason, refused.retry_after_s) == ("rate_requests", pytest.approx(1.0))
    clock.seconds += 0.999
    refusal(admission, principal)
    clock.seconds += 0.002
    admission.enter(principal).close()
    refusal(admission, principal)


def test_parallel_requests_reserve_what_they_may_use_and_never_pass_tpm(admission: Admission) -> None:
    principal = caller(tpm=1_000)
    tickets = [admission.enter(principal, 300) for _ in range(3)]
    refused = refusal(admission, principal, 300)
    assert (refused.reason, refused.retry_after_s) == ("rate_tokens", pytest.approx(12.0))
    admission.enter(principal, 100).close(100)
    for ticket in tickets:
        ticket.close(10)
    assert admission.standings(principal)[0].tokens == pytest.approx(130)


def test_a_request_larger_than_a_minute_enters_alone_and_is_paid_off_before_the_next(admission: Admission, clock: FakeClock) -> None:
    principal = caller(tpm=100)
    admission.enter(principal, 400).close(400)
    assert refusal(admission, principal, 1).retry_after_s == pytest.approx(301 * 0.6)
    clock.seconds += 239
    refusal(admission, principal, 400)
    clock.seconds += 2
    admission.enter(principal, 400).close(0)


def test_a_refusal_takes_nothing(admission: Admission) -> None:
    principal = caller(rpm=5, tpm=100, limits=Limits(rpm=1))
    admission.enter(principal, 50).close(50)
    before = admission.standings(principal)
    for _ in range(20):
        refusal(admission, principal, 50)
    assert admission.standings(principal) == before
    assert (admission.num_in_flight, admission.reserved_tokens) == (0, 0)


def test_what_we_refuse_after_admission_costs_neither_request_nor_tokens(admission: Admission) -> None:
    principal = caller(rpm=1, tpm=100)
    admission.enter(principal, 100).close(0, refused=True)
    standing = admission.standings(principal)[0]
    assert (standing.requests, standing.tokens) == (0, 0)
    admission.enter(principal, 100)


@pytest.mark.parametrize("budget", ["tokens_per_day", "tokens_per_month"])
def test_a_spent_budget_is_insufficient_quota_until_the_next_period(admission: Admission, clock: FakeClock, budget: str) -> None:
    principal = caller(**{budget: 100})
    admission.enter(principal, 90).close(90)
    running = admission.enter(principal, 50)  # the one that may overdraw it
    assert isinstance(refusal(admission, principal, 1), OverBudget)
    running.close(20)
    assert refusal(admission, principal, 1).code == "insufficient_quota"
    clock.seconds = 11.9 * 3600
    refusal(admission, principal, 1)
    clock.seconds = 12.1 * 3600  # the first of February
    admission.enter(principal, 1).close(1)


def test_a_months_budget_outlives_a_day(admission: Admission, clock: FakeClock) -> None:
    clock.seconds = -20 * 86_400.0
    principal = caller(tokens_per_month=100)
    admission.enter(principal, 100).close(100)
    clock.seconds += 86_400
    assert refusal(admission, principal).reason == "budget"
    assert admission.spent_today("t") == 0


def test_a_keys_own_limits_hold_beneath_the_tenants(admission: Admission) -> None:
    for limits, reason in ((Limits(rpm=1), "rate_requests"), (Limits(tpm=10), "rate_tokens"), (Limits(tokens_per_day=10), "budget")):
        small = caller(f"small-{reason}", limits, rpm=100, tpm=10_000)
        admission.enter(small, 10).close(10)
        refused = refusal(admission, small, 10)
        assert refused.reason == reason and f"small-{reason}" in refused.message
        admission.enter(caller("large", rpm=100, tpm=10_000), 10).close(10)
    assert refusal(admission, caller("large", rpm=1)).message.startswith("tenant 't'")


def test_a_request_counts_for_the_day_and_month_in_which_it_ends_and_its_reservation_for_the_present_one(
    admission: Admission, clock: FakeClock
) -> None:
    principal = caller(tokens_per_day=100, tokens_per_month=100)
    clock.seconds = 12 * 3600 - 1  # of the last day of January
    over_midnight = admission.enter(principal, 60)
    admission.enter(principal, 30).close(30)
    clock.seconds += 2
    standing = admission.standings(principal)[0]
    assert (standing.today, standing.this_month) == (60, 60), "what it may still use is taken from where it will end"
    over_midnight.close(50)
    standing = admission.standings(principal)[0]
    assert (standing.today, standing.this_month) == (50, 50)
    clock.seconds -= 2  # the wall clock is set back over midnight
    assert admission.standings(principal)[0].today == 30
    admission.enter(principal, 5).close(5)
    clock.seconds += 2
    assert (admission.standings(principal)[0].today, admission.spent_today("t")) == (50, 50), "neither day is charged with the other's"


def test_what_was_read_of_yesterday_is_not_charged_to_today(admission: Admission, clock: FakeClock) -> None:
    clock.seconds = 12 * 3600 - 0.1
    read_at = datetime.fromtimestamp(clock.wall_s(), UTC)
    clock.seconds += 0.2  # the database took so long to answer
    admission.restore({"t": (90, 90)}, {"k": (90, 90)}, read_at)
    standings = admission.standings(caller())
    assert [(standing.today, standing.this_month) for standing in standings] == [(0, 0), (0, 0)]


def test_what_was_used_before_a_restart_counts_against_the_budgets(admission: Admission, clock: FakeClock) -> None:
    admission.restore({"t": (40, 100)}, {"k": (0, 7)}, datetime.fromtimestamp(clock.wall_s(), UTC))
    assert refusal(admission, caller(tokens_per_day=40)).reason == "budget"
    assert refusal(admission, caller(limits=Limits(tokens_per_month=7))).reason == "budget"
    admission.enter(caller(tokens_per_day=41, tokens_per_month=101))


def test_a_limit_that_changes_holds_from_the_next_request_on(admission: Admission) -> None:
    running = [admission.enter(caller(), 100) for _ in range(3)]
    refusal(admission, caller(max_concurrency=3))
    assert refusal(admission, caller(tpm=100), 1).reason == "rate_tokens", "300 may still be used"
    for ticket in running:
        ticket.close(100)
    assert refusal(admission, caller(tpm=100), 100).retry_after_s == 60


def test_max_queued_0_means_no_queue_and_not_no_requests(admission: Admission) -> None:
    first = admission.enter(caller(max_queued=0))
    assert refusal(admission, caller(max_queued=0)).reason == "queue_full"
    first.start()
    admission.enter(caller(max_queued=0))
    assert refusal(admission, caller(max_queued=1)).reason == "queue_full"
    admission.enter(caller(max_queued=2))


def test_shadow_mode_counts_and_lets_pass(admission: Admission) -> None:
    fields = {"rpm": 1, "tpm": 10, "tokens_per_day": 1_000, "max_concurrency": 3, "shadow_mode": True}
    tickets = [admission.enter(caller(**fields), 10) for _ in range(3)]
    assert [ticket.shadowed for ticket in tickets] == ["", "rate_requests", "rate_requests"]
    assert admission.enter(caller(**{**fields, "rpm": None, "tpm": None}), 10).shadowed == "concurrency"


@given(seed=st.integers(0, 10_000), tpm=st.integers(50, 5_000), with_key=st.booleans())
def test_whatever_happens_use_stays_below_the_allowance_plus_one_reservation_and_nothing_is_left_reserved(
    seed: int, tpm: int, with_key: bool
) -> None:
    rng, clock, gate = random.Random(seed), FakeClock(), Gate()
    gate.open()
    admission = Admission(gate, 10_000, clock.monotonic_ns, clock.wall_s)
    principal = caller(limits=Limits(tpm=tpm // 2), tpm=tpm) if with_key else caller(tpm=tpm)
    limit = tpm // 2 if with_key else tpm
    live: list[tuple[Ticket, int]] = []
    used = total = 0
    for _ in range(150):
        clock.seconds += rng.random() * 3
        if live and rng.random() < 0.5:
            ticket, reserved = live.pop(rng.randrange(len(live)))
            spent = rng.randrange(reserved + 1)
            ticket.close(spent)
            used += spent
        else:
            tokens = rng.randrange(1, 200)
            try:
                live.append((admission.enter(principal, tokens), tokens))
            except ApplianceError:
                continue
        total = used + sum(reserved for _, reserved in live)
        assert total <= limit * (1 + clock.seconds / 60) + 200
    for ticket, _ in live:
        ticket.close(0)
    assert (admission.num_in_flight, admission.num_waiting, admission.reserved_tokens) == (0, 0, 0)
    assert admission.spent_today("t") == used


def test_the_headers_show_the_tighter_of_tenant_and_key() -> None:
    tenant = Standing(owner="t", limits=Limits(rpm=100, tpm=6_000), requests=10.5, tokens=600)
    key = Standing(owner="k", limits=Limits(tpm=1_000), tokens=990)
    assert rate_headers([tenant, key]) == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "89",
        "x-ratelimit-reset-requests": "6.3s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "10",
        "x-ratelimit-reset-tokens": "59.4s",
    }
    assert rate_headers([replace(tenant, limits=Limits())]) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0191, "20ms"), (1.5, "1.5s"), (59.996, "60s"), (61, "1m1s"), (360, "6m0s"), (3_700, "1h1m40s")]
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
