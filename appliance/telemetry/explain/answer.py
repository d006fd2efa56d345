"""What `explain` answers: pieces summed up by name and by whose work they were, the slow gaps, and one sentence."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

import msgspec

from appliance.telemetry.explain.pieces import Piece, Recorded, pieces_of
from appliance.telemetry.explain.verdict import Facts, verdict_of
from appliance.telemetry.requests import RequestReport

ANOTHER_TENANT = "another tenant"
"""What a tenant reads instead of the others' names."""
MAX_GAPS = 20
MAX_CHUNKS = 100
SLOW_GAP_TARGETS = 1.5
"""A gap is slow from so many TPOT targets on: what the scheduler allows one gap."""
SLOW_GAP_MEDIANS = 3.0
"""Where there is no target: from so many of the request's own median gaps on."""


class Part(msgspec.Struct, frozen=True):
    """Seconds of the request's life. All parts add up to `total_s`."""

    name: str
    seconds: float
    tenant: str | None
    """Whose work took them; null: the request's own, or nobody's."""


class Chunk(msgspec.Struct, frozen=True):
    """A step that computed a part of the prompt."""

    step: int
    at_s: float
    """When it began, from receipt."""
    seconds: float
    tokens: int
    """Of this request."""


class Gap(msgspec.Struct, frozen=True):
    """A long wait between two tokens of one output."""

    at_s: float
    """When it ended, from receipt."""
    seconds: float
    step: int
    """The step that took the most of it."""
    name: str
    tenant: str | None
    """Part and tenant that took the most of it."""


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
    """The longest `MAX_GAPS` slow ones, in order of time."""
    evicted: list[Loss]


def explain(report: RequestReport, recorded: Recorded, *, is_running: bool = False, names_tenants: bool = True) -> Explanation:
    """Explain a request from its report (of a running one: as if it ended now) and the steps of its time.

    Without `names_tenants` all tenants but its own are `ANOTHER_TENANT`.
    """
    pieces = pieces_of(report, recorded)
    shown: Callable[[str | None], str | None] = (
        (lambda cause: cause) if names_tenants else (lambda cause: cause if cause in (None, report.tenant_id) else ANOTHER_TENANT)
    )
    parts = parts_of(pieces, shown)
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
        preemptions=sum(len(own.intersection(record.preempted)) for record in recorded.records),
        parts=parts,
        chunks=_chunks(report, pieces),
        gaps=_gaps(report, recorded, pieces, shown),
        evicted=_evicted(report, recorded, shown),
    )


def seconds(duration_ns: float) -> float:
    """Microseconds are enough for people."""
    return round(duration_ns / 1e9, 6)


def parts_of(pieces: Sequence[Piece], shown: Callable[[str | None], str | None] = lambda cause: cause) -> list[Part]:
    """Sums by name and cause, in the order in which they first appear; own work before others' in each."""
    sums: dict[tuple[str, str | None], int] = {}
    for piece in pieces:
        for cause, duration_ns in sorted(piece.causes.items(), key=lambda item: (item[0] is not None, -item[1])):
            if duration_ns:
                key = (piece.name, shown(cause))
                sums[key] = sums.get(key, 0) + duration_ns
    return [Part(name, seconds(duration_ns), cause) for (name, cause), duration_ns in sums.items()]


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


def _evicted(report: RequestReport, recorded: Recorded, shown: Callable[[str | None], str | None]) -> list[Loss]:
    """Most pages first."""
    pages: Counter[str | None] = Counter()
    for record in recorded.records:
        for each in record.evictions if record.planned_ns >= report.submitted_ns else ():
            if each.tenant_id == report.tenant_id:
                pages[shown(each.taker_id or None)] += each.pages
    return [Loss(taker, number) for taker, number in pages.most_common()]


def _gaps(report: RequestReport, recorded: Recorded, pieces: Sequence[Piece], shown: Callable[[str | None], str | None]) -> list[Gap]:
    """Between two steps that drew a token for the same sequence."""
    drawn_ns: dict[int, int] = {}
    spans: list[tuple[int, int]] = []
    own = frozenset(report.sequence_ids)
    for record in recorded.records:
        for share in record.shares:
            if share.sequence_id in own and record.done_ns <= report.ended_ns:
                before_ns = drawn_ns.get(share.sequence_id)
                if before_ns is not None and share.decode_tokens:
                    spans.append((before_ns, record.done_ns))
                drawn_ns[share.sequence_id] = record.done_ns
    if not spans:
        return []
    lengths = [(end_ns - begin_ns) / 1e9 for begin_ns, end_ns in spans]
    slow_s = report.tpot_target_s * SLOW_GAP_TARGETS if report.tpot_target_s else median(lengths) * SLOW_GAP_MEDIANS
    slow = sorted((span for span, length in zip(spans, lengths, strict=True) if length > slow_s), key=lambda span: span[0] - span[1])
    found = [_gap(report, pieces, span, shown) for span in sorted(slow[:MAX_GAPS], key=lambda span: span[1])]
    return [gap for gap in found if gap is not None]


def _gap(report: RequestReport, pieces: Sequence[Piece], span: tuple[int, int], shown: Callable[[str | None], str | None]) -> Gap | None:
    begin_ns, end_ns = span
    within = [piece for piece in pieces if piece.begin_ns < end_ns and piece.end_ns > begin_ns]
    steps = [piece for piece in within if piece.run is not None]
    if not steps:
        return None
    longest = max(steps, key=lambda piece: piece.end_ns - piece.begin_ns)
    most = max(parts_of(within, shown), key=lambda part: part.seconds)
    assert longest.run is not None
    return Gap(seconds(end_ns - report.received_ns), seconds(end_ns - begin_ns), longest.run.record.step, most.name, most.tenant)
