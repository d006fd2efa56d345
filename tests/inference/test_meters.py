"""What meters promise whatever happens: over any stretch of time, under limits that change, on a wall clock that jumps."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.admission.gate import Gate
from appliance.domain.admission.load_view import LoadView
from appliance.domain.admission.meters import LastMinute
from appliance.domain.admission.prediction import Ask, Predictor
from appliance.domain.admission.service import Admission, Ticket
from appliance.errors import OverOwnLimit
from engine.wire import Drain, Load, TenantLoad
from tests.inference.test_limiter import FakeClock, caller, refusal

TPM, RPM = 6_000, 600
SECOND_NS = 1_000_000_000


def house(clock: FakeClock, predictor: Predictor | None = None) -> Admission:
    gate = Gate()
    gate.open()
    return Admission(gate, 10_000, clock.monotonic_ns, clock.wall_s, predictor)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(seconds=1_000.0)


@pytest.fixture
def admission(clock: FakeClock) -> Admission:
    return house(clock)


# ---- a limit is a limit over any stretch of time ------------------------------------------------------------------


def test_streams_that_are_held_open_keep_their_reservations_and_buy_nothing(admission: Admission, clock: FakeClock) -> None:
    principal = caller(tpm=TPM)
    held = [admission.enter(principal, 2_000) for _ in range(3)]
    clock.seconds += 62
    assert refusal(admission, principal, 2_000).reason == "rate_tokens", "what they may still use has not leaked away"
    used = 0
    for ticket in held:
        ticket.close(10)
        used += 10
        admission.enter(principal, 1_990).close(1_990)
        used += 1_990
    assert used == TPM and admission.standings(principal)[0].tokens == TPM
    assert refusal(admission, principal, 1_990).retry_after_s == pytest.approx(19.9)


def test_a_stream_that_ends_owes_all_of_it_from_then_on(admission: Admission, clock: FakeClock) -> None:
    held = admission.enter(caller(tpm=TPM), TPM)
    clock.seconds += 62
    held.close(TPM)
    assert refusal(admission, caller(tpm=TPM), 1_000).retry_after_s == 10


EVENTS = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 5.0, 62.0]), st.integers(-6, 2), st.sampled_from([0.0, 0.01, 1.0])), max_size=60)
"""How long after the one before; below 0 a request of that age ends, else one of that size comes; the part of it that it uses."""


@dataclass
class Books:
    """What was admitted on paper: when requests ended and with how many units, and the units of those that are open."""

    ended: list[tuple[float, int]]
    open: list[tuple[Ticket, int]]

    def hold(self, now_s: float, per_minute: int) -> bool:
        """Whether what ended since any moment, and what is open, is within what the limit allows by now."""
        units = sum(units for _, units in self.open)
        for since_s, ended in reversed(self.ended):
            units += ended
            if units > per_minute * (1 + (now_s - since_s) / 60) + 1e-6:
                return False
        return True


@given(EVENTS)
def test_tokens_of_any_stretch_of_time_and_open_reservations_are_within_the_limit(events: list[tuple[float, int, float]]) -> None:
    clock, sizes = FakeClock(), (1, 1_990, 2_000)
    admission, principal, books = house(clock), caller(tpm=TPM), Books([], [])
    for wait_s, what, part in events:
        clock.seconds += wait_s
        if what >= 0:
            try:
                books.open.append((admission.enter(principal, sizes[what]), sizes[what]))
            except OverOwnLimit:
                continue
        elif books.open:
            ticket, reserved = books.open.pop(max(what, -len(books.open)))
            ticket.close(round(part * reserved))
            books.ended.append((clock.seconds, round(part * reserved)))
        assert books.hold(clock.seconds, TPM)


@given(EVENTS)
def test_requests_that_the_engine_began_with_are_within_rpm_whenever_others_are_refused(events: list[tuple[float, int, float]]) -> None:
    clock = FakeClock()
    admission, principal, books = house(clock), caller(rpm=4), Books([], [])
    for wait_s, what, part in events:
        clock.seconds += wait_s
        if what >= 0:
            try:
                books.open.append((admission.enter(principal), 1))
            except OverOwnLimit:
                continue
        elif books.open:
            ticket, _ = books.open.pop(max(what, -len(books.open)))
            ticket.close(refused=part < 1)
            if part == 1:
                books.ended.append((clock.seconds, 1))
        assert books.hold(clock.seconds, 4)


def test_a_request_that_is_refused_after_a_minute_in_the_queue_gives_back_no_more_than_it_took(
    admission: Admission, clock: FakeClock
) -> None:
    principal = caller(rpm=60)
    queued = [admission.enter(principal) for _ in range(60)]
    clock.seconds += 60
    assert refusal(admission, principal).reason == "rate_requests", "they may still come to run"
    for ticket in queued:
        ticket.close(refused=True)
    for _ in range(60):
        admission.enter(principal).close()
    refusal(admission, principal)


# ---- limits that change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [{"rpm": RPM}, {"rpm": 3, "shadow_mode": True}])
def test_under_a_lower_limit_or_after_shadow_mode_a_tenant_waits_for_its_next_request_and_no_longer(
    admission: Admission, clock: FakeClock, before: dict[str, object]
) -> None:
    for _ in range(100):
        admission.enter(caller(**before)).close()
    clock.seconds += 2
    assert refusal(admission, caller(rpm=3)).retry_after_s <= 20
    clock.seconds += 20.001
    admission.enter(caller(rpm=3)).close()
    refusal(admission, caller(rpm=3))


@given(
    st.lists(
        st.tuples(st.sampled_from([None, 300, 1_000, 50_000]), st.booleans(), st.integers(0, 300), st.floats(0, 100)),
        max_size=80,
    ),
    st.sampled_from([300, 1_000]),
)
def test_whatever_limits_there_were_no_more_than_a_minute_of_the_present_one_is_owed(
    history: list[tuple[int | None, bool, int, float]], tpm: int
) -> None:
    clock = FakeClock()
    admission = house(clock)
    for limit, shadow_mode, tokens, wait_s in history:
        clock.seconds += wait_s
        try:
            admission.enter(caller(tpm=limit, shadow_mode=shadow_mode), tokens).close(tokens)
        except OverOwnLimit:
            continue
    assert admission.standings(caller(tpm=tpm))[0].tokens <= tpm
    clock.seconds += 60
    assert admission.standings(caller(tpm=tpm))[0].tokens == 0


def test_what_an_oversized_request_overdrew_is_owed_under_a_lower_limit_too(admission: Admission) -> None:
    admission.enter(caller(tpm=100), 400).close(400)
    assert admission.standings(caller(tpm=50))[0].tokens == 50 + 300
    assert admission.standings(caller(tpm=100))[0].tokens == 350, "a higher limit forgives nothing"
    admission.enter(caller(tpm=100, shadow_mode=True), 10).close(10)
    assert admission.standings(caller(tpm=100))[0].tokens == 350, "nor does shadow mode, which adds nothing"


def test_limits_that_only_a_page_looks_at_move_no_meter(admission: Admission, clock: FakeClock) -> None:
    part, whole = caller(rpm=3), caller(rpm=RPM)
    for _ in range(3):
        admission.enter(part).close()
    admission.use_of(whole.policy)
    clock.seconds += 19
    assert admission.use_of(whole.policy).standing.requests == pytest.approx(3 - 0.95)
    refusal(admission, part)


# ---- the contract's last minute -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), max_size=60))
def test_the_last_minute_is_the_tokens_of_its_sixty_seconds(arrivals: list[tuple[int, int]]) -> None:
    minute, now_s = LastMinute(), 0
    came: list[tuple[int, int]] = []
    for wait_s, tokens in arrivals:
        now_s += wait_s
        minute.add(tokens, now_s * SECOND_NS)
        came.append((now_s, tokens))
        if tokens % 2:
            continue  # nobody looks
        assert minute.at(now_s * SECOND_NS) == sum(tokens for at_s, tokens in came if at_s > now_s - 60)
    assert minute.at((now_s + 60) * SECOND_NS) == 0


def test_the_last_minute_forgets_though_nobody_looks() -> None:
    minute = LastMinute()
    for second in range(600):
        minute.add(1, second * SECOND_NS)
    assert len(minute.seconds) == minute.at(599 * SECOND_NS) == 60


@pytest.mark.parametrize("before", [{"committed_tpm": 1_000}, {}])
def test_an_hour_of_spare_capacity_costs_a_tenant_its_contract_for_a_minute(clock: FakeClock, before: dict[str, object]) -> None:
    view = LoadView({})
    view.note_load(Load(0, 0, {}, {}, 0, 1, 0, 0, tenants=(TenantLoad("t", "fast", 0, 1, 100),), drain=Drain(1_000.0, free_rows=8)))
    admission = house(clock, Predictor({"fast": view}))
    ask = Ask(lane="fast", prompt_tokens=10, rows=1, fingerprint=0)
    contract = caller(queue_ttl_s=60.0, committed_tpm=1_000)

    def is_in_contract(tokens: int) -> bool:
        ticket = admission.enter(contract, tokens, ask)
        ticket.close()
        return ticket.is_promised

    for _ in range(600):  # ten times the contract
        admission.enter(caller(queue_ttl_s=60.0, **before), 1_000, ask).close(1_000)
        clock.seconds += 6
    assert not is_in_contract(1)
    clock.seconds += 60
    assert is_in_contract(1_000) and not is_in_contract(1_001)
    running = admission.enter(contract, 600, ask)
    clock.seconds += 120
    assert is_in_contract(400) and not is_in_contract(401), "what is in flight counts until it ends"
    running.close(100)
    assert is_in_contract(900) and not is_in_contract(901)


# ---- a wall clock that jumps --------------------------------------------------------------------------------------


@dataclass
class WallClock(FakeClock):
    """The wall clock apart from the monotonic one."""

    at: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def wall_s(self) -> float:
        return self.at.timestamp()


@pytest.mark.parametrize("elsewhen", [datetime(2026, 3, 5, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)])
def test_a_clock_that_is_set_wrongly_and_back_finds_the_days_and_the_months_use(elsewhen: datetime) -> None:
    clock = WallClock()
    admission, here = house(clock), clock.at
    admission.enter(caller(), 90).close(90)
    clock.at = elsewhen
    assert admission.standings(caller())[0].this_month == 0
    admission.enter(caller(), 7).close(7)
    clock.at = here
    standing = admission.standings(caller())[0]
    assert (standing.today, standing.this_month) == (90, 90)
    clock.at = datetime(2026, 2, 1, tzinfo=UTC)
    assert admission.standings(caller())[0].this_month == 0, "and the next day and month begin when they begin"


@given(st.lists(st.integers(0, 70), max_size=100))
def test_use_of_days_is_kept_in_bounded_memory(days: list[int]) -> None:
    clock = WallClock()
    admission = house(clock)
    for day in days:
        clock.at = datetime.fromtimestamp(day * 86_400, UTC)
        before = admission.spent_today("t")
        admission.enter(caller(), 5).close(5)
        assert admission.spent_today("t") == before + 5
    for account in admission._tenants.values():
        assert len(account.spent.days) <= 4 and len(account.spent.months) <= 4
