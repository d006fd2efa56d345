"""How long admission takes to decide, with the load of many tenants to look at. The real objects, in this process, no socket."""

import time
from dataclasses import dataclass

from appliance.domain.access.principal import Principal, Scope
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.load_view import load_view_of
from appliance.domain.admission.prediction import Ask, Predictor
from appliance.domain.admission.service import Admission
from appliance.domain.lanes.decisions import LANES
from appliance.errors import ApplianceError
from benchmarks.scenarios import quantile
from engine.wire import Drain, EngineConfig, Load, TenantLoad, TenantPolicy

WAITING_TOKENS = 6_000
DRAIN = Drain(prefill_tokens_per_s=3_000.0, rows_per_s=10.0, step_s=0.03, free_rows=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """CPU milliseconds of one kind of decision; `outcome` is `admitted` or the reason of the refusal."""

    outcome: str
    tenants: int
    p50_ms: float
    p99_ms: float


def crowded(num_tenants: int) -> Load:
    """An engine at which so many tenants wait, each in one of the lanes."""
    tenants = tuple(TenantLoad(f"tenant-{n}", LANES[n % 3], 1, 1, WAITING_TOKENS, 1.0, float(n % 50)) for n in range(num_tenants))
    return Load(1, 1, {"slow": 16}, {"slow": num_tenants}, 1, pages_free=10, pages_used=500, pages_cached=2, tenants=tenants, drain=DRAIN)


def callers() -> dict[str, Principal]:
    """A tenant for each kind of decision, by the outcome that it is expected to have."""
    easy = TenantPolicy(tenant_id="newcomer", ttft_s={"slow": 60.0}, queue_ttl_s=600.0, max_concurrency=None)
    capped = TenantPolicy(tenant_id="tenant-1", max_concurrency=0)
    spent = TenantPolicy(tenant_id="tenant-2", rpm=0)
    late = TenantPolicy(tenant_id="tenant-4", ttft_s={"slow": 0.5}, queue_ttl_s=10.0, max_concurrency=None)
    found = {"admitted": easy, "concurrency": capped, "rate_requests": spent, "predicted_late": late}
    return {
        outcome: Principal(policy.tenant_id, f"key-{outcome}", frozenset({Scope.INFERENCE}), policy, frozenset(), frozenset())
        for outcome, policy in found.items()
    }


def outcome_of(admission: Admission, caller: Principal, number: int) -> str:
    """Ask once, as `InferenceService` does, and leave at once where it is admitted."""
    ask = Ask(lane="slow", prompt_tokens=1_500, rows=1, fingerprint=number)
    try:
        admission.enter(caller, 1_600, ask).close(refused=True)
    except ApplianceError as error:
        return str(getattr(error, "reason", error.code))
    return "admitted"


def decide_often(num_tenants: int, calls: int = 400) -> list[Decisions]:
    """Times of each kind of decision, each on a report that came in just before."""
    view, load = load_view_of(EngineConfig()), crowded(num_tenants)
    gate = Gate()
    gate.open()
    found: list[Decisions] = []
    for expected, caller in callers().items():
        admission = Admission(gate, 100_000, predictor=Predictor(dict.fromkeys(LANES, view)))
        times_s: list[float] = []
        for number in range(calls):
            view.note_load(load)
            began_s = time.thread_time()
            outcome = outcome_of(admission, caller, number)
            times_s.append(time.thread_time() - began_s)
            assert outcome == expected, f"{outcome} where {expected} was meant"
        found.append(
            Decisions(outcome=expected, tenants=num_tenants, p50_ms=1e3 * quantile(times_s, 0.5), p99_ms=1e3 * quantile(times_s, 0.99))
        )
    return found
