"""How limits are divided between serving processes. Pure.

A plan gives each of its members an interval of every limit: even ones, and of tenants that are at their limits somewhere, intervals as
wide as each member's demand. Intervals of one plan do not overlap, so the parts never add up to more than the limit.

From one plan to the next, everybody first takes only what it has under both (which overlaps with nobody's), says so with its next beat,
and takes the rest of its new part when all others have said so. There is no next plan before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from appliance.domain.access.principal import Limits, Principal

SCALE = 1_000
"""A whole limit."""
LEAST = 50
"""Of the scale, what members without demand have together: what comes to them is seen, and moves the parts."""
LEAST_MOVE = 100
"""A part that would move by less stays."""
MAX_TENANTS = 100
"""Tenants with parts by demand; the most demanding ones."""
IDLE = 0.5
"""Demand below this is none."""

type Wants = Mapping[str, float]
"""Demand of tenants at one process of late, whatever became of it, in any unit that all processes share."""


@dataclass(frozen=True, slots=True)
class Member:
    """A serving process as the database has it."""

    id: str
    joined: int
    beats: int
    plan: int
    """Number of the newest plan that it heeds."""
    wants: Wants
    capacity_tpm: int = 0
    """Tokens a minute that it was measured to do; 0: not yet."""


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """Who has which part. The first plan of all has no members."""

    number: int = 0
    members: tuple[str, ...] = ()
    bounds: dict[str, tuple[int, ...]] = {}
    """By tenant, where each member's interval ends, in the order of the members; a tenant that is not here is divided evenly."""


NO_PLAN = Plan()


@dataclass(frozen=True, slots=True)
class Share:
    """An interval of every limit of a tenant, from and up to, of `SCALE`."""

    begin: int = 0
    end: int = SCALE
    processes: int = 1

    def of(self, limit: int | None) -> int | None:
        """This process's part of a limit: the units whose middles lie in the interval. None is no limit."""
        if limit is None:
            return None
        return _units_until(limit, self.end) - _units_until(limit, self.begin)

    @property
    def ratio(self) -> float:
        return (self.end - self.begin) / SCALE

    @property
    def even_ratio(self) -> float:
        """What each process would have without looking at demand."""
        return 1 / self.processes

    def within(self, other: "Share") -> "Share":
        """What is in both."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return replace(self, begin=begin, end=max(begin, end))


WHOLE = Share()


def share_in(plan: Plan, own_id: str, tenant_id: str) -> Share:
    """A member's part of a tenant's limits under a plan; nothing where it is no member."""
    number = len(plan.members)
    if own_id not in plan.members:
        return Share(0, 0, max(2, number))
    rank = plan.members.index(own_id)
    bounds = plan.bounds.get(tenant_id) or even_bounds(number)
    return Share(bounds[rank - 1] if rank else 0, bounds[rank], number)


def next_plan(plan: Plan, members: Sequence[Member]) -> Plan | None:
    """The plan to follow this one; None while it holds, or while somebody does not heed it yet."""
    if any(member.plan != plan.number for member in members if member.id in plan.members):
        return None
    by_age = sorted(members, key=lambda member: member.joined)
    ids = tuple(member.id for member in by_age)
    before = plan.bounds if ids == plan.members else {}
    bounds = _bounds_by_demand([member.wants for member in by_age], before)
    return None if ids == plan.members and bounds == plan.bounds else Plan(plan.number + 1, ids, bounds)


def even_bounds(number: int) -> tuple[int, ...]:
    return tuple(SCALE * rank // number for rank in range(1, number + 1))


def _bounds_by_demand(wants: Sequence[Wants], before: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """For each tenant that some process names. Where not all have told their demand yet, it stays as it is."""
    named = {tenant_id for each in wants for tenant_id in each}
    total = {tenant_id: sum(each.get(tenant_id, 0.0) for each in wants) for tenant_id in named}
    bounds: dict[str, tuple[int, ...]] = {}
    for tenant_id in sorted(named, key=lambda tenant_id: (-total[tenant_id], tenant_id))[:MAX_TENANTS]:
        present = before.get(tenant_id, even_bounds(len(wants)))
        if not total[tenant_id]:
            continue  # nobody asks for it any more
        if all(tenant_id in each for each in wants):
            wanted = _by_weight([each[tenant_id] for each in wants])
            if max(abs(a - b) for a, b in zip(wanted, present, strict=True)) >= LEAST_MOVE:
                present = wanted
        if present != even_bounds(len(wants)):
            bounds[tenant_id] = present
    return bounds


def _by_weight(weights: Sequence[float]) -> tuple[int, ...]:
    least, total, until = LEAST / len(weights), sum(weights), 0.0
    bounds: list[int] = []
    for weight in weights:
        until += least + (SCALE - LEAST) * weight / total
        bounds.append(round(until))
    return (*bounds[:-1], SCALE)


def _units_until(limit: int, position: int) -> int:
    return (2 * limit * position + SCALE) // (2 * SCALE)


def with_share(principal: Principal, share: Share) -> Principal:
    """The caller under this process's part of its ceilings. Budgets of a day and a month are not divided: their use is shared."""
    if share.processes == 1:
        return principal
    policy, limits = principal.policy, principal.limits
    part = msgspec.structs.replace(
        policy,
        rpm=share.of(policy.rpm),
        tpm=share.of(policy.tpm),
        committed_tpm=share.of(policy.committed_tpm),
        max_concurrency=share.of(policy.max_concurrency),
        max_queued=share.of(policy.max_queued),
    )
    own = Limits(share.of(limits.rpm), share.of(limits.tpm), limits.tokens_per_day, limits.tokens_per_month)
    return replace(principal, policy=part, limits=own, ratio=share.ratio, whole=principal, even_ratio=share.even_ratio)
