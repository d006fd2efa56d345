"""Objectives: who is counted, as what, and what windows make of it."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from appliance.telemetry.requests import Outcome, RequestReport
from appliance.telemetry.slo import SloBook, judge
from appliance.telemetry.tenant_labels import TenantLabels
from engine.wire import TenantPolicy
from tests.telemetry.test_explain import report_of

MS = 1_000_000
POLICY = TenantPolicy(tenant_id="quiet", ttft_s={"fast": 0.5, "slow": 3.0}, tpot_s={"fast": 0.05}, objectives={"fast": 0.9, "slow": 0.9})


def report(*, ttft_ms: int = 100, tpot_ms: int = 10, ended_ms: int = 1_000, **fields: Any) -> RequestReport:
    """Eleven tokens of the fast lane, with targets of 500 and 50 ms."""
    first_ns = ttft_ms * MS
    times = {"received_ns": 0, "first_token_ns": first_ns, "first_sent_ns": first_ns, "last_token_ns": first_ns + 10 * tpot_ms * MS}
    targets = {"ttft_target_s": 0.5, "tpot_target_s": 0.05}
    return report_of(**{**times, **targets, "tokens_after_first": 10, "ended_ns": ended_ms * MS, **fields})


NOTHING_SENT = {"first_token_ns": 0, "first_sent_ns": 0, "last_token_ns": 0, "tokens_after_first": 0}


@pytest.mark.parametrize(
    ("ended", "judged"),
    [
        (report(), {"ttft": True, "tpot": True}),
        (report(ttft_ms=500, tpot_ms=50), {"ttft": True, "tpot": True}),
        (report(ttft_ms=501, tpot_ms=51), {"ttft": False, "tpot": False}),
        (report(tokens_after_first=0), {"ttft": True}),
        (report(outcome=Outcome.REJECTED, status=429, **NOTHING_SENT), {}),
        (report(outcome=Outcome.REJECTED, status=400, **NOTHING_SENT), {}),
        (report(outcome=Outcome.REJECTED, status=503, ended_ms=1, **NOTHING_SENT), {"ttft": False}),
        (report(outcome=Outcome.EXPIRED, status=503, ended_ms=10, **NOTHING_SENT), {"ttft": False}),
        (report(outcome=Outcome.EXPIRED, status=503, cause="deadline", ended_ms=10, **NOTHING_SENT), {}),
        (report(outcome=Outcome.CANCELLED, cause="disconnect", ended_ms=500, **NOTHING_SENT), {}),
        (report(outcome=Outcome.CANCELLED, cause="disconnect", ended_ms=501, **NOTHING_SENT), {"ttft": False}),
        (report(outcome=Outcome.CANCELLED, cause="disconnect"), {"ttft": True, "tpot": True}),
        (report(outcome=Outcome.FAILED, status=500, **NOTHING_SENT), {"ttft": False}),
        (report(outcome=Outcome.FAILED), {"ttft": False, "tpot": False}),
    ],
)
def test_a_request_is_judged_as_decided(ended: RequestReport, judged: dict[str, bool]) -> None:
    assert judge(ended, 0.5, 0.05) == judged
    assert judge(ended, None, None) == {}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def book(clock: Clock, registry: CollectorRegistry) -> SloBook:
    labels = TenantLabels(10)
    labels.sync(["quiet"])
    book = SloBook(registry, labels, clock)
    book.bind("m", "none", "cpu")
    book.sync({"quiet": POLICY})
    return book


def value(registry: CollectorRegistry, name: str, slo: str, lane: str = "fast", **labels: str) -> float | None:
    given = {"lane": lane, "tenant": "quiet", "model": "m", "quantization": "none", "gpu_type": "cpu", "slo": slo, **labels}
    return registry.get_sample_value(f"fairlane_{name}", given)


def test_counters_are_0_from_the_start_for_every_target_and_only_there(book: SloBook, registry: CollectorRegistry) -> None:
    assert [value(registry, "slo_requests_total", slo, outcome=o) for slo in ("ttft", "tpot") for o in ("good", "bad")] == [0, 0, 0, 0]
    assert value(registry, "slo_requests_total", "ttft", lane="slow", outcome="bad") == 0
    assert value(registry, "slo_requests_total", "tpot", lane="slow", outcome="bad") is None
    assert value(registry, "slo_target_seconds", "ttft") == 0.5 and value(registry, "slo_objective_ratio", "ttft") == 0.9
    assert value(registry, "slo_budget_left_ratio", "ttft") == 1


def test_budget_and_burn_rate_follow_from_good_and_bad(book: SloBook, registry: CollectorRegistry, clock: Clock) -> None:
    for late in [False] * 19 + [True]:
        book.note(report(ttft_ms=900 if late else 100))
    book.show()
    assert value(registry, "slo_requests_total", "ttft", outcome="good") == 19
    assert value(registry, "slo_attainment_ratio", "ttft") == 0.95
    assert value(registry, "slo_burn_rate", "ttft", window="5m") == pytest.approx(0.5)  # 5 % missed where 10 % may
    assert value(registry, "slo_budget_left_ratio", "ttft") == pytest.approx(0.5)
    clock.now_s += 400
    view = next(view for view in book.views("quiet") if (view.lane, view.slo) == ("fast", "ttft"))
    assert (view.burn["5m"], view.burn["1h"], view.burn["3d"], view.good, view.bad) == (0, 0.5, 0.5, 19, 1)
    book.show()
    assert [value(registry, "slo_burn_rate", "ttft", window=window) for window in ("5m", "1h")] == [0, pytest.approx(0.5)]
    clock.now_s += 4 * 86_400
    assert book.views("quiet")[0].attainment is None


def test_a_shortage_before_a_lane_was_proposed_counts_in_the_tenant_s_usual_lane(book: SloBook) -> None:
    refused = report(outcome=Outcome.REJECTED, status=503, lane="none", submitted_ns=0, ttft_target_s=None, **NOTHING_SENT)
    assert book.note(refused) == {"ttft": False}
    assert [view.bad for view in book.views() if (view.lane, view.slo) == ("fast", "ttft")] == [1]


def test_series_go_with_the_target_and_with_the_tenant(book: SloBook, registry: CollectorRegistry) -> None:
    book.note(report())
    book.sync({"quiet": TenantPolicy(tenant_id="quiet", ttft_s={"fast": 0.7})})
    assert value(registry, "slo_target_seconds", "ttft") == 0.7
    assert value(registry, "slo_requests_total", "ttft", outcome="good") == 1, "a new target goes on counting"
    assert value(registry, "slo_requests_total", "tpot", outcome="good") is None
    book.sync({})
    book.forget(["quiet"])
    assert not [sample for metric in registry.collect() for sample in metric.samples]
    book.sync({"quiet": POLICY})
    assert value(registry, "slo_requests_total", "ttft", outcome="good") == 0 and value(registry, "slo_budget_left_ratio", "ttft") == 1
