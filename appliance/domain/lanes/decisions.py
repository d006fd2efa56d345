"""Which lane a request is proposed for. The scheduler decides for good, once it knows what the prefix cache holds."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from appliance.errors import Forbidden, Invalid
from engine.wire import TenantPolicy

type Lane = Literal["fast", "slow", "batch"]
type ServiceTier = Literal["auto", "default", "priority", "flex"]

LANES: tuple[Lane, ...] = ("fast", "slow", "batch")
"""In the order in which one stands in for a lane that a tier or key does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """What proposals go by."""

    fast_prompt_tokens: int = 512
    """Longest prompt of the fast lane."""
    one_engine: bool = True
    """Fast and slow run on the same engine, so that its scheduler may move a request between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What of a request decides its lane. `lane` is the one it names, if any."""

    streamed: bool
    prompt_tokens: int
    service_tier: ServiceTier = "auto"
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A lane. `by_length`: it was the prompt's length that decided between fast and slow, so what the cache holds may change it."""

    lane: Lane
    by_length: bool = False


def propose_lane(policy: TenantPolicy, key_lanes: Collection[str], wish: Wish, rules: LaneRules) -> Proposal:
    """The lane a request asks for, within what its tier and key allow.

    A lane that the request names comes first. `auto` and `default` take the tier's lane, or fast for a short streamed prompt and
    slow for another; `priority` does not ask whether it streams; `flex` is batch.

    Raises:
        Forbidden: the lane was asked for by `lane` or `service_tier`, and tier or key do not allow it.
        Invalid: both are given.
    """
    permitted = set(policy.lanes) & set(key_lanes or LANES)
    allowed: list[Lane] = [lane for lane in LANES if lane in permitted]
    is_asked = wish.service_tier in ("priority", "flex")
    if wish.lane is not None:
        if is_asked:
            raise Invalid(f"lane is {wish.lane!r} and service_tier is {wish.service_tier!r}: send one of them", param="lane")
        return _allowed(Proposal(wish.lane), allowed, f"the request names lane {wish.lane!r}", "lane")
    asked = _asked(policy, wish, rules)
    if not is_asked and asked.lane not in allowed and allowed:
        return Proposal(allowed[0])
    if wish.service_tier == "priority" and asked.lane == "fast" and "fast" not in allowed and "slow" in allowed:
        return Proposal("slow")
    proposal = _allowed(asked, allowed, f"service_tier {wish.service_tier!r} means lane {asked.lane!r}", "service_tier")
    may_change = rules.one_engine and {"fast", "slow"} <= permitted
    return proposal if may_change else Proposal(proposal.lane)


def served_tier(asked: ServiceTier, lane: Lane) -> ServiceTier:
    """OpenAI's name for what a request gets that asked for a `service_tier`; the scheduler moves it between fast and slow only."""
    if lane == "batch":
        return "flex"
    return "priority" if asked == "priority" else "default"


def _asked(policy: TenantPolicy, wish: Wish, rules: LaneRules) -> Proposal:
    """What tier, streaming and length come to, allowed or not."""
    interactive = Proposal("fast" if wish.prompt_tokens <= rules.fast_prompt_tokens else "slow", by_length=True)
    match wish.service_tier:
        case "flex":
            return Proposal("batch")
        case "priority":
            return interactive
        case _:
            by_name = {str(lane): Proposal(lane) for lane in LANES}
            return by_name.get(policy.default_lane) or (interactive if wish.streamed else Proposal("slow"))


def _allowed(proposal: Proposal, allowed: Collection[Lane], what: str, param: str) -> Proposal:
    if proposal.lane in allowed:
        return proposal
    message = f"{what}, which this key may not use; it may use {', '.join(allowed) or 'no lane'}"
    raise Forbidden(message, param=param, code="lane_not_allowed")
