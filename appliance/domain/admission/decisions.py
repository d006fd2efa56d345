"""May a request enter? Pure: what is known goes in, a named answer comes out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.domain.access.principal import NO_LIMITS, Limits
from engine.wire import TenantPolicy

RETRY_AFTER_S = 1.0
"""A place in flight, or in the queue, comes free about once a request."""
MINUTE_S = 60.0
KEPT_PART = 8
"""One place of so many in the queue is kept for tenants that have few waiting."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Requests in the house: of the asking tenant in flight and waiting, and of all tenants those that wait, for a row or a first step."""

    tenant_in_flight: int
    waiting: int
    tenant_waiting: int = 0
    tenant_request_s: float = 0.0
    """How long a request of it takes; 0: not known."""
    in_flight: int = 0
    request_s: float = 0.0
    """The same of all tenants."""
    whole: TenantPolicy | None = None
    """The tenant's policy before it was divided between processes; None where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What an owner of limits has in use at a moment: of a minute's requests and tokens, of a day's and a month's tokens.

    Reservations of requests in flight count as used.
    """

    owner: str
    limits: Limits
    whole: Limits = NO_LIMITS
    """Where several processes share the limits, all of them; `limits` is then what falls to this one."""
    requests: float = 0.0
    tokens: float = 0.0
    today: int = 0
    this_month: int = 0
    day_left_s: float = 0.0
    month_left_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Admit:
    """It may enter. `is_promised`: and is served even if it turns out late."""

    is_promised: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """It may not. `reason` is the metric's label; `own_limit` tells the tenant's ceiling from our shortage."""

    reason: str
    message: str
    retry_after_s: float
    own_limit: bool


def decide(
    policy: TenantPolicy, occupancy: Occupancy, max_queue_depth: int, standings: Sequence[Standing] = (), tokens: int = 0
) -> Admit | Reject:
    """The tenant's own ceilings first, those of its key with them, then the room there is.

    `tokens` is the most the request may use: its prompts and the longest outputs it may get.
    """
    own = own_limit(policy, occupancy, standings, tokens)
    if own is not None:
        return own
    if _queue_is_full(occupancy, max_queue_depth):
        wait_s = _part_drained_s(max_queue_depth, occupancy.request_s, occupancy.in_flight)
        depth, kept = f"the server's --max-queue-depth is {max_queue_depth}", max_queue_depth // KEPT_PART
        limit = depth if occupancy.waiting >= max_queue_depth else f"{depth}, of which the last {kept} are for tenants with fewer waiting"
        message = f"{counted(occupancy.waiting, 'request')} of all tenants cannot have a row yet, and {limit}: {_come_back(wait_s)}"
        return Reject("queue_full", message, wait_s, own_limit=False)
    return Admit()


def has_full_queue(policy: TenantPolicy, occupancy: Occupancy, max_queue_depth: int) -> bool:
    """The tenant's own, or that of all."""
    return _own_queue_is_full(policy, occupancy) or _queue_is_full(occupancy, max_queue_depth)


def _own_queue_is_full(policy: TenantPolicy, occupancy: Occupancy) -> bool:
    """With nobody waiting at all a request does not queue, so that a limit of 0 means "no queue" and not "no requests"."""
    return policy.max_queued is not None and occupancy.waiting > 0 and occupancy.tenant_waiting >= policy.max_queued


def _queue_is_full(occupancy: Occupancy, max_queue_depth: int) -> bool:
    """The last places are for tenants that have few: a flood fills the others."""
    kept = max_queue_depth // KEPT_PART
    return occupancy.waiting >= max_queue_depth or (occupancy.waiting >= max_queue_depth - kept and occupancy.tenant_waiting >= kept > 0)


def _next_end_s(occupancy: Occupancy) -> float:
    """When one of the tenant's requests may end, if they are as long as those before and evenly spread."""
    return _places_free_s(1, occupancy.tenant_request_s, occupancy.tenant_in_flight)


def _part_drained_s(depth: int, request_s: float, in_flight: int) -> float:
    """When a part of a full queue may be gone: one place would be taken before a client is back."""
    return _places_free_s(max(1, depth // KEPT_PART), request_s, in_flight)


def _places_free_s(places: int, request_s: float, in_flight: int) -> float:
    return max(RETRY_AFTER_S, places * request_s / max(1, in_flight))


def own_limit(policy: TenantPolicy, occupancy: Occupancy, standings: Sequence[Standing], tokens: int) -> Reject | None:
    """The first own ceiling in the way. Budgets come first: a client that waits for a rate would wait in vain."""
    for check in (_over_budget, _over_requests):
        for standing in standings:
            if rejected := check(standing):
                return rejected
    for standing in standings:
        if rejected := _over_tokens(standing, tokens):
            return rejected
    if policy.max_concurrency is not None and occupancy.tenant_in_flight >= policy.max_concurrency:
        told = told_limit(policy.max_concurrency, occupancy.whole and occupancy.whole.max_concurrency)
        has, wait_s = counted(occupancy.tenant_in_flight, "request"), _next_end_s(occupancy)
        message = f"tenant {policy.tenant_id!r} has {has} in flight, and its max_concurrency is {told}: {_come_back(wait_s)}"
        return Reject("concurrency", message, wait_s, own_limit=True)
    if policy.max_queued is not None and _own_queue_is_full(policy, occupancy):
        told = told_limit(policy.max_queued, occupancy.whole and occupancy.whole.max_queued)
        has = counted(occupancy.tenant_waiting, "request")
        wait_s = _part_drained_s(policy.max_queued, occupancy.tenant_request_s, occupancy.tenant_in_flight)
        message = f"tenant {policy.tenant_id!r} has {has} that cannot have a row yet, and its max_queued is {told}: {_come_back(wait_s)}"
        return Reject("queue_full", message, wait_s, own_limit=True)
    return None


def _over_budget(standing: Standing) -> Reject | None:
    """A budget is spent when use and reservations reach it; the last request may overdraw it, so the overdraft is one request's."""
    for name, budget, used, left_s in (
        ("day", standing.limits.tokens_per_day, standing.today, standing.day_left_s),
        ("month", standing.limits.tokens_per_month, standing.this_month, standing.month_left_s),
    ):
        if budget is not None and used >= budget:
            message = f"{standing.owner} has used its budget of {budget} tokens a {name} (UTC); the next begins in {duration(left_s)}"
            return Reject("budget", message, left_s, own_limit=True)
    return None


def _over_requests(standing: Standing) -> Reject | None:
    limit = standing.limits.rpm
    if limit is None or standing.requests + 1 <= limit:
        return None
    if limit == 0:
        return _no_part("rate_requests", f"{standing.owner}'s limit of {counted(standing.whole.rpm or 0, 'request')} a minute")
    wait_s = (standing.requests + 1 - limit) * MINUTE_S / limit
    told = told_limit(limit, standing.whole.rpm, "request")
    return Reject("rate_requests", f"{standing.owner} is at its limit of {told}: {_come_back(wait_s)}", wait_s, own_limit=True)


def _over_tokens(standing: Standing, tokens: int) -> Reject | None:
    """A request larger than a whole minute's allowance enters when nothing is in use, and the next ones wait until it is paid off."""
    limit = standing.limits.tpm
    if limit == 0:
        return _no_part("rate_tokens", f"{standing.owner}'s limit of {counted(standing.whole.tpm or 0, 'token')} a minute")
    room = max(limit or 0, tokens)
    if limit is None or standing.tokens + tokens <= room:
        return None
    wait_s = (standing.tokens + tokens - room) * MINUTE_S / limit
    in_use = math.ceil(standing.tokens)
    told = told_limit(limit, standing.whole.tpm, "token")
    message = f"{standing.owner} is at its limit of {told}: {in_use} are in use, this request may use {tokens}; {_come_back(wait_s)}"
    return Reject("rate_tokens", message, wait_s, own_limit=True)


def _no_part(reason: str, limit: str) -> Reject:
    """Several processes share the limit, and none of it falls to this one (`peers`)."""
    return Reject(reason, f"no part of {limit} falls to this process now: try again shortly", RETRY_AFTER_S, own_limit=True)


def told_limit(part: int, whole: int | None, per_minute: str = "") -> str:
    """A limit as a refusal tells it: the one that was set, and where several processes share it, the part that this one has.
    `per_minute`: what it counts, if it is a rate."""
    limit = part if whole is None else whole
    words = f"{counted(limit, per_minute)} a minute" if per_minute else str(limit)
    return words if whole is None or whole == part else f"{words} ({part} of them at this process)"


def counted(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _come_back(wait_s: float) -> str:
    """What a refused client can do."""
    return f"come back in {duration(wait_s)}"


def rate_headers(standings: Sequence[Standing]) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*` headers: of each kind the limit with the least left; nothing where there is no limit."""
    headers: dict[str, str] = {}
    for kind, read in (("requests", lambda s: (s.limits.rpm, s.requests)), ("tokens", lambda s: (s.limits.tpm, s.tokens))):
        limited = [(limit, used) for limit, used in map(read, standings) if limit is not None]
        if limited:
            limit, used = min(limited, key=lambda pair: pair[0] - pair[1])
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(limit - used)))
            headers[f"x-ratelimit-reset-{kind}"] = duration(used * MINUTE_S / max(1, limit))
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes a time: `6m0s`, `1.5s`, `20ms`."""
    if seconds < 1:
        return f"{math.ceil(round(seconds * 1000, 6))}ms"  # 0.8 - 0.1 is a little more than 0.7
    if seconds < 60:
        return f"{math.ceil(seconds * 100) / 100:g}s"
    whole = math.ceil(seconds)
    hours = f"{whole // 3600}h" if whole >= 3600 else ""
    return f"{hours}{whole % 3600 // 60}m{whole % 60}s"
