"""Several serving processes on one database: their shares of a limit never add up to more than it, whoever comes and goes."""

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.domain.access.principal import Limits, Principal, Scope
from appliance.domain.peers.decisions import WHOLE, Member, Share, decide_share, with_share
from appliance.domain.peers.registry import EXPIRY_BEATS, Peers
from appliance.domain.tenants.bootstrap import Control
from engine.wire import TenantPolicy

LIMITS = (1, 2, 3, 7, 10, 100, 1_001)


@dataclass
class Process:
    """What a process remembers between two beats."""

    share: Share = field(default_factory=lambda: Share(processes=2, is_waiting=True))
    knows: int = 0
    divided_by: list[str] = field(default_factory=list)


def beat(table: dict[str, Member], processes: dict[str, Process], name: str) -> None:
    own, row = processes[name], table[name]
    table[name] = Member(name, row.joined, row.beats + 1, own.knows)
    own.share = decide_share(name, table.values(), own.divided_by)
    own.divided_by = [member.id for member in sorted(table.values(), key=lambda member: member.joined)]
    own.knows = max(member.joined for member in table.values())


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from("jbbbl"), st.sampled_from("abcde")), max_size=80))
def test_shares_never_add_up_to_more_than_a_limit_while_processes_join_beat_and_leave(steps: list[tuple[str, str]]) -> None:
    table: dict[str, Member] = {}
    processes: dict[str, Process] = {}
    joined = itertools.count(1)
    for what, name in steps:
        if what == "j" and name not in table:
            table[name] = Member(name, next(joined), 0, 0)
            processes[name] = Process()
            beat(table, processes, name)
        elif what == "b" and name in table:
            beat(table, processes, name)
        elif what == "l" and name in table:
            del table[name], processes[name]
        for limit in LIMITS:
            assert sum(process.share.of(limit) or 0 for process in processes.values()) <= limit
    for _ in range(4):
        for name in processes:
            beat(table, processes, name)
    for limit in LIMITS:
        assert not processes or sum(process.share.of(limit) or 0 for process in processes.values()) == limit, "all of it is used"


def test_every_ceiling_of_tenant_and_key_is_divided_and_budgets_are_not() -> None:
    policy = TenantPolicy(
        tenant_id="t", rpm=10, tpm=101, committed_tpm=50, max_concurrency=7, max_queued=4, tokens_per_day=9, max_context_tokens=99
    )
    whole = Principal("t", "k", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset(), Limits(5, None, 8, None))
    assert with_share(whole, WHOLE) is whole
    parts = [with_share(whole, Share(2, rank)) for rank in (0, 1)]
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
    assert first.share == WHOLE
    await second.join()
    assert (first.share.of(10), second.share.of(10)) == (10, 0)
    for _ in range(3):
        await first.beat()
        await second.beat()
    assert (first.share.of(11), second.share.of(11)) == (6, 5)
    for _ in range(EXPIRY_BEATS + 2):  # the second one says nothing more
        await first.beat()
    assert first.share.of(11) == 11
    await second.beat()  # it was only asleep: it is a newcomer again
    assert (first.share.of(11), second.share.of(11)) == (11, 0)
    await second.leave()
    await first.beat()
    assert first.share == WHOLE


async def test_what_all_processes_have_used_of_a_budget_is_told_to_each(control: Control) -> None:
    told: list[dict[str, tuple[int, int]]] = []
    peers = [Peers(control.store.database, lambda tenants, _keys: told.append(tenants)) for _ in range(2)]
    for each in peers:
        await each.join()
    for _ in range(3):
        await peers[0].beat()
    assert told
