"""When would a request have its first token, if it came in now? Pure: what waits goes in, a forecast comes out.

It counts what the engine's order would put ahead of the request, and nothing else (`engine.scheduling.fair_policy`): faster lanes
first but for the guaranteed shares of the others; in a lane every tenant by its virtual counter, so that whatever another tenant
has waiting, only the part goes ahead that keeps the two level; within a tenant what came before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.domain.admission.places import NOTHING_KEPT, Kept
from engine.wire import Drain

LANE_ORDER = ("fast", "slow", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """What one tenant has in one lane. Tokens are of prompts and still to be computed."""

    tenant_id: str
    lane: str
    tokens: float
    waiting_rows: int
    running_rows: int = 0
    weight: float = 1.0
    debt: float = 0.0
    """How much more it was served than the least served tenant, in tokens over weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that waits at one engine, and how fast it is taken."""

    queued: Sequence[Queued]
    drain: Drain
    shares: Mapping[str, float]
    """Guaranteed to lanes of the prefill tokens."""
    is_fair: bool = True
    """Tenants and lanes count; else whatever waits goes ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The request in question."""

    tenant_id: str
    lane: str
    tokens: float
    """Of its prompts, expected cached ones not counted."""
    rows: int = 1
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacking:
    """Sequences that wait beyond the rows that are free: only these wait for a row, the others for the next step."""

    all: int
    own: int
    """Of one tenant, as if everybody else's came before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds from now. `wait_s` is the part before its own first step, `own_s` the rest."""

    wait_s: float
    own_s: float
    alone_wait_s: float
    """What its wait would be if only its own tenant's work were there."""
    tokens_ahead: float
    own_waiting_rows: int
    """Of its tenant, before it."""

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.own_s


def forecast(situation: Situation, candidate: Candidate, kept: Kept = NOTHING_KEPT) -> Forecast:
    """`kept`: places that its tenant's refused clients were promised, to be counted as waiting before it."""
    drain = situation.drain
    own = [q for q in situation.queued if q.tenant_id == candidate.tenant_id]
    waiting = sum(q.waiting_rows for q in own)
    if not drain.prefill_tokens_per_s:
        return Forecast(wait_s=0.0, own_s=0.0, alone_wait_s=0.0, tokens_ahead=0.0, own_waiting_rows=waiting)
    own_tokens = sum(q.tokens for q in own if q.lane == candidate.lane or not situation.is_fair) + kept.tokens
    own_debt = max((q.debt for q in own), default=0.0)
    if situation.is_fair:
        others = sum(_goes_ahead(q, own_tokens, own_debt, candidate) for q in situation.queued)
        lane_s = _lane_seconds(situation, candidate.lane, own_tokens + others)
    else:
        others = sum(q.tokens for q in situation.queued if q.tenant_id != candidate.tenant_id)
        lane_s = (own_tokens + others) / drain.prefill_tokens_per_s
    rows_s = _row_seconds(situation, candidate, own, kept.rows)
    return Forecast(
        wait_s=drain.step_s + max(lane_s, rows_s),
        own_s=max(drain.step_s, candidate.tokens / drain.prefill_tokens_per_s),
        alone_wait_s=drain.step_s + max(own_tokens / drain.prefill_tokens_per_s, rows_s),
        tokens_ahead=own_tokens + others,
        own_waiting_rows=waiting,
    )


def rows_lacking(situation: Situation, tenant_id: str) -> Lacking:
    """How many rows waiting sequences lack, as a tenant may take rows: the reserved ones count where it holds few."""
    own = [q for q in situation.queued if q.tenant_id == tenant_id]
    own_rows = sum(q.waiting_rows for q in own)
    free = _free_rows(situation.drain, own_rows + sum(q.running_rows for q in own))
    lacking = max(0, sum(q.waiting_rows for q in situation.queued) - free)
    return Lacking(all=lacking, own=min(own_rows, lacking))


def _free_rows(drain: Drain, held: float) -> int:
    """For a tenant that holds so many, those included that it waits for."""
    return max(0, drain.free_rows - (drain.reserved_rows if held >= drain.reserved_rows else 0))


def _goes_ahead(other: Queued, own_tokens: float, own_debt: float, candidate: Candidate) -> float:
    """Tokens of another tenant that the counters put before the candidate: until it is served as much as the candidate's tenant then is."""
    if other.tenant_id == candidate.tenant_id or other.lane != candidate.lane:
        return 0.0
    level = own_debt + own_tokens / candidate.weight
    return min(other.tokens, max(0.0, (level - other.debt) * other.weight))


def _lane_seconds(situation: Situation, lane: str, tokens_ahead: float) -> float:
    """Time for so many tokens of a lane, those of faster lanes before them; at least at the lane's guaranteed share."""
    rate = situation.drain.prefill_tokens_per_s
    place = LANE_ORDER.index(lane)
    work = {name: sum(q.tokens for q in situation.queued if q.lane == name) for name in LANE_ORDER}
    slower = sum(situation.shares.get(name, 0.0) for name in LANE_ORDER[place + 1 :] if work[name])
    in_turn_s = (tokens_ahead + sum(work[name] for name in LANE_ORDER[:place])) / (rate * max(0.05, 1 - slower))
    share = situation.shares.get(lane, 0.0)
    return min(in_turn_s, tokens_ahead / (rate * share)) if share else in_turn_s


def _row_seconds(situation: Situation, candidate: Candidate, own: Sequence[Queued], kept_rows: float) -> float:
    """Time until rows are free for it: for a tenant that holds few, the reserved ones count too."""
    drain = situation.drain
    own_rows = sum(q.waiting_rows for q in own) + kept_rows
    held = own_rows + sum(q.running_rows for q in own)
    limit = own_rows / candidate.weight if situation.is_fair else float("inf")
    others = sum(min(q.waiting_rows, limit * q.weight) for q in situation.queued if q.tenant_id != candidate.tenant_id)
    lacking = own_rows + others + candidate.rows - _free_rows(drain, held)
    return lacking / drain.rows_per_s if lacking > 0 and drain.rows_per_s else 0.0
