"""Refuses what would be late, before anything is computed for it; the client is told why, and when to come back.

`judge` decides; `Predictor` holds what it decides by: each engine's situation, and the places kept for refused clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.domain.admission.decisions import Admit, Reject, duration
from appliance.domain.admission.forecast import Candidate, Forecast, Lacking, Situation, forecast, rows_lacking
from appliance.domain.admission.load_view import Handed, LoadView
from appliance.domain.admission.places import NOTHING_KEPT, Kept, Places
from engine.wire import TenantPolicy

PREDICTED_LATE = "predicted_late"
OWN_TIMES = 1.5
"""A prompt that alone takes longer than the target may take so many times as long: else it could never come in."""
TARGET_PART = 0.8
"""Of the TTFT target, what a forecast may fill: it is a mean, and the target is meant for nearly all."""
RETURN_PART = 0.5
"""Who is told to come back is told a time when the wait should be so much of the longest,"""
RETURN_MARGIN = 1.2
"""and when the queue drains so much slower than it does now: what many are promised may not add up to more than is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a prediction needs of a request."""

    lane: str
    prompt_tokens: int
    rows: int
    fingerprint: int
    """Of tenant, lane and prompts: who comes back with the same request is known by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a request may expect."""

    now: Forecast
    """If it came in, behind places that are due before it would begin."""
    when_told: Forecast
    """If it stood back for all places of its tenant: what it is told a time by."""
    kept: Kept = NOTHING_KEPT
    """What these are counted as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Places that are kept for refused requests, and the prompt tokens that others stand back for."""

    requests: int
    tokens: float


def most_wait_s(policy: TenantPolicy, lane: str, own_s: float) -> float:
    """How long a request of a tenant with a limit of the queue may wait for its first step, which itself is the begin of `own_s`."""
    target_s, queue_s = policy.ttft_s.get(lane), policy.queue_ttl_s
    assert queue_s is not None, "who waits however long it takes is not judged"
    return queue_s if target_s is None else min(queue_s, max(TARGET_PART * target_s, OWN_TIMES * own_s) - own_s)


def judge(policy: TenantPolicy, lane: str, outlook: Outlook, *, in_contract: bool, is_idle: bool) -> Admit | Reject:
    """May it come in, by its forecast? `in_contract`: the tenant has a contract and is within it, which admits it whatever is
    predicted. `is_idle`: nothing else of the tenant waits; then nobody's flood keeps it out.

    429 where the tenant's own work alone would be late, or it is beyond its contract, else 503. Tenants without a limit of the queue
    (`queue_ttl_s`) wait however long it takes.
    """
    if policy.queue_ttl_s is None or in_contract or is_idle:
        return Admit(is_promised=True)
    seen, most_s = outlook.now, most_wait_s(policy, lane, outlook.now.own_s)
    if seen.wait_s <= most_s:
        return Admit()
    retry_s = RETURN_MARGIN * outlook.when_told.wait_s - RETURN_PART * most_s
    is_own = policy.committed_tpm is not None or seen.alone_wait_s > most_s
    whose = f"tenant {policy.tenant_id!r} has more waiting than that allows" if is_own else "the server is short of room"
    kept = f" ({round(outlook.kept.tokens)} more are kept for requests that were refused before)" if outlook.kept.tokens >= 1 else ""
    message = (
        f"the first token is predicted in {duration(seen.ttft_s)}, with {round(seen.tokens_ahead)} prompt tokens ahead of it, and"
        f" {_bound(policy, lane, seen.own_s, most_s)}:"
        f" {whose}{kept}; come back in {duration(retry_s)}, or send fewer requests at once"
    )
    return Reject(PREDICTED_LATE, message, retry_s, own_limit=is_own)


def _bound(policy: TenantPolicy, lane: str, own_s: float, most_s: float) -> str:
    """How long the request may wait, and what makes it so: the terms of `most_wait_s`."""
    most, target_s = f"it may wait {duration(most_s)}", policy.ttft_s.get(lane)
    if target_s is None:
        return f"{most} (queue_ttl_ms of its tier)"
    if most_s == policy.queue_ttl_s:
        why = "queue_ttl_ms of its tier"
    elif OWN_TIMES * own_s > TARGET_PART * target_s:
        why = f"{OWN_TIMES - 1:g} of the {duration(own_s)} that its own prompt takes"
    else:
        why = f"{TARGET_PART:g} of the target, less {duration(own_s)} for its own prompt"
    return f"the target of lane {lane!r} is {duration(target_s)}, for which {most} ({why})"


class Predictor:
    """Changed by the event loop only, without a wait between look and change."""

    def __init__(self, views: Mapping[str, LoadView], *, refuses: bool = True) -> None:
        """`views`: the engine of each lane. Where it does not refuse, it only tells how many rows are lacking."""
        self.views = views
        self._refuses = refuses
        self._places: dict[tuple[str, str], Places] = {}

    def judge(self, policy: TenantPolicy, ask: Ask, uncached_ratio: float, *, in_contract: bool, now_s: float) -> Admit | Reject:
        """A refusal keeps a place for when its client is told to come back, and an admission uses it up."""
        view = self.views.get(ask.lane)
        if view is None or policy.queue_ttl_s is None or not self._refuses:
            return Admit()
        places = self._places_of(policy.tenant_id, ask.lane, now_s)
        if places.take(ask.fingerprint, now_s):
            return Admit(is_promised=True)
        situation = view.situation()
        tokens = ask.prompt_tokens * uncached_ratio
        candidate = Candidate(tenant_id=policy.tenant_id, lane=ask.lane, tokens=tokens, rows=ask.rows, weight=policy.weight)
        own = [q for q in situation.queued if q.tenant_id == policy.tenant_id]
        is_idle = not any(q.tokens or q.waiting_rows for q in own)
        outlook = _outlook(situation, candidate, policy, places, now_s)
        verdict = judge(policy, ask.lane, outlook, in_contract=in_contract, is_idle=is_idle)
        if isinstance(verdict, Reject):
            places.keep(ask.fingerprint, verdict.retry_after_s, tokens, ask.rows, now_s)
        return verdict

    def rows_lacking(self, tenant_id: str) -> Lacking:
        """At all engines together."""
        found = [rows_lacking(view.situation(), tenant_id) for view in set(self.views.values())]
        return Lacking(all=sum(each.all for each in found), own=sum(each.own for each in found))

    def kept(self, lane: str, now_s: float) -> Promises:
        """What all tenants' refused clients were promised in a lane."""
        found = [self._places_of(tenant_id, lane, now_s) for tenant_id, of_lane in self._places if of_lane == lane]
        return Promises(requests=sum(map(len, found)), tokens=sum(places.all.tokens for places in found))

    def note_submit(self, sequence_id: int, lane: str, policy: TenantPolicy, tokens: float) -> None:
        """A sequence with so many tokens to compute goes to the engine, whose next reports may not know of it."""
        view = self.views.get(lane)
        if view is not None:
            view.note_submit(sequence_id, Handed(policy.tenant_id, lane, tokens, policy.weight))

    def _places_of(self, tenant_id: str, lane: str, now_s: float) -> Places:
        places = self._places.get((tenant_id, lane))
        if places is None:
            places = self._places[tenant_id, lane] = Places()
        places.forfeit(now_s)
        return places


def _outlook(situation: Situation, candidate: Candidate, policy: TenantPolicy, places: Places, now_s: float) -> Outlook:
    seen = forecast(situation, candidate)
    if not len(places):
        return Outlook(now=seen, when_told=seen)
    soon = places.due_by(now_s + most_wait_s(policy, candidate.lane, seen.own_s))
    return Outlook(now=forecast(situation, candidate, soon), when_told=forecast(situation, candidate, places.all), kept=places.all)
