"""Several serving processes on one database: their shares of a limit never add up to more than it, whoever comes, goes and asks."""

import itertools
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.db.state import read_capacity_tpm
from appliance.domain.access.capacity import Capacity
from appliance.domain.access.principal import Limits, Principal, Scope
from appliance.domain.admission.decisions import Occupancy, Standing, own_limit
from appliance.domain.admission.demand import MEMORY_S, TIGHT_S, Demand
from appliance.domain.admission.meters import Account
from appliance.domain.admission.service import limits_of
from appliance.domain.peers.decisions import NO_PLAN, SCALE, WHOLE, Member, Plan, Share, next_plan, share_in, with_share
from appliance.domain.peers.registry import EXPIRY_BEATS, Peers
from appliance.domain.tenants.bootstrap import Control
from engine.wire import TenantPolicy

LIMITS = (1, 2, 3, 7, 10, 100, 1_001)


@dataclass
class Process:
    """What a process remembers between two beats."""

    before: Plan = NO_PLAN
    plan: Plan = NO_PLAN
    is_agreed: bool = True
    wants: dict[str, float] = field(default_factory=dict)

    def share(self, name: str) -> Share:
        new = share_in(self.plan, name, "t")
        return new if self.is_agreed else new.within(share_in(self.before, name, "t"))


@dataclass
class Database:
    """The two tables, and the processes that beat on them."""

    table: dict[str, Member] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    plan: Plan = NO_PLAN
    joined: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def join(self, name: str) -> None:
        self.table[name] = Member(name, next(self.joined), 0, 0, {})
        self.processes[name] = Process()
        self.beat(name)

    def beat(self, name: str) -> None:
        own = self.processes[name]
        self.table[name] = replace(self.table[name], plan=own.plan.number, wants=own.wants)
        self.plan = next_plan(self.plan, list(self.table.values())) or self.plan
        if own.plan.number != self.plan.number:
            own.before, own.plan = own.plan, self.plan
        others = [member for member in self.table.values() if member.id != name and member.id in self.plan.members]
        own.is_agreed = all(member.plan == self.plan.number for member in others)


STEPS = st.tuples(st.sampled_from("jbbblw"), st.sampled_from("abcd"), st.sampled_from([0.0, 1.0, 50.0]))


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=80))
def test_shares_never_add_up_to_more_than_a_limit_while_processes_join_beat_ask_and_leave(steps: list[tuple[str, str, float]]) -> None:
    database = Database()
    processes = database.processes
    for what, name, units in steps:
        if what == "j" and name not in database.table:
            database.join(name)
        elif what == "b" and name in database.table:
            database.beat(name)
        elif what == "w" and name in database.table:
            processes[name].wants = {"t": units}
        elif what == "l" and name in database.table:
            del database.table[name], processes[name]
        for limit in LIMITS:
            assert sum(process.share(name).of(limit) or 0 for name, process in processes.items()) <= limit
    for _ in range(8):
        for name in processes:
            database.beat(name)
    for limit in LIMITS:
        assert not processes or sum(process.share(name).of(limit) or 0 for name, process in processes.items()) == limit, "all of it is used"


def test_whoever_is_asked_for_more_has_more_and_a_small_limit_whole() -> None:
    database = Database()
    for name in "abc":
        database.join(name)
    for wants, parts in (({"a": 0.0, "b": 40.0, "c": 0.0}, (1, 58, 1)), ({"a": 60.0, "b": 0.0, "c": 0.0}, (58, 1, 1))):
        for name, units in wants.items():
            database.processes[name].wants = {"t": units}
        for _ in range(6):
            for name in "abc":
                database.beat(name)
        assert tuple(database.processes[name].share(name).of(60) for name in "abc") == parts
        if wants["b"] == 40.0:
            assert [database.processes[name].share(name).of(2) for name in "abc"] == [0, 2, 0]
    for process in database.processes.values():
        process.wants = {"t": 0.0}
    for _ in range(6):
        for name in "abc":
            database.beat(name)
    assert database.plan.bounds == {}, "nobody asks for it any more: even parts again"


def test_demand_is_told_of_tenants_at_their_limit_and_of_those_that_others_name_and_forgotten() -> None:
    demand = Demand()
    for tenant_id in ("busy", "quiet"):
        demand.note(tenant_id, 10)
    assert demand.wants([], 1.0) == {}
    demand.note_limit("busy", 1.0)
    assert demand.wants(["quiet", "unknown"], 1.0) == {"busy": 10.0, "quiet": 10.0, "unknown": 0.0}
    assert demand.wants([], 1.0 + MEMORY_S) == {"busy": 3.7}
    assert demand.wants([], 1.0 + TIGHT_S) == {}


def principal(rpm: int, share: Share) -> Principal:
    policy = TenantPolicy(tenant_id="t", rpm=rpm)
    return with_share(Principal("t", "k", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset()), share)


def test_a_part_that_grows_brings_its_rate_and_no_second_burst() -> None:
    account, second_ns = Account(), 1_000_000_000

    def room(share: Share, at_s: float) -> float:
        caller = principal(60, share)
        limits = Limits(rpm=caller.policy.rpm)
        account.take_part(caller, limits, round(at_s * second_ns))
        return (caller.policy.rpm or 0) - account.standing("", limits, round(at_s * second_ns), 0.0).requests

    half, most, little = Share(0, 500, 2), Share(0, 950, 2), Share(0, 50, 2)
    assert room(half, 0) == 30
    assert room(most, 0) == 30, "the other 27 of a burst may have been used elsewhere"
    assert 55 < room(most, 30) <= 57
    account.requests.add(room(most, 30), 30 * second_ns)
    for at_s, share in ((30, little), (30, most), (30, little), (30, most)):
        assert room(share, at_s) <= 0.001, "moving to and fro makes nothing"
    assert Share(0, 950, 2).ratio == 0.95 and SCALE == 1_000


def test_a_part_of_a_contract_that_grows_may_have_been_used_elsewhere_in_the_last_minute() -> None:
    account, second_ns = Account(), 1_000_000_000
    half, most = (replace(principal(60, share), limits=Limits()) for share in (Share(0, 500, 2), Share(0, 1_000, 2)))
    account.take_part(half, Limits(), 0, committed_tpm=500)
    assert account.last_minute.at(0) == 0
    account.take_part(most, Limits(), second_ns, committed_tpm=1_000)
    assert (account.last_minute.at(second_ns), account.last_minute.at(61 * second_ns)) == (500, 0)


def test_a_refusal_tells_the_whole_limit_and_the_part_of_it_that_this_process_has() -> None:
    policy = TenantPolicy(tenant_id="t", rpm=41, tpm=101, max_concurrency=7, max_queued=4)
    whole = Principal("t", "k", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset(), Limits(rpm=5))
    for share, words in (
        (
            Share(0, 500, 2),
            ("limit of 41 requests a minute (21 of them at this process)", "limit of 101 tokens a minute (51 of them at this"),
        ),
        (Share(0, 0, 2), ("no part of t's limit of 41 requests a minute falls", "no part of t's limit of 101 tokens a minute falls")),
        (WHOLE, ("limit of 41 requests a minute", "limit of 101 tokens a minute: 200 are in use")),
    ):
        caller = with_share(whole, share)
        standing = Standing(
            owner="t", limits=limits_of(caller.policy), whole=limits_of((caller.whole or caller).policy), requests=50, tokens=200
        )
        without_rpm = replace(standing, limits=replace(standing.limits, rpm=None))
        for each, word in ((standing, words[0]), (without_rpm, words[1])):
            told = own_limit(caller.policy, Occupancy(0, 0), [each], 1)
            assert told is not None and word in told.message, told
    half = with_share(whole, Share(0, 500, 2))
    busy = own_limit(half.policy, Occupancy(4, 0, whole=policy), [], 1)
    assert busy is not None and "its max_concurrency is 7 (4 of them at this process): come back in" in busy.message
    queued = own_limit(half.policy, Occupancy(0, 2, tenant_waiting=2, whole=policy), [], 1)
    assert queued is not None and "its max_queued is 4 (2 of them at this process): come back in" in queued.message


def test_every_ceiling_of_tenant_and_key_is_divided_and_budgets_are_not() -> None:
    policy = TenantPolicy(
        tenant_id="t", rpm=10, tpm=101, committed_tpm=50, max_concurrency=7, max_queued=4, tokens_per_day=9, max_context_tokens=99
    )
    whole = Principal("t", "k", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset(), Limits(5, None, 8, None))
    assert with_share(whole, WHOLE) is whole
    parts = [with_share(whole, share) for share in (Share(0, 500, 2), Share(500, 1_000, 2))]
    assert [(p.policy.rpm, p.policy.tpm, p.policy.committed_tpm, p.policy.max_concurrency, p.policy.max_queued) for p in parts] == [
        (5, 51, 25, 4, 2),
        (5, 50, 25, 3, 2),
    ]
    assert [p.limits for p in parts] == [Limits(3, None, 8, None), Limits(2, None, 8, None)]
    assert {(p.policy.tokens_per_day, p.policy.max_context_tokens) for p in parts} == {(9, 99)}


async def test_a_newcomer_gets_its_part_when_the_others_made_room_and_the_dead_ones_share_comes_back(
    control: Control,
) -> None:
    first, second = (Peers(control.store.database, lambda *_: None) for _ in range(2))
    await first.join()
    assert first.share("t") == WHOLE
    await second.join()
    assert (first.share("t").of(10), second.share("t").of(10)) == (10, 0)
    for _ in range(3):
        await first.beat()
        await second.beat()
    assert (first.share("t").of(11), second.share("t").of(11)) == (6, 5)
    for _ in range(EXPIRY_BEATS + 3):  # the second one says nothing more
        await first.beat()
    assert first.share("t").of(11) == 11
    await second.beat()  # it was only asleep: it is a newcomer again
    assert (first.share("t").of(11), second.share("t").of(11)) == (11, 0)
    await second.leave()
    for _ in range(2):
        await first.beat()
    assert first.share("t") == WHOLE


async def test_contracts_are_compared_with_what_all_processes_can_do_together(control: Control) -> None:
    directory, there = control.directory, control.store.database
    own, other = directory.capacity, Capacity()
    first, second = (Peers(there, lambda *_: None, capacity=capacity) for capacity in (own, other))
    own.own_tpm = 1_000
    await first.join()
    await second.join()
    await first.beat()
    assert own.tpm == 1_000, "the second one is not ready"
    other.own_tpm = 600
    for each in (second, first):
        await each.beat()
    assert (own.tpm, other.tpm) == (1_600, 1_600)
    await directory.keep_capacity()
    await second.leave()
    await first.beat()
    async with there.read() as session:
        assert (own.tpm, await read_capacity_tpm(session)) == (1_000, 1_600)
    await directory.keep_capacity()
    async with there.read() as session:
        assert await read_capacity_tpm(session) == 1_000
    own.own_tpm = 0
    assert own.tpm == 1_000, "before anything was measured, what the database has of it"


async def test_what_all_processes_have_used_of_a_budget_is_told_to_each(control: Control) -> None:
    told: list[dict[str, tuple[int, int]]] = []
    peers = [Peers(control.store.database, lambda tenants, _keys, _at: told.append(tenants)) for _ in range(2)]
    for each in peers:
        await each.join()
    for _ in range(3):
        await peers[0].beat()
    assert told
