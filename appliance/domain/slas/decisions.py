"""What an SLA is, and how a tier's SLA and a tenant's overrides become the one `TenantPolicy`. Pure."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from appliance.choices import describe
from appliance.errors import Invalid
from appliance.settings import MAX_TENANT_WEIGHT
from engine.wire import DEFAULT_OBJECTIVE, TenantPolicy

Lane = Literal["fast", "slow", "batch"]
Task = Literal["extract", "chat", "reason", "other"]
OutputCapMode = Literal["fill", "clamp", "refuse"]
MAX_COUNT = 2**53
"""JSON readers keep integers exact up to here."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1)]
MAX_MS = 86_400_000
"""A day: no target and no wait is longer."""
Milliseconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_MS)]
Objective = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Sla(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a tier. A tenant's overrides are some of these; one that is a table replaces the whole table.

    null is "no limit" or "no target"; tokens count prompt plus output.
    """

    weight: Annotated[float, msgspec.Meta(gt=0, le=MAX_TENANT_WEIGHT)] = 1.0
    """Share of the engine against other tenants."""
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    """Higher goes first where two tenants tie."""
    lanes: tuple[Lane, ...] = ("fast", "slow", "batch")
    """Lanes the tenant may use."""
    default_lane: Literal["auto", "fast", "slow", "batch"] = "auto"
    """`auto`: streamed short prompts go to fast, the rest to slow."""
    ttft_ms: Milliseconds | dict[Lane, Milliseconds] | None = None
    """Target of the time to the first token: a number for all lanes, or one by lane."""
    tpot_ms: Milliseconds | dict[Lane, Milliseconds] | None = None
    """Target of the time per output token, likewise."""
    objective: Objective | dict[Lane, Objective] = DEFAULT_OBJECTIVE
    """Share of requests that must meet the targets: a number for all lanes, or one by lane (0.99 for those left out)."""
    committed_tpm: Positive | None = None
    """The contract: tokens a minute that are always admitted."""
    tpm: Positive | None = None
    """Ceiling: tokens a minute."""
    rpm: Positive | None = None
    """Ceiling: inference requests a minute."""
    max_concurrency: Positive | None = None
    """Ceiling: requests in flight."""
    max_queued: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)] | None = None
    """Ceiling: requests waiting."""
    queue_ttl_ms: Annotated[int, msgspec.Meta(ge=1, le=MAX_MS)] | None = None
    """Longest wait in the queue."""
    max_context: Positive | None = None
    """Longest prompt plus output."""
    output_caps: Positive | dict[Task, Positive] | None = None
    """Most output tokens: a number for all tasks, or one by task; a task without one has the built-in cap."""
    output_cap_mode: OutputCapMode = "fill"
    """What a cap does to an explicit `max_tokens` above it: `fill` nothing unless the request names its task, `clamp` lowers it,
    `refuse` answers 400. Where there is no `max_tokens`, the cap is taken in any mode."""
    kv_reserve: Ratio = 0.0
    """Share of the KV pool kept for the tenant."""
    kv_cap: Ratio = 1.0
    """Most of the KV pool it may hold."""
    tokens_per_day: Positive | None = None
    """Budget a day (UTC)."""
    tokens_per_month: Positive | None = None
    """Budget a month (UTC)."""
    shadow_mode: bool = False
    """Count what would be refused, refuse nothing."""


SLA_FIELDS = tuple(field.name for field in msgspec.structs.fields(Sla))
UNLIMITED: dict[str, Any] = {"max_concurrency": None, "max_queued": None, "queue_ttl_ms": None}
"""Overrides that lift all ceilings of tier `standard`; tenant `default`, which owns the first key, has them."""

SEED_TIERS: dict[str, Sla] = {
    "interactive": Sla(
        weight=4.0,
        priority=10,
        ttft_ms={"fast": 500.0, "slow": 3_000.0, "batch": 60_000.0},
        tpot_ms={"fast": 50.0, "slow": 100.0},
        max_concurrency=64,
        max_queued=128,
        queue_ttl_ms=10_000,
        kv_reserve=0.05,
    ),
    "standard": Sla(
        weight=1.0,
        ttft_ms={"fast": 2_000.0, "slow": 10_000.0, "batch": 120_000.0},
        tpot_ms={"fast": 100.0, "slow": 200.0},
        objective=0.95,
        max_concurrency=64,
        max_queued=256,
        queue_ttl_ms=60_000,
    ),
    "batch": Sla(
        weight=0.5,
        priority=-10,
        lanes=("batch",),
        default_lane="batch",
        objective=0.9,
        max_concurrency=256,
        max_queued=4_096,
        queue_ttl_ms=3_600_000,
        kv_cap=0.8,
    ),
}


def sla_with(base: Sla, overrides: Mapping[str, Any], *, param: str = "overrides") -> Sla:
    """A tier's SLA with some fields replaced. Raises `Invalid`: unknown field, wrong type or bound."""
    unknown = [name for name in overrides if name not in SLA_FIELDS]
    if unknown:
        raise Invalid(f"{param}.{unknown[0][:64]} is no field of an SLA; the fields are {', '.join(SLA_FIELDS)}", param=param)
    try:
        return msgspec.convert({**msgspec.to_builtins(base), **overrides}, Sla)
    except msgspec.ValidationError as error:
        reason, where = describe(str(error), Sla)
        reason = f"{reason[:1].lower()}{reason[1:]}"
        if reason.endswith("got `null`"):
            reason = "it can not be null, which lifts limits and targets: leave it out"
        raise Invalid(f"{f'{param}.{where}'.rstrip('.')}: {reason}", param=param) from error


def stored_sla(base: Sla, fields: Mapping[str, Any]) -> tuple[Sla, list[str]]:
    """`base` with the stored fields, and the names of those that no SLA may have: one unreadable value must not keep anybody from
    reading the others, or from putting it right."""
    with contextlib.suppress(Invalid):
        return sla_with(base, fields), []
    sla, unreadable = base, []
    for name, value in fields.items():
        try:
            sla = sla_with(sla, {name: value})
        except Invalid:
            unreadable.append(name)
    return sla, unreadable


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Fields that can not hold together, and why."""

    fields: tuple[str, ...]
    message: str


def contradictions(sla: Sla) -> list[Contradiction]:
    """Where the fields of an SLA contradict each other."""
    found: list[Contradiction] = []
    if not sla.lanes:
        found.append(Contradiction(("lanes",), "lanes is empty: allow at least one of fast, slow, batch"))
    elif sla.default_lane != "auto" and sla.default_lane not in sla.lanes:
        message = f"default_lane is {sla.default_lane!r}, which lanes ({', '.join(sla.lanes)}) does not allow"
        found.append(Contradiction(("default_lane", "lanes"), message))
    if sla.kv_reserve > sla.kv_cap:
        found.append(Contradiction(("kv_reserve", "kv_cap"), f"kv_reserve is {sla.kv_reserve}, above kv_cap ({sla.kv_cap})"))
    if sla.tpm is not None and sla.committed_tpm is not None and sla.committed_tpm > sla.tpm:
        message = f"committed_tpm is {sla.committed_tpm}, above the ceiling tpm ({sla.tpm})"
        found.append(Contradiction(("committed_tpm", "tpm"), message))
    return found


def check_sla(sla: Sla, param: str = "overrides") -> None:
    """Raises `Invalid` where fields contradict each other. A tenant's may come from its tier: its `overrides` need not hold them."""
    whose = "the tenant's SLA (its tier's fields with its overrides)" if param == "overrides" else param
    for contradiction in contradictions(sla):
        raise Invalid(f"{whose}: {contradiction.message}", param=param)


def contract_warnings(contracts: Iterable[int | None], capacity_tpm: int) -> list[str]:
    """What to tell who changes contracts, given the `committed_tpm` of all tenants: that together they exceed what was measured, or that
    nothing was yet (0)."""
    committed = sum(contract or 0 for contract in contracts)
    if committed <= capacity_tpm:
        return []
    if not capacity_tpm:
        return [
            (
                f"the contracts (committed_tpm) of all tenants add up to {committed} tokens a minute; whether that can be done"
                " is not known, because a server measures it when it first gets ready: look again then"
            )
        ]
    return [
        (
            f"the contracts (committed_tpm) of all tenants add up to {committed} tokens a minute, {committed - capacity_tpm} more than the"
            f" {capacity_tpm} that the servers on this database were measured to do together: when all use them at once, none can"
            " be kept whole"
        )
    ]


def policy_of(tenant_id: str, trust_group: str, tier: str, sla: Sla, version: int) -> TenantPolicy:
    """An effective SLA as the scheduler and the admission read it: seconds, tables by lane and task."""
    return TenantPolicy(
        tenant_id=tenant_id,
        tier=tier,
        trust_group=trust_group,
        weight=sla.weight,
        priority=sla.priority,
        lanes=sla.lanes,
        default_lane=sla.default_lane,
        ttft_s=_seconds_by_lane(sla.ttft_ms, sla.lanes),
        tpot_s=_seconds_by_lane(sla.tpot_ms, sla.lanes),
        objectives=_objectives_by_lane(sla.objective, sla.lanes),
        committed_tpm=sla.committed_tpm,
        tpm=sla.tpm,
        rpm=sla.rpm,
        max_concurrency=sla.max_concurrency,
        max_queued=sla.max_queued,
        queue_ttl_s=None if sla.queue_ttl_ms is None else sla.queue_ttl_ms / 1000,
        max_context_tokens=sla.max_context,
        output_caps_tokens=_caps_by_task(sla.output_caps),
        output_cap_mode=sla.output_cap_mode,
        kv_reserve_ratio=sla.kv_reserve,
        kv_cap_ratio=sla.kv_cap,
        tokens_per_day=sla.tokens_per_day,
        tokens_per_month=sla.tokens_per_month,
        shadow_mode=sla.shadow_mode,
        version=version,
    )


def _seconds_by_lane(target: float | Mapping[Lane, float] | None, lanes: tuple[Lane, ...]) -> dict[str, float]:
    if target is None:
        return {}
    by_lane = target if isinstance(target, Mapping) else dict.fromkeys(lanes, target)
    return {lane: ms / 1000 for lane, ms in by_lane.items()}


def _objectives_by_lane(objective: float | Mapping[Lane, float], lanes: tuple[Lane, ...]) -> dict[str, float]:
    if isinstance(objective, Mapping):
        return {lane: objective.get(lane, DEFAULT_OBJECTIVE) for lane in lanes}
    return dict.fromkeys(lanes, objective)


def _caps_by_task(caps: int | Mapping[Task, int] | None) -> dict[str, int]:
    if caps is None:
        return {}
    tasks: tuple[Task, ...] = ("extract", "chat", "reason", "other")
    return {**caps} if isinstance(caps, Mapping) else {**dict.fromkeys(tasks, caps)}
