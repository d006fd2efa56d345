"""Refusals by prediction: what counts as ahead, whose fault it is, what the client is told; over HTTP before a fake engine."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from appliance.domain.access.principal import Principal
from appliance.domain.admission.decisions import Admit, Occupancy, Reject, decide
from appliance.domain.admission.forecast import Candidate, Queued, Situation, forecast, rows_lacking
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.load_view import Handed, LoadView
from appliance.domain.admission.places import COUNTED_S, KEPT_S, LONGEST_WAIT_S, NOTHING_KEPT, Kept, Places
from appliance.domain.admission.prediction import OWN_TIMES, TARGET_PART, Outlook, Predictor, judge
from appliance.domain.admission.service import Admission, Ticket
from appliance.domain.lanes.decisions import LANES
from appliance.errors import OverOwnLimit, Unavailable
from engine.wire import Drain, Heartbeat, Load, ModelCard, TenantLoad, TenantPolicy
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import House, in_background, key, snapshot, start_house

SHARES = {"slow": 0.25, "batch": 0.05}
DRAIN = Drain(prefill_tokens_per_s=1000.0, free_rows=8)


def queued(tenant: str, lane: str, tokens: float, rows: int = 1, weight: float = 1.0, debt: float = 0.0) -> Queued:
    return Queued(tenant_id=tenant, lane=lane, tokens=tokens, waiting_rows=rows, weight=weight, debt=debt)


def wait_s(*work: Queued, lane: str = "fast", drain: Drain = DRAIN, weight: float = 1.0, is_fair: bool = True) -> float:
    situation = Situation(queued=work, drain=drain, shares=SHARES, is_fair=is_fair)
    return forecast(situation, Candidate(tenant_id="me", lane=lane, tokens=100, weight=weight)).wait_s


def test_another_tenants_queue_goes_ahead_only_as_far_as_the_counters_put_it() -> None:
    assert wait_s(queued("other", "fast", 50_000, 50)) == 0, "with nothing of mine waiting I am next"
    assert wait_s(queued("me", "fast", 500), queued("other", "fast", 50_000, 50)) == 1.0, "as much of theirs as of mine"
    assert wait_s(queued("me", "fast", 500), queued("other", "fast", 200)) == 0.7
    assert wait_s(queued("me", "fast", 500), queued("other", "fast", 50_000, weight=3.0)) == 2.0
    assert wait_s(queued("me", "fast", 500), queued("other", "fast", 50_000), weight=2.0) == 0.75
    assert wait_s(queued("me", "fast", 500, debt=300), queued("other", "fast", 50_000)) == 1.3, "I was served more before"
    assert wait_s(queued("me", "fast", 500), queued("other", "fast", 50_000, debt=900)) == 0.5, "they were"


def test_first_come_first_served_puts_everything_ahead() -> None:
    assert wait_s(queued("me", "slow", 500), queued("other", "batch", 50_000), is_fair=False) == 50.5


def test_faster_lanes_go_ahead_down_to_the_lanes_guaranteed_share() -> None:
    mine = queued("me", "slow", 1_000)
    assert wait_s(mine, queued("other", "fast", 500), lane="slow") == 1.5
    assert wait_s(mine, queued("other", "fast", 900_000), lane="slow") == 4.0, "a quarter of 1,000 tokens a second is kept for slow"
    assert wait_s(queued("me", "fast", 700), queued("other", "slow", 900_000)) == pytest.approx(0.7 / 0.75)


def test_rows_that_are_short_are_waited_for() -> None:
    drain = Drain(1000.0, rows_per_s=4.0, free_rows=3, reserved_rows=2)
    assert wait_s(queued("me", "fast", 10, 2), drain=drain) == pytest.approx(2 / 4.0), "three with mine, one of them not reserved"
    assert wait_s(queued("me", "fast", 10, 1), drain=drain) == pytest.approx(0.01), "the reserved ones are for whoever has few"
    assert wait_s(queued("me", "fast", 10, 2), queued("other", "fast", 0, 99), drain=drain) == pytest.approx(4 / 4.0)


def test_only_what_waits_beyond_the_free_rows_lacks_one() -> None:
    """For a tenant that holds many the reserved rows are not free; others' requests have theirs before its own."""

    def lacking(*work: Queued, drain: Drain = DRAIN) -> tuple[int, int]:
        found = rows_lacking(Situation(queued=work, drain=drain, shares=SHARES), "me")
        return found.all, found.own

    reserved = Drain(1000.0, free_rows=8, reserved_rows=2)
    assert lacking() == lacking(queued("me", "fast", 0, 8)) == (0, 0)
    assert lacking(queued("me", "fast", 0, 5), queued("me", "batch", 0, 5)) == (2, 2)
    assert lacking(queued("me", "fast", 0, 8), drain=reserved) == (2, 2)
    assert lacking(queued("other", "fast", 0, 9), drain=reserved) == (1, 0)
    assert lacking(queued("me", "fast", 0, 3), queued("other", "fast", 0, 90)) == (85, 3)
    assert lacking(queued("me", "fast", 0, 3), drain=Drain()) == (3, 3), "no report: every one counts"


def admission_with(view: LoadView, *, refuses: bool = True) -> Admission:
    gate = Gate()
    gate.open()
    return Admission(gate, max_queue_depth=2, predictor=Predictor(dict.fromkeys(LANES, view), refuses=refuses))


def enter(admission: Admission, number: int, policy: TenantPolicy) -> Ticket:
    caller = Principal(policy.tenant_id, f"key_{policy.tenant_id}", frozenset(), policy, frozenset(), frozenset())
    ticket = admission.enter(caller)
    admission.note_submit(number, "slow", policy, 1)
    return ticket


@pytest.mark.parametrize("refuses", [True, False])
def test_a_burst_that_fits_the_free_rows_is_no_queue(refuses: bool) -> None:
    view, patient = LoadView(SHARES), TenantPolicy(tenant_id="me", max_concurrency=None)
    admission = admission_with(view, refuses=refuses)
    view.note_load(load(last_sequence_id=0, tokens=0, rows=0))
    for number in range(1, 9):
        enter(admission, number, patient)
    assert admission.use_of(patient).waiting == 0
    enter(admission, 9, patient)
    enter(admission, 10, patient)
    with pytest.raises(Unavailable, match="2 requests of all tenants cannot have a row yet, and the server's --max-queue-depth is 2"):
        enter(admission, 11, patient)
    assert admission.use_of(patient).waiting == 2
    view.note_load(load(last_sequence_id=10, tokens=0, rows=1))
    enter(admission, 11, patient)


def test_a_tenant_that_may_not_queue_gets_all_rows_that_are_free() -> None:
    view, hasty = LoadView(SHARES), TenantPolicy(tenant_id="me", max_concurrency=None, max_queued=0)
    admission = admission_with(view)
    view.note_load(load(last_sequence_id=0, tokens=0, rows=0))
    for number in range(1, 10):
        enter(admission, number, hasty)
    with pytest.raises(OverOwnLimit, match="has 1 request that cannot have a row yet, and its max_queued is 0: come back in 1s"):
        enter(admission, 10, hasty)


def test_what_was_handed_over_since_the_report_counts_until_a_report_knows_of_it() -> None:
    view = LoadView(SHARES)
    view.note_load(load(last_sequence_id=4, tokens=300))
    view.note_submit(5, Handed("me", "fast", 200, 1.0))
    assert view.situation().queued[0].tokens == 500
    view.note_load(load(last_sequence_id=5, tokens=500))
    assert view.situation().queued[0].tokens == 500
    view.note_load(None)
    assert not view.situation().queued and not view.situation().drain.prefill_tokens_per_s


def load(last_sequence_id: int, tokens: int, rows: int = 1) -> Load:
    return Load(0, last_sequence_id, {}, {}, 0, 1, 0, 0, tenants=(TenantLoad("me", "fast", 0, rows, tokens),), drain=DRAIN)


POLICY = TenantPolicy(tenant_id="me", ttft_s={"fast": 1.0}, queue_ttl_s=60.0)


def verdict(policy: TenantPolicy, mine: float, others: float = 0.0, *, tokens: float = 100, in_contract: bool = False) -> Admit | Reject:
    work = [queued("me", "fast", mine), queued("other", "fast", others)]
    seen = forecast(Situation(queued=work, drain=DRAIN, shares=SHARES), Candidate(tenant_id="me", lane="fast", tokens=tokens))
    return judge(policy, "fast", Outlook(now=seen, when_told=seen), in_contract=in_contract, is_idle=not mine)


def test_late_by_its_own_work_is_429_and_by_others_503() -> None:
    assert verdict(POLICY, 1000 * TARGET_PART - 101) == Admit()
    own = verdict(POLICY, 900)
    assert isinstance(own, Reject) and own.own_limit and own.reason == "predicted_late"
    short = verdict(POLICY, 500, 50_000)
    assert isinstance(short, Reject) and not short.own_limit


def test_a_refusal_says_what_was_predicted_what_the_target_is_and_what_to_do() -> None:
    refusal = verdict(POLICY, 2_000)
    assert isinstance(refusal, Reject)
    assert (
        "predicted in 2.1s, with 2000 prompt tokens ahead of it, and the target of lane 'fast' is 1s, for which it may wait 700ms"
        " (0.8 of the target, less 100ms for its own prompt): tenant 'me' has more waiting" in refusal.message
    )
    assert "come back in" in refusal.message and "send fewer requests at once" in refusal.message


def test_a_contract_admits_whatever_is_predicted_and_beyond_it_is_429() -> None:
    contract = TenantPolicy(tenant_id="me", ttft_s={"fast": 1.0}, queue_ttl_s=60.0, committed_tpm=1_000)
    assert verdict(contract, 500, 50_000, in_contract=True) == Admit(is_promised=True)
    beyond = verdict(contract, 500, 50_000)
    assert isinstance(beyond, Reject) and beyond.own_limit


def test_who_waits_however_long_it_takes_is_never_refused_for_being_late() -> None:
    assert verdict(TenantPolicy(tenant_id="me", ttft_s={"fast": 1.0}), 90_000) == Admit(is_promised=True)


def test_without_a_target_the_queues_limit_counts() -> None:
    policy = TenantPolicy(tenant_id="me", queue_ttl_s=5.0)
    assert verdict(policy, 4_900) == Admit()
    late = verdict(policy, 5_100)
    assert isinstance(late, Reject) and "it may wait 5s (queue_ttl_ms of its tier)" in late.message
    both = verdict(TenantPolicy(tenant_id="me", queue_ttl_s=0.5, ttft_s={"fast": 1.0}), 600)
    assert isinstance(both, Reject) and "is 1s, for which it may wait 500ms (queue_ttl_ms of its tier)" in both.message


def test_a_prompt_longer_than_its_target_allows_comes_in_where_little_is_ahead() -> None:
    assert verdict(POLICY, 4_000 * (OWN_TIMES - 1) - 1, tokens=4_000) == Admit()
    late = verdict(POLICY, 4_000, tokens=4_000)
    assert isinstance(late, Reject) and "it may wait 2s (0.5 of the 4s that its own prompt takes)" in late.message


def test_a_place_is_good_once_at_its_time_and_not_for_ever() -> None:
    places = Places()
    places.keep(7, 2.0, 100, 1, now_s=10.0)
    assert not places.take(7, 11.0) and not places.take(8, 12.0)
    assert places.take(7, 12.0) and not places.take(7, 12.0) and places.all == NOTHING_KEPT
    places.keep(7, 2.0, 100, 1, now_s=10.0)
    places.keep(7, 5.0, 100, 1, now_s=10.0)
    places.forfeit(12.1 + KEPT_S)
    assert len(places) == 1 and places.take(7, 15.0)
    places.keep(7, LONGEST_WAIT_S + 1, 100, 1, now_s=10.0)
    assert not len(places)


def test_a_place_is_counted_while_its_client_may_come_and_as_far_as_clients_do_come() -> None:
    places = Places()
    for number, wait_s in enumerate((2.0, 4.0, 8.0)):
        places.keep(number, wait_s, 100, 2, now_s=10.0)
    assert places.all == Kept(300, 6) and places.due_by(15.0) == Kept(200, 4)
    places.forfeit(12.0 + COUNTED_S + 0.1)
    assert places.all == Kept(200, 4), "the first is too late to be waited for"
    assert places.due_by(20.0).rows == pytest.approx(0.9 * 4)
    assert places.take(0, 12.0 + KEPT_S), "and still good"
    for number in range(100):
        places.keep(number + 10, 0.0, 0, 1, now_s=30.0)
    places.forfeit(50.0)
    places.keep(7, 5.0, 1_000, 1, now_s=50.0)
    assert len(places) == 1 and places.due_by(60.0).tokens < 1 and places.take(7, 55.0)


def test_the_last_places_of_a_full_queue_are_for_tenants_with_few() -> None:
    policy = TenantPolicy(tenant_id="t", max_concurrency=None)
    flooder, other = Occupancy(0, 56, 50), Occupancy(0, 56, 0)
    assert isinstance(decide(policy, flooder, 64), Reject) and decide(policy, other, 64) == Admit()
    assert isinstance(decide(policy, Occupancy(0, 64, 0), 64), Reject)


def test_a_full_house_of_ones_own_says_when_a_request_may_end() -> None:
    refusal = decide(TenantPolicy(tenant_id="t", max_concurrency=4), Occupancy(4, 0, 0, tenant_request_s=20.0), 64)
    assert isinstance(refusal, Reject) and refusal.retry_after_s == 5.0


# ---- over HTTP --------------------------------------------------------------------------------------------------

TARGET_S = 1.0
POLICIES = {
    "quiet": TenantPolicy(tenant_id="quiet", ttft_s={"slow": TARGET_S}, queue_ttl_s=30.0),
    "noisy": TenantPolicy(tenant_id="noisy", max_concurrency=None, ttft_s={"slow": TARGET_S}, queue_ttl_s=30.0),
    "shadow": TenantPolicy(tenant_id="shadow", max_concurrency=None, ttft_s={"slow": TARGET_S}, queue_ttl_s=30.0, shadow_mode=True),
    "patient": TenantPolicy(tenant_id="patient", max_concurrency=None, ttft_s={"slow": TARGET_S}),
}


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer fl-{tenant}-0123456789abcdef"}


@pytest.fixture
def house(export: Path, card: ModelCard) -> Iterator[House]:
    """An engine that holds still and says that it computes 10 prompt tokens a second; every prompt here has one."""
    keys = {f"fl-{name}-0123456789abcdef": key(name) for name in POLICIES}
    with start_house(export, card, counting_answer, access=snapshot(*POLICIES.values(), **keys), predicts=True) as running:
        hold(running)
        yield running


def hold(house: House) -> None:
    house.set_engine(hold=True, drain=Drain(prefill_tokens_per_s=10.0, free_rows=8))
    house.on_loop(lambda: house.engine.send(Heartbeat(house.engine.load())))
    house.until(lambda: house.predictor is not None and house.predictor.views["slow"].situation().drain.prefill_tokens_per_s > 0)


def ask(house: House, tenant: str, **body: object) -> httpx.Response:
    return house.post("/v1/completions", {"prompt": "x", "max_tokens": 1, **body}, headers=bearer(tenant))


def rejections(house: House, tenant: str) -> float:
    return house.metric("rejections_total", tenant=tenant, reason="predicted_late")


def test_a_flood_is_refused_with_its_reason_and_the_conformant_tenant_is_served(house: House) -> None:
    with in_background(house, 8, bearer("noisy")):
        house.until(lambda: len(house.engine.queued) == 8)
        refusal = ask(house, "noisy")
        error = refusal.json()["error"]
        assert (refusal.status_code, error["code"], error["reason"]) == (429, "rate_limit_exceeded", "predicted_late")
        assert int(refusal.headers["retry-after"]) >= 1 and "target of lane 'slow' is 1s" in error["message"]
        assert rejections(house, "noisy") == 1
        told = house.on_loop(lambda: house.telemetry.archive.find(refusal.headers["x-request-id"]))
        assert told is not None and (told.prompt_tokens, told.billed.tokens, told.ttft_target_s) == (1, 0, TARGET_S)
        assert told.message == error["message"], "explain tells all of it"
        with in_background(house, 1, bearer("quiet")):
            house.until(lambda: len(house.engine.queued) == 9)
            house.set_engine(hold=False)
    assert rejections(house, "quiet") == 0


def test_who_comes_back_when_told_to_gets_in(house: House) -> None:
    with in_background(house, 8, bearer("noisy")):
        house.until(lambda: len(house.engine.queued) == 8)
        refusal = ask(house, "noisy")
        house.set_engine(hold=False)
    hold(house)
    time.sleep(int(refusal.headers["retry-after"]))  # what the client is told
    with in_background(house, 8, bearer("noisy")):
        house.until(lambda: len(house.engine.queued) == 8)
        house.set_engine(hold=False)
        assert ask(house, "noisy").status_code == 200


def test_shadow_mode_counts_and_lets_in_and_the_patient_are_not_judged(house: House) -> None:
    for tenant, counted in (("shadow", 4), ("patient", 0)):
        with in_background(house, 12, bearer(tenant)):
            house.until(lambda: len(house.engine.queued) == 12)
            house.set_engine(hold=False)
        assert house.metric("shadow_rejections_total", tenant=tenant, reason="predicted_late") == counted
        hold(house)


def test_a_sequence_that_the_scheduler_gave_up_is_503_queue_timeout(house: House) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, house, "noisy")
        house.until(lambda: len(house.engine.queued) == 1)
        house.on_loop(house.engine.expire_queued)
        answer = waiting.result(20)
    assert answer.status_code == 503 and answer.json()["error"]["reason"] == "queue_timeout"
    assert "too late for the TTFT target of lane 'slow'" in answer.json()["error"]["message"]
    assert house.metric("requests_total", tenant="noisy", outcome="expired") == 1


def test_without_admission_a_flood_waits_in_the_queue(export: Path, card: ModelCard) -> None:
    keys = {f"fl-{name}-0123456789abcdef": key(name) for name in POLICIES}
    with start_house(export, card, counting_answer, access=snapshot(*POLICIES.values(), **keys)) as house:
        house.set_engine(hold=True, drain=Drain(prefill_tokens_per_s=10.0, free_rows=8))
        with in_background(house, 20, bearer("noisy")):
            house.until(lambda: len(house.engine.queued) == 20)
            house.set_engine(hold=False)
