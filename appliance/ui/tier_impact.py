"""What a change of a tier would do: whose SLA changes, and which requests of the last hour it would have refused."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.domain.admission.replay import Replay, replay
from appliance.domain.slas.decisions import Sla, contract_warnings, policy_of, sla_with
from appliance.domain.tenants.service import TenantWithTier
from appliance.telemetry.requests import RequestReport
from appliance.ui.parts import House
from engine.wire import TenantPolicy

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What an impact is worked out from, as it was at a moment: a thread may read it."""

    reports: Sequence[RequestReport]
    """Of the last hour, oldest first."""
    spent: Mapping[str, tuple[int, int]]
    """Tokens of the day and the month, by tenant with reports."""
    policies: Mapping[str, TenantPolicy]
    capacity_tpm: int
    now_ns: int
    wall_s: float


def evidence_of(house: House) -> Evidence:
    """Now. Call it on the event loop, which owns what it reads."""
    now_ns, policies = time.monotonic_ns(), house.control.directory.snapshot.policies
    reports = [report for report in house.telemetry.archive if report.received_ns > now_ns - LOOK_BACK_S * 1e9]
    asking = {report.tenant_id for report in reports} & policies.keys()
    standings = {tenant_id: house.admission.use_of(policies[tenant_id]).standing for tenant_id in asking}
    return Evidence(
        reports=reports,
        spent={tenant_id: (standing.today, standing.this_month) for tenant_id, standing in standings.items()},
        policies=policies,
        capacity_tpm=house.control.directory.capacity.tpm,
        now_ns=now_ns,
        wall_s=time.time(),
    )


def impact_of(evidence: Evidence, before: Sla, changes: Mapping[str, Any], tenants: Sequence[TenantWithTier]) -> Impact:
    """`tenants` are those under the tier. With thousands of them it takes long enough for a thread. Raises `Invalid`."""
    after = sla_with(before, changes, param="tier")
    affected = {found.tenant.slug: (found, fields) for found in tenants if (fields := _fields_of(found, changes))}
    by_tenant, policies = _by_tenant(evidence.reports, affected), dict(evidence.policies)
    refused_now, refused_then = 0, Counter[str]()
    for slug, (found, _) in affected.items():
        changed = policy_of(slug, found.tenant.trust_group, found.tier.name, sla_with(after, found.tenant.overrides), 0)
        policies[slug] = changed
        own = by_tenant.get(slug, [])
        if own:
            refused_now += _replayed(evidence, found.policy, own).num_refused
            refused_then += _replayed(evidence, changed, own).refused
    oldest_ns = evidence.reports[0].received_ns if evidence.reports else evidence.now_ns
    return Impact(
        changes=[Changed(name, getattr(before, name), getattr(after, name)) for name in changes],
        affected=[Affected(slug, fields) for slug, (_, fields) in affected.items()],
        untouched=len(tenants) - len(affected),
        requests=sum(map(len, by_tenant.values())),
        span_s=(evidence.now_ns - oldest_ns) / 1e9,
        refused_now=refused_now,
        refused_then=refused_then,
        is_shadow=after.shadow_mode,
        warnings=contract_warnings((policy.committed_tpm for policy in policies.values()), evidence.capacity_tpm),
    )


def _replayed(evidence: Evidence, policy: TenantPolicy, own: Sequence[RequestReport]) -> Replay:
    """One tenant's requests under a policy, shadow mode or not; what they used themselves does not count as used before."""
    tokens = sum(report.billed.tokens for report in own)
    today, this_month = evidence.spent.get(policy.tenant_id, (0, 0))
    strict = msgspec.structs.replace(policy, shadow_mode=False)
    return replay(strict, own, evidence.wall_s, evidence.now_ns, max(0, today - tokens), max(0, this_month - tokens))


def _fields_of(found: TenantWithTier, changes: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in changes if name not in found.tenant.overrides)


def _by_tenant(reports: Iterable[RequestReport], wanted: Mapping[str, object]) -> dict[str, list[RequestReport]]:
    by_tenant: defaultdict[str, list[RequestReport]] = defaultdict(list)
    for report in reports:
        if report.tenant_id in wanted:
            by_tenant[report.tenant_id].append(report)
    return by_tenant
