"""What a simulation measured: tails and attainment by tenant, and how fairly work was shared."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from engine.scheduling.simulator import Served
from engine.scheduling.tenants import KV_READS_PER_TOKEN
from engine.wire import Submit, TenantPolicy

SHARES = (0.5, 0.99, 0.999)
COUNTED_PART = 0.9
"""Of a trace's time: who comes later can not be done when the last one comes."""


class Tail(msgspec.Struct, frozen=True):
    """Quantiles in milliseconds."""

    p50_ms: float
    p99_ms: float
    p999_ms: float


class TenantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tenant, or of all together."""

    tenant: str
    requests: int
    ttft: Tail
    tpot: Tail
    worst_gap_ms: float
    expired: int
    """Requests that waited too long for their first step and ended unserved. Quantiles are of the others."""
    attainment: float
    """Share of all requests whose TTFT and TPOT were within their targets."""
    tokens: int
    """Computed for it: prompts and outputs."""
    served_share: float
    """Of the tokens of its requests that came in the first nine tenths of the trace, those of requests that ended before the last one
    came."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    total: TenantFigures
    tenants: list[TenantFigures]
    virtual_s: float
    """From the first request's arrival to the last token."""
    steps: int
    tokens_per_s: float
    """Prompts and outputs."""
    jain_index: float
    """Of the tenants' served shares: 1 when all got the same part of what they asked for, 1/n when one got everything."""
    vtc_gap: float
    """Largest difference of two waiting tenants' virtual counters."""
    vtc_bound: float
    """What all rows can owe: rows times the costliest request, over the smallest weight."""

    @property
    def vtc_ratio(self) -> float:
        """Never above 1 where the counters decide."""
        return self.vtc_gap / self.vtc_bound if self.vtc_bound else 0.0


@dataclass(slots=True)
class _Tenant:
    ttft_ns: array[int] = field(default_factory=lambda: array("q"))
    tpot_ns: array[float] = field(default_factory=lambda: array("d"))
    worst_gap_ns: int = 0
    expired: int = 0
    good: int = 0
    tokens: int = 0
    tokens_counted: int = 0
    tokens_in_time: int = 0


class Collector:
    """Takes in each request when it ends, and keeps two numbers of it, 16 bytes: quantiles are exact, and a million requests small."""

    def __init__(self, policies: dict[str, TenantPolicy]) -> None:
        self.ended = 0
        self.costliest = 0.0
        self._policies = policies
        self._tenants: dict[str, _Tenant] = {name: _Tenant() for name in policies}

    def take(self, served: Served, last_arrival_ns: int) -> None:
        """One request ended. `last_arrival_ns`: of the whole trace."""
        submit = served.submit
        tenant = self._tenants.setdefault(submit.tenant_id, _Tenant())
        self.ended += 1
        asked = len(submit.prompt) + submit.sampling.max_tokens
        is_counted = submit.received_ns <= COUNTED_PART * last_arrival_ns
        tenant.tokens_counted += asked * is_counted
        if not served.token_times_ns:
            tenant.expired += 1
            return
        tenant.ttft_ns.append(served.ttft_ns)
        if len(served.token_times_ns) > 1:
            tenant.tpot_ns.append(served.tpot_ns)
        tenant.worst_gap_ns = max(tenant.worst_gap_ns, served.worst_gap_ns)
        tenant.good += is_good(served, self._policies.get(submit.tenant_id))
        tenant.tokens += asked
        tenant.tokens_in_time += asked * (is_counted and served.ended_ns <= last_arrival_ns)
        self.costliest = max(self.costliest, cost_of_request(submit))

    def tenants(self) -> list[TenantFigures]:
        """Who sent most comes first."""
        found = [_figures(name, [tenant]) for name, tenant in self._tenants.items() if tenant.ttft_ns or tenant.expired]
        return sorted(found, key=lambda figures: (-figures.requests, figures.tenant))

    def total(self) -> TenantFigures:
        return _figures("all", list(self._tenants.values()))


def is_good(served: Served, policy: TenantPolicy | None) -> bool:
    """Within the targets of its lane; where there is no target, in time."""
    if policy is None:
        return True
    lane = served.lane
    ttft_s, tpot_s = policy.ttft_s.get(lane, math.inf), policy.tpot_s.get(lane, math.inf)
    return served.ttft_ns <= ttft_s * 1e9 and served.tpot_ns <= tpot_s * 1e9


def cost_of_request(submit: Submit) -> float:
    """Virtual tokens at most: every token computed, every context read."""
    length = len(submit.prompt) + submit.sampling.max_tokens
    return length + length * length / (2 * KV_READS_PER_TOKEN)


def jain_index(values: Sequence[float]) -> float:
    """Jain, Chiu and Hawe, 1984."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank; 0 of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _figures(name: str, parts: Iterable[_Tenant]) -> TenantFigures:
    parts = list(parts)
    requests = sum(len(part.ttft_ns) + part.expired for part in parts)
    counted = sum(part.tokens_counted for part in parts)
    return TenantFigures(
        tenant=name,
        requests=requests,
        ttft=_tail(part.ttft_ns for part in parts),
        tpot=_tail(part.tpot_ns for part in parts),
        worst_gap_ms=max((part.worst_gap_ns for part in parts), default=0) / 1e6,
        expired=sum(part.expired for part in parts),
        attainment=sum(part.good for part in parts) / max(1, requests),
        tokens=sum(part.tokens for part in parts),
        served_share=sum(part.tokens_in_time for part in parts) / counted if counted else 1.0,
    )


def _tail(parts: Iterable[array[int] | array[float]]) -> Tail:
    ordered = sorted(chain.from_iterable(parts))
    return Tail(*(round(quantile(ordered, share) / 1e6, 3) for share in SHARES))
