"""What `explain` answers: pieces summed up by name and by whose work they were, the slow gaps, and one sentence."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from appliance.telemetry.explain.gaps import Gap, gaps_of
from appliance.telemetry.explain.parts import Part, Shown, parts_of, seconds
from appliance.telemetry.explain.pieces import Piece, Recorded, pieces_of
from appliance.telemetry.explain.verdict import Facts, verdict_of
from appliance.telemetry.requests import RequestReport

ANOTHER_TENANT = "another tenant"
"""What a tenant reads instead of the others' names."""
MAX_CHUNKS = 100


class Chunk(msgspec.Struct, frozen=True):
    """A step that computed a part of the prompt."""

    step: int
    at_s: float
    """When it began, from receipt."""
    seconds: float
    tokens: int
    """Of this request."""


class Loss(msgspec.Struct, frozen=True):
    """Cached pages of the request's tenant that were given up while it was in the engine."""

    tenant: str | None
    """For whom; null: not known."""
    pages: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request took as long as it did."""

    id: str
    verdict: str
    state: str
    """running, or its outcome."""
    lane: str
    total_s: float
    """From receipt to the end, or until now."""
    ttft_s: float | None
    """From receipt to the first token that was sent."""
    ttft_target_s: float | None
    tpot_s: float | None
    """Mean time of a token after the first."""
    tpot_target_s: float | None
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, which the prefix cache had: no step computed them."""
    generated_tokens: int
    preemptions: int
    parts: list[Part]
    chunks: list[Chunk]
    """The first `MAX_CHUNKS`."""
    gaps: list[Gap]
    """The longest slow ones, in order of time."""
    evicted: list[Loss]


def explain(report: RequestReport, recorded: Recorded, *, is_running: bool = False, names_tenants: bool = True) -> Explanation:
    """Explain a request from its report (of a running one: as if it ended now) and the steps of its time.

    Without `names_tenants` all tenants but its own are `ANOTHER_TENANT`.
    """
    pieces = pieces_of(report, recorded)
    shown: Shown = (
        (lambda cause: cause) if names_tenants else (lambda cause: cause if cause in (None, report.tenant_id) else ANOTHER_TENANT)
    )
    parts, gaps = parts_of(pieces, shown), gaps_of(report, recorded, pieces, shown)
    state = "running" if is_running else report.outcome.value
    ttft_s = seconds(report.first_sent_ns - report.received_ns) if report.first_sent_ns else None
    decode_ns = report.last_token_ns - report.first_token_ns
    tpot_s = seconds(decode_ns / report.tokens_after_first) if report.tokens_after_first > 0 else None
    own = frozenset(report.sequence_ids)
    facts = Facts(
        state=state,
        message=report.message,
        cause=report.cause,
        tenant_id=report.tenant_id,
        total_s=seconds(report.ended_ns - report.received_ns),
        ttft_s=ttft_s,
        ttft_target_s=report.ttft_target_s,
        generated_tokens=report.generated_tokens,
        parts=[(part.name, part.tenant, part.seconds) for part in parts],
        worst_gap=max(gaps, key=lambda gap: gap.seconds, default=None),
    )
    return Explanation(
        id=report.request_id,
        verdict=verdict_of(facts),
        state=state,
        lane=report.lane,
        total_s=facts.total_s,
        ttft_s=ttft_s,
        ttft_target_s=report.ttft_target_s,
        tpot_s=tpot_s,
        tpot_target_s=report.tpot_target_s,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        generated_tokens=report.generated_tokens,
        preemptions=sum(each.sequence_id in own for record in recorded.records for each in record.preempted),
        parts=parts,
        chunks=_chunks(report, pieces),
        gaps=gaps,
        evicted=_evicted(report, recorded, shown),
    )


def _chunks(report: RequestReport, pieces: Sequence[Piece]) -> list[Chunk]:
    steps = [piece for piece in pieces if piece.run is not None and piece.name in ("prefill", "recompute")]
    return [
        Chunk(
            piece.run.record.step,
            seconds(piece.begin_ns - report.received_ns),
            seconds(piece.end_ns - piece.begin_ns),
            piece.own_tokens,
        )
        for piece in steps[:MAX_CHUNKS]
        if piece.run is not None
    ]


def _evicted(report: RequestReport, recorded: Recorded, shown: Shown) -> list[Loss]:
    """Most pages first."""
    pages: Counter[str | None] = Counter()
    for record in recorded.records:
        for each in record.evictions if record.planned_ns >= report.submitted_ns else ():
            if each.tenant_id == report.tenant_id:
                pages[shown(each.taker_id or None)] += each.pages
    return [Loss(taker, number) for taker, number in pages.most_common()]
