"""Virtual counters, lane shares, orders between tenants: fact by fact."""

import pytest

from engine.scheduling.contract import MinuteTokens
from engine.scheduling.draft import Row
from engine.scheduling.fair_policy import JUMP_BEFORE_NS, JUMP_DEBT, TenantFair
from engine.scheduling.lanes import QUANTUM_TOKENS, LaneShares
from engine.scheduling.policy import ByPriority
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import KV_READS_PER_TOKEN, TIE_TOKENS, Accounts, cost_of
from engine.wire import Sampling, Submit, TenantPolicy


def make_sequence(arrival: int, tenant: str = "a", lane: str = "fast", deadline_ns: int = 0) -> Sequence:
    return Sequence(Submit(arrival, "r", tenant, lane, "s", (5,), Sampling(), 1, deadline_ns), arrival, [5], 1)


def make_row(tenant: str, tokens: int = 1, context: int = 0, *, is_decode: bool = False, lane: str = "fast") -> Row:
    return Row(make_sequence(1, tenant, lane), 0, tokens, context, samples=False, is_decode=is_decode)


def order_of(policy: TenantFair | ByPriority, *prefills: Sequence, now_ns: int = 0) -> list[int]:
    return [sequence.arrival for sequence in policy.order(prefills, now_ns, with_waiting=True)]


# ---- counters -------------------------------------------------------------------------------------------------------


def test_a_row_costs_its_tokens_and_what_it_reads_and_weight_divides_it() -> None:
    assert cost_of(make_row("a", 1, KV_READS_PER_TOKEN, is_decode=True)) == 2
    assert cost_of(make_row("a", 32, KV_READS_PER_TOKEN)) == 32 + 2  # two query blocks
    accounts = Accounts()
    accounts.set_policies([TenantPolicy(tenant_id="a", weight=4.0)])
    accounts.join("a")
    accounts.charge(make_row("a", 32))
    assert accounts.of("a").counter == 8
    accounts.refund(make_row("a", 32))
    assert accounts.of("a").counter == 0


def test_who_comes_back_is_lifted_to_the_least_served_and_who_stayed_is_not() -> None:
    accounts = Accounts()
    accounts.join("a")
    accounts.join("b")
    accounts.charge(make_row("a", 500))
    accounts.charge(make_row("b", 300))
    accounts.join("late")
    assert (accounts.of("late").counter, accounts.of("late").lifted) == (300, 300)
    accounts.charge(make_row("b", 400))
    accounts.join("late")  # a second sequence: it was never away
    assert accounts.of("late").counter == 300
    assert accounts.debt("b") == 400


def test_after_an_idle_time_everybody_begins_where_the_last_one_left() -> None:
    accounts = Accounts()
    accounts.join("a")
    accounts.charge(make_row("a", 300))
    accounts.part("a")
    accounts.charge(make_row("a", 200))  # it decodes
    accounts.join("b")
    assert accounts.of("b").counter == 500


def test_requests_are_the_unit_of_turns() -> None:
    accounts = Accounts("requests")
    accounts.join("a")
    accounts.charge(make_row("a", 500))
    accounts.charge_admission("a")
    assert accounts.of("a").counter == 1


def test_a_tenant_that_is_gone_keeps_its_account_only_while_it_has_sequences() -> None:
    accounts = Accounts()
    accounts.enter("a", 0)
    accounts.set_policies([TenantPolicy(tenant_id="b")])
    assert accounts.others_may_come
    accounts.leave("a")
    accounts.set_policies([TenantPolicy(tenant_id="b")])
    assert not accounts.others_may_come


def test_what_others_had_at_once_is_remembered_while_they_keep_coming() -> None:
    accounts, minute_ns = Accounts(), 60_000_000_000
    for tenant_id, at_ns, others in (("a", 5, 0), ("a", 6, 0), ("b", 7, 1), ("b", 8, 2), ("b", 9, 2), ("c", 10, 3)):
        accounts.enter(tenant_id, at_ns)
        assert accounts.others_at_once == others, (tenant_id, at_ns)
    accounts.leave("b")
    accounts.enter("b", minute_ns)
    assert accounts.others_at_once == 3, "it had three at once"
    accounts.enter("c", 9 + minute_ns)
    assert accounts.others_at_once == 2, "nothing came from a for a minute"


# ---- lanes ----------------------------------------------------------------------------------------------------------


def test_fast_goes_first_and_slow_gets_its_quarter() -> None:
    lanes, both = LaneShares(), ("slow", "fast")
    firsts = []
    for _ in range(12):
        first = lanes.order(both)[0]
        firsts.append(first)
        lanes.note_step({first: QUANTUM_TOKENS}, both)
    assert firsts == ["fast"] * 4 + (["slow"] + ["fast"] * 3) * 2


def test_batch_has_a_floor_and_a_lane_without_work_is_owed_nothing() -> None:
    lanes = LaneShares()
    for _ in range(20):
        lanes.note_step({"fast": QUANTUM_TOKENS}, ("fast", "batch"))
    assert lanes.order(("fast", "batch", "slow")) == ["batch", "fast", "slow"]
    lanes.note_step({"fast": 16}, ("fast",))
    assert lanes.order(("fast", "batch")) == ["fast", "batch"]


# ---- orders ---------------------------------------------------------------------------------------------------------


def fair_policy(*waiting: Sequence, charged: dict[str, int] | None = None, by_deadline: bool = True) -> TenantFair:
    policy = TenantFair(Accounts(), by_deadline=by_deadline)
    for sequence in waiting:
        policy.accounts.join(sequence.submit.tenant_id)
        policy.add(sequence)
    for tenant, tokens in (charged or {}).items():
        policy.accounts.charge(make_row(tenant, tokens))
    return policy


def test_the_least_served_tenant_goes_first_and_its_deadlines_decide_within_it() -> None:
    waiting = (make_sequence(1, "a"), make_sequence(2, "b", deadline_ns=9 * 10**9), make_sequence(3, "b", deadline_ns=8 * 10**9))
    assert order_of(fair_policy(*waiting, charged={"a": 70})) == [3, 2, 1]
    assert order_of(fair_policy(*waiting, charged={"b": 70})) == [1, 3, 2]


def test_a_begun_prompt_goes_before_its_tenants_waiting_ones_and_behind_a_quieter_tenant() -> None:
    policy = fair_policy(make_sequence(5, "a"), make_sequence(6, "b"), charged={"a": 70})
    assert order_of(policy, make_sequence(1, "a")) == [6, 1, 5]


@pytest.mark.parametrize(("debt", "due_in_ns", "first"), [(JUMP_DEBT / 2, 1, 1), (JUMP_DEBT, 1, 2), (70, JUMP_BEFORE_NS, 2), (70, -1, 2)])
def test_a_deadline_jumps_only_when_it_is_near_and_not_past_and_the_debt_is_small(debt: float, due_in_ns: int, first: int) -> None:
    now_ns = 10**9
    waiting = (make_sequence(1, "a", deadline_ns=now_ns + due_in_ns), make_sequence(2, "b"))
    assert order_of(fair_policy(*waiting, charged={"a": int(debt)}), now_ns=now_ns)[0] == first


@pytest.mark.parametrize(("due_in_ms", "first"), [(99, 2), (101, 1), (259, 1), (261, 2)])
def test_a_deadline_is_near_by_when_the_prompt_has_to_begin(due_in_ms: int, first: int) -> None:
    """100 tokens of 1 ms."""
    now_ns = 10**9
    long = make_sequence(1, "a", deadline_ns=now_ns + due_in_ms * 10**6)
    long.tokens, long.prompt_tokens = [5] * 100, 100
    policy = fair_policy(long, make_sequence(2, "b"), charged={"a": 70})
    policy.note_pace(0.001)
    assert order_of(policy, now_ns=now_ns)[0] == first


def test_a_deadline_jumps_only_while_its_tenant_is_inside_its_contract() -> None:
    now_ns = 10**9
    waiting = (make_sequence(1, "a", deadline_ns=now_ns + 1), make_sequence(2, "b"))
    policy = fair_policy(*waiting, charged={"a": int(JUMP_DEBT / 2)})
    policy.accounts.set_policies([TenantPolicy(tenant_id="a", committed_tpm=100), TenantPolicy(tenant_id="b")])
    policy.accounts.note_tokens("a", 100, now_ns)
    assert order_of(policy, now_ns=now_ns)[0] == 1
    policy.accounts.note_tokens("a", 1, now_ns)
    assert order_of(policy, now_ns=now_ns)[0] == 2


def test_the_minute_of_a_contract_slides() -> None:
    tokens = MinuteTokens()
    tokens.add(600, 0)
    assert (tokens.at(0), tokens.at(30 * 10**9), tokens.at(90 * 10**9), tokens.at(120 * 10**9)) == (600, 600, 300, 0)
    tokens.add(100, 75 * 10**9)
    assert tokens.at(90 * 10**9) == 600 / 2 + 100
    tokens.add(5, 300 * 10**9)
    assert tokens.at(300 * 10**9) == 5


def test_without_the_order_of_deadlines_a_tenants_prompts_go_by_arrival_and_none_jumps() -> None:
    now_ns = 10**9
    waiting = (make_sequence(1, "a"), make_sequence(2, "a", deadline_ns=now_ns + 1), make_sequence(3, "b"))
    for by_deadline, order in ((True, [2, 1, 3]), (False, [3, 1, 2])):
        policy = fair_policy(*waiting, charged={"a": int(JUMP_DEBT / 2)}, by_deadline=by_deadline)
        assert order_of(policy, now_ns=now_ns) == order


def test_between_tenants_served_alike_priority_decides_and_then_who_is_closer_to_its_first_token() -> None:
    long, short = make_sequence(1, "a"), make_sequence(2, "b")
    long.tokens, short.tokens = [5] * 40, [5] * 3
    policy = fair_policy(charged={"b": int(TIE_TOKENS / 2)})
    assert order_of(policy, long, short) == [2, 1]
    policy.accounts.set_policies([TenantPolicy(tenant_id="a", priority=1), TenantPolicy(tenant_id="b")])
    assert order_of(policy, long, short) == [1, 2]
    policy.accounts.charge(make_row("a", int(TIE_TOKENS)))
    assert order_of(policy, long, short) == [2, 1]


def test_where_requests_are_counted_whoever_had_one_more_is_behind_whatever_its_priority_and_its_length() -> None:
    accounts = Accounts("requests")
    accounts.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b", priority=1)])
    long, short = make_sequence(1, "a"), make_sequence(2, "b")
    long.tokens, short.tokens = [5] * 40, [5] * 3
    policy = TenantFair(accounts)
    assert order_of(policy, long, short) == [2, 1]
    accounts.charge_admission("b")
    assert order_of(policy, long, short) == [1, 2]


def test_of_one_tenants_begun_prompts_the_earliest_deadline_goes_first_and_then_the_one_closer_to_its_end() -> None:
    begun = [make_sequence(1, "a"), make_sequence(2, "a"), make_sequence(3, "a", deadline_ns=9)]
    for sequence, tokens in zip(begun, (30, 10, 50), strict=True):
        sequence.tokens = [5] * tokens
    assert order_of(fair_policy(), *begun) == [3, 2, 1]


def test_priority_decides_where_two_tenants_tie() -> None:
    policy = fair_policy(make_sequence(1, "a"), make_sequence(2, "b"))
    policy.accounts.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b", priority=1)])
    assert order_of(policy) == [2, 1]


def test_under_priority_it_decides_always_and_arrival_between_equals() -> None:
    accounts = Accounts()
    accounts.set_policies([TenantPolicy(tenant_id="a"), TenantPolicy(tenant_id="b", priority=1)])
    policy = ByPriority(accounts)
    for sequence in (make_sequence(2, "a"), make_sequence(3, "b"), make_sequence(4, "b")):
        policy.add(sequence)
    assert order_of(policy, make_sequence(1, "a")) == [3, 4, 1, 2]


def test_sequences_leave_the_fair_queue_from_anywhere() -> None:
    sequences = [make_sequence(n, "ab"[n % 2], deadline_ns=n % 3) for n in range(1, 9)]
    policy = fair_policy(*sequences)
    for sequence in policy.order((), 0, with_waiting=True):
        policy.remove(sequence)
    assert (len(policy), policy.oldest_received_ns(), order_of(policy)) == (0, 0, [])


def test_a_lane_that_has_no_prompts_while_steps_of_decodes_run_is_owed_nothing() -> None:
    policy = TenantFair(Accounts())
    policy.lanes.note_step({"fast": 4 * QUANTUM_TOKENS}, ("fast", "slow"))
    assert policy.lanes.due(["slow"]) == ["slow"]
    policy.note_decodes()
    assert policy.lanes.due(["slow"]) == []
