"""What a case measured, tenant by tenant: from outcomes to numbers."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.load import Outcome
from benchmarks.scenarios import quantile

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True, slots=True)
class Sent:
    """One request and its end."""

    tenant: str
    outcome: Outcome
    left: bool = False
    """The client hung up on purpose."""
    is_open: bool = True
    """Of an open loop: only these have tails."""


class TenantReport(msgspec.Struct, frozen=True, kw_only=True):
    """All times in milliseconds. Quantiles are of requests that were answered; attainment is over all that were offered."""

    tenant: str
    tier: str
    offered: int
    answered: int
    left: int
    refused_429: int
    refused_503: int
    failed: int
    """Other errors, and requests that had not ended half a minute after the last was sent."""
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    total_ms: dict[str, float]
    gap_p99_ms: float
    worst_gap_ms: float
    attainment: float
    """Within the tier's TTFT and TPOT targets."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    errors: list[str]


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One case."""

    name: str
    flags: list[str]
    duration_s: float
    tenants: dict[str, TenantReport]
    lag_p99_ms: float
    """How late requests were sent: a report whose lag is not small beside its latencies is void."""
    generator_cpu_share: float
    server: dict[str, float]
    """Of `/metrics` two seconds after the end: KV pages in use, rows running and waiting."""

    @property
    def tokens_per_s(self) -> float:
        """All tenants', prompts and outputs."""
        return sum(tenant.prompt_tokens_per_s + tenant.output_tokens_per_s for tenant in self.tenants.values())

    @property
    def output_tokens_per_s(self) -> float:
        return sum(tenant.output_tokens_per_s for tenant in self.tenants.values())


@dataclass(frozen=True, slots=True)
class Targets:
    """Of a tier, in seconds: what every prompt of the lane it lands in may take."""

    fast_ttft_s: float
    slow_ttft_s: float
    fast_tpot_s: float
    slow_tpot_s: float
    fast_prompt_tokens: int = 512

    def holds(self, outcome: Outcome) -> bool:
        """Whether both were met."""
        is_fast = outcome.prompt_tokens <= self.fast_prompt_tokens
        ttft_s = self.fast_ttft_s if is_fast else self.slow_ttft_s
        tpot_s = self.fast_tpot_s if is_fast else self.slow_tpot_s
        return outcome.ttft_s <= ttft_s and outcome.tpot_s <= tpot_s


TIER_TARGETS = {"interactive": Targets(0.5, 3.0, 0.05, 0.1), "standard": Targets(2.0, 10.0, 0.1, 0.2)}
"""As the seeded tiers have them; a test compares."""


def tenant_report(tenant: str, tier: str, sent: Sequence[Sent], begin_s: float, end_s: float) -> TenantReport:
    """Of one tenant. Tokens a second are those that came between `begin_s` and `end_s`, a prompt's with its first."""
    offered = [each for each in sent if each.is_open] or list(sent)
    answered = [each.outcome for each in offered if not each.outcome.error and not each.left]
    errors = [each.outcome.error for each in offered if each.outcome.error and not each.left]
    refused = {status: sum(f" {status} " in error.partition("\n")[0][:40] for error in errors) for status in (429, 503)}
    gaps = [after - before for outcome in answered for before, after in itertools.pairwise(outcome.token_times_s)]
    targets = TIER_TARGETS.get(tier)
    judged = len(offered) - sum(each.left for each in offered)
    good = [each.outcome for each in sent if not each.outcome.error and each.outcome.token_times_s]
    seconds = max(1e-9, end_s - begin_s)
    return TenantReport(
        tenant=tenant,
        tier=tier,
        offered=len(offered),
        answered=len(answered),
        left=sum(each.left for each in offered),
        refused_429=refused[429],
        refused_503=refused[503],
        failed=len(errors) - sum(refused.values()),
        ttft_ms=_quantiles([outcome.ttft_s for outcome in answered]),
        tpot_ms=_quantiles([outcome.tpot_s for outcome in answered if outcome.completion_tokens > 1]),
        total_ms=_quantiles([outcome.ended_s - outcome.scheduled_s for outcome in answered]),
        gap_p99_ms=1e3 * quantile(gaps, 0.99) if gaps else 0.0,
        worst_gap_ms=1e3 * max(gaps, default=0.0),
        attainment=sum(targets.holds(outcome) for outcome in answered) / max(1, judged) if targets else 0.0,
        prompt_tokens_per_s=sum(outcome.prompt_tokens for outcome in good if begin_s <= outcome.token_times_s[0] <= end_s) / seconds,
        output_tokens_per_s=sum(each.completion_tokens * _share_within(each.token_times_s, begin_s, end_s) for each in good) / seconds,
        errors=sorted({re.sub(r"req_\w+|\d+", "#", error)[:160] for error in errors})[:5],
    )


def _share_within(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    return sum(begin_s <= time_s <= end_s for time_s in times_s) / len(times_s)


def _quantiles(values_s: Sequence[float]) -> dict[str, float]:
    return {name: 1e3 * quantile(values_s, share) for name, share in QUANTILES.items()} if values_s else {}
