"""Which lane a request is proposed for. The scheduler decides for good, once it knows what the prefix cache holds."""

from collections.abc import Collection
from typing import Literal

from appliance.errors import Forbidden
from engine.wire import TenantPolicy

type Lane = Literal["fast", "slow", "batch"]
type ServiceTier = Literal["auto", "default", "priority", "flex"]

LANES: tuple[Lane, ...] = ("fast", "slow", "batch")
"""In the order in which one stands in for a lane that a tier or key does not allow."""
FAST_PROMPT_TOKENS = 512
"""Longest prompt of the fast lane."""


def propose_lane(
    policy: TenantPolicy, key_lanes: Collection[str], *, streamed: bool, prompt_tokens: int, service_tier: ServiceTier
) -> Lane:
    """The lane a request asks for, within what its tier and key allow.

    `auto` and `default` take the tier's lane, or fast for a short streamed prompt and slow for another; `priority` does
    not ask whether it streams; `flex` is batch.

    Raises:
        Forbidden: the lane was asked for by `service_tier`, and tier or key do not allow it.
    """
    permitted = set(policy.lanes) & set(key_lanes or LANES)
    allowed: list[Lane] = [lane for lane in LANES if lane in permitted]
    short = prompt_tokens <= FAST_PROMPT_TOKENS
    interactive: Lane = "fast" if short else "slow"
    match service_tier:
        case "flex":
            asked: Lane = "batch"
        case "priority":
            asked = interactive
        case _:
            by_name: dict[str, Lane] = {lane: lane for lane in LANES}
            asked = by_name.get(policy.default_lane) or (interactive if streamed else "slow")
    if asked in allowed:
        return asked
    if allowed and service_tier in ("auto", "default"):
        return allowed[0]
    if service_tier == "priority" and "slow" in allowed:
        return "slow"
    raise Forbidden(
        f"service_tier {service_tier!r} means lane {asked!r}; this key may use {', '.join(allowed) or 'no lane'}",
        param="service_tier",
        code="lane_not_allowed",
    )
