"""What a change of a tier would do: whose SLA changes, and which requests of the last hour it would have refused."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.domain.admission.replay import replay
from appliance.domain.slas.decisions import Sla, contract_warnings, policy_of, sla_with
from appliance.domain.tenants.service import TenantWithTier
from appliance.telemetry.requests import RequestReport
from appliance.ui.parts import House

LOOK_BACK_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Changed:
    """A field of the tier."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Affected:
    """A tenant, and what changes for it: fields that it does not have of its own."""

    slug: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What an operator should know before it is applied."""

    changes: list[Changed]
    affected: list[Affected]
    untouched: int
    """Tenants under the tier for which nothing changes."""
    requests: int
    """Of the affected tenants, remembered of the last hour."""
    span_s: float
    """How far back that goes."""
    refused_now: int
    """Of them, by the present limits."""
    refused_then: Counter[str]
    """Of them, by the changed limits, by reason."""
    is_shadow: bool
    warnings: list[str]


def impact_of(house: House, before: Sla, changes: Mapping[str, Any], tenants: Sequence[TenantWithTier]) -> Impact:
    """`tenants` are those under the tier. Raises `Invalid` for a value that is none."""
    after = sla_with(before, changes, param="tier")
    changed = [Changed(name, getattr(before, name), getattr(after, name)) for name in changes]
    affected = {found.tenant.slug: (found, fields) for found in tenants if (fields := _fields_of(found, changes))}
    now_ns = time.monotonic_ns()
    reports = [report for report in house.telemetry.archive if report.received_ns > now_ns - LOOK_BACK_S * 1e9]
    by_tenant = _by_tenant(reports, affected)
    policies = dict(house.control.directory.snapshot.policies)
    refused_now, refused_then, num_requests = 0, Counter[str](), 0
    for slug, (found, _) in affected.items():
        changed_policy = policy_of(slug, found.tenant.trust_group, found.tier.name, sla_with(after, found.tenant.overrides), 0)
        own, use = by_tenant.get(slug, []), house.admission.use_of(found.policy).standing
        tokens = sum(report.prompt_tokens + report.generated_tokens for report in own)
        spent = (max(0, use.today - tokens), max(0, use.this_month - tokens))
        num_requests += len(own)
        if own:
            refused_now += replay(found.policy, own, time.time(), now_ns, *spent).num_refused
            refused_then += replay(msgspec.structs.replace(changed_policy, shadow_mode=False), own, time.time(), now_ns, *spent).refused
        policies[slug] = changed_policy
    return Impact(
        changes=changed,
        affected=[Affected(slug, fields) for slug, (_, fields) in affected.items()],
        untouched=len(tenants) - len(affected),
        requests=num_requests,
        span_s=min(LOOK_BACK_S, (now_ns - reports[0].received_ns) / 1e9) if reports else 0.0,
        refused_now=refused_now,
        refused_then=refused_then,
        is_shadow=after.shadow_mode,
        warnings=contract_warnings(policies.values(), house.control.directory.capacity_tpm),
    )


def _fields_of(found: TenantWithTier, changes: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in changes if name not in found.tenant.overrides)


def _by_tenant(reports: Iterable[RequestReport], wanted: Mapping[str, object]) -> dict[str, list[RequestReport]]:
    by_tenant: defaultdict[str, list[RequestReport]] = defaultdict(list)
    for report in reports:
        if report.tenant_id in wanted:
            by_tenant[report.tenant_id].append(report)
    return by_tenant
