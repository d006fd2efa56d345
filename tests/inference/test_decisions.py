"""Lanes, admission, gate: pure decisions and the counters behind tickets."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.access.principal import Principal, Scope
from appliance.domain.admission.decisions import Admit, Occupancy, Reject, decide
from appliance.domain.admission.gate import Gate, GateState
from appliance.domain.admission.service import Admission
from appliance.domain.lanes.decisions import LANES, Lane, LaneRules, Proposal, ServiceTier, Wish, propose_lane
from appliance.errors import Forbidden, Invalid, OverOwnLimit, Unavailable
from engine.wire import TenantPolicy

POLICY = TenantPolicy(tenant_id="t", max_concurrency=2)
RULES = LaneRules()


def caller(policy: TenantPolicy = POLICY) -> Principal:
    return Principal(policy.tenant_id, f"key_{policy.tenant_id}", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset())


def lane(
    policy: TenantPolicy = POLICY, key_lanes: tuple[str, ...] = (), tier: ServiceTier = "auto", tokens: int = 1, streamed: bool = True
) -> str:
    return propose(policy, key_lanes, tier=tier, tokens=tokens, streamed=streamed).lane


def propose(
    policy: TenantPolicy = POLICY,
    key_lanes: tuple[str, ...] = (),
    *,
    tier: ServiceTier = "auto",
    tokens: int = 1,
    streamed: bool = True,
    named: Lane | None = None,
    rules: LaneRules = RULES,
) -> Proposal:
    return propose_lane(policy, key_lanes, Wish(streamed=streamed, prompt_tokens=tokens, service_tier=tier, lane=named), rules)


def test_a_short_streamed_prompt_is_fast_and_others_are_slow() -> None:
    assert lane(tokens=RULES.fast_prompt_tokens) == "fast"
    assert lane(tokens=RULES.fast_prompt_tokens + 1) == "slow"
    assert propose(tokens=9, rules=LaneRules(fast_prompt_tokens=8)).lane == "slow"
    assert lane(streamed=False) == "slow"


def test_the_scheduler_may_change_only_what_the_length_decided_and_only_on_one_engine() -> None:
    assert propose(tokens=9_000) == Proposal("slow", by_length=True)
    assert propose(tier="priority", streamed=False) == Proposal("fast", by_length=True)
    assert propose(streamed=False) == Proposal("slow")
    assert propose(TenantPolicy(tenant_id="t", default_lane="slow")) == Proposal("slow")
    assert propose(key_lanes=("slow", "batch"), tokens=9_000) == Proposal("slow")
    assert propose(tokens=9_000, rules=LaneRules(one_engine=False)) == Proposal("slow")


def test_a_named_lane_comes_first_where_it_is_allowed() -> None:
    assert propose(named="batch") == Proposal("batch")
    assert propose(named="fast", tokens=9_000, streamed=False) == Proposal("fast")
    with pytest.raises(Forbidden, match="the request names lane 'fast', which this key may not use; it may use slow, batch"):
        propose(key_lanes=("slow", "batch"), named="fast")
    with pytest.raises(Invalid, match="send one of them"):
        propose(named="fast", tier="flex")


def test_priority_does_not_ask_whether_it_streams_and_flex_is_batch() -> None:
    assert lane(tier="priority", streamed=False) == "fast"
    assert lane(tier="priority", tokens=5_000) == "slow"
    assert lane(tier="flex") == "batch"


def test_the_tiers_own_lane_comes_before_the_rule() -> None:
    assert lane(TenantPolicy(tenant_id="t", default_lane="batch")) == "batch"


def test_a_lane_asked_for_and_not_allowed_is_refused_while_auto_takes_one_that_is() -> None:
    only_batch = TenantPolicy(tenant_id="t", lanes=("batch",))
    assert lane(only_batch) == "batch"
    with pytest.raises(Forbidden, match="batch"):
        lane(only_batch, tier="priority")
    with pytest.raises(Forbidden, match="no lane"):
        lane(TenantPolicy(tenant_id="t", lanes=("fast",)), key_lanes=("batch",))
    assert lane(TenantPolicy(tenant_id="t", lanes=("slow",)), tier="priority") == "slow"


@given(
    lanes=st.sets(st.sampled_from(LANES), min_size=1),
    key_lanes=st.sets(st.sampled_from(LANES)),
    tier=st.sampled_from(["auto", "default", "priority", "flex"]),
    tokens=st.integers(1, 2_000),
    streamed=st.booleans(),
)
def test_no_lane_is_ever_proposed_that_tier_or_key_do_not_allow(
    lanes: set[str], key_lanes: set[str], tier: ServiceTier, tokens: int, streamed: bool
) -> None:
    try:
        proposed = lane(TenantPolicy(tenant_id="t", lanes=tuple(lanes)), tuple(key_lanes), tier, tokens, streamed)
    except Forbidden:
        return
    assert proposed in lanes and (not key_lanes or proposed in key_lanes)


def test_the_tenants_ceiling_is_judged_before_our_shortage() -> None:
    assert decide(POLICY, Occupancy(tenant_in_flight=1, waiting=9), 10) == Admit()
    own = decide(POLICY, Occupancy(tenant_in_flight=2, waiting=10), 10)
    assert isinstance(own, Reject) and own.reason == "concurrency" and own.own_limit
    full = decide(POLICY, Occupancy(tenant_in_flight=0, waiting=10), 10)
    assert isinstance(full, Reject) and full.reason == "queue_full" and not full.own_limit


def test_who_finds_a_queue_full_is_told_when_a_part_of_it_may_be_gone() -> None:
    busy = Occupancy(tenant_in_flight=8, waiting=80, tenant_waiting=5, tenant_request_s=4.0, in_flight=100, request_s=10.0)
    full = decide(TenantPolicy(tenant_id="t"), busy, max_queue_depth=80)
    assert isinstance(full, Reject) and full.retry_after_s == pytest.approx(10 * 10.0 / 100)
    assert full.message == "80 requests of all tenants cannot have a row yet, and the server's --max-queue-depth is 80: come back in 1s"
    few = decide(TenantPolicy(tenant_id="t"), replace(busy, waiting=70, tenant_waiting=10), max_queue_depth=80)
    assert isinstance(few, Reject) and "is 80, of which the last 10 are for tenants with fewer waiting" in few.message
    one = decide(TenantPolicy(tenant_id="t", max_concurrency=1), Occupancy(1, 0), max_queue_depth=80)
    assert isinstance(one, Reject) and "has 1 request in flight, and its max_concurrency is 1" in one.message
    own = decide(TenantPolicy(tenant_id="t", max_queued=5), busy, max_queue_depth=800)
    assert isinstance(own, Reject) and own.own_limit and own.retry_after_s == 1.0  # 0.5 s, and never less than a second
    assert own.message == "tenant 't' has 5 requests that cannot have a row yet, and its max_queued is 5: come back in 1s"
    slow = Occupancy(tenant_in_flight=40, waiting=40, tenant_waiting=40, tenant_request_s=40.0)
    own = decide(TenantPolicy(tenant_id="t", max_queued=40), slow, max_queue_depth=800)
    assert isinstance(own, Reject) and own.retry_after_s == pytest.approx(5.0)


def test_tickets_count_in_flight_until_closed_and_waiting_until_started() -> None:
    gate = Gate()
    admission = Admission(gate, max_queue_depth=2)
    with pytest.raises(Unavailable):
        admission.enter(caller())
    gate.open()
    first, second = admission.enter(caller()), admission.enter(caller())
    with pytest.raises(OverOwnLimit):
        admission.enter(caller())
    with pytest.raises(Unavailable):
        admission.enter(caller(TenantPolicy(tenant_id="u")))
    first.start()
    first.start()
    assert (admission.num_waiting, admission.num_in_flight) == (1, 2)
    first.close()
    second.close()
    assert (admission.num_waiting, admission.num_in_flight) == (0, 0)


def test_a_draining_gate_never_opens_again() -> None:
    gate = Gate()
    gate.open()
    gate.drain()
    gate.open()
    gate.warm_up("load", 10, "")
    assert gate.condition.state is GateState.DRAINING


def test_a_restart_after_a_lost_engine_stays_engine_down_until_it_is_ready() -> None:
    gate = Gate()
    gate.open()
    gate.lose_engine("it was killed")
    gate.warm_up("compile", 50, "compile 10 of 20")
    assert (gate.condition.state, gate.condition.percent) == (GateState.ENGINE_DOWN, 50)
    gate.open()
    assert gate.condition.state is GateState.OPEN
