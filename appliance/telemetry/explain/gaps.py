"""Long waits between two tokens of one output: which they are, what took the most of them, and preemptions within."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec

from appliance.telemetry.explain.parts import Shown, parts_of, seconds
from appliance.telemetry.explain.pieces import Piece, Recorded
from appliance.telemetry.requests import RequestReport

MAX_GAPS = 20
SLOW_GAP_TARGETS = 1.5
"""A gap is slow from so many TPOT targets on: what the scheduler allows one gap."""
SLOW_GAP_MEDIANS = 3.0
"""Where there is no target: from so many of the request's own median gaps on."""


class Preempted(msgspec.Struct, frozen=True):
    """The output lost its row and its pages."""

    step: int
    """The first one that was planned without it."""
    cause: str
    """memory: pages were short, what it had computed is computed again; swap: likewise, but it went to host memory and came back;
    slow_reader: its client lagged, and somebody needed the row or the pages; forced: by a setting for tests."""
    tenant: str | None
    """Whose work lacked what it had; null: nobody's."""


class Gap(msgspec.Struct, frozen=True):
    """A long wait between two tokens of one output."""

    at_s: float
    """When it ended, from receipt."""
    seconds: float
    step: int | None
    """The step that took the most of it; null: none ran."""
    name: str
    tenant: str | None
    """Part and tenant that took the most of it."""
    preempted: list[Preempted] = []
    """What the output lost on the way, in order."""


def slow_gap_s(tpot_target_s: float) -> float:
    """What is called slow under a target is longer than this."""
    return tpot_target_s * SLOW_GAP_TARGETS


def gaps_of(report: RequestReport, recorded: Recorded, pieces: Sequence[Piece], shown: Shown) -> list[Gap]:
    """The longest `MAX_GAPS` slow ones, in order of time."""
    spans = list(_spans(report, recorded))
    if not spans:
        return []
    if report.tpot_target_s:
        slow_s = slow_gap_s(report.tpot_target_s)
    else:
        slow_s = SLOW_GAP_MEDIANS * median(span.seconds for span in spans)
    slow = sorted((span for span in spans if span.seconds > slow_s), key=lambda span: -span.seconds)
    return [_gap(report, recorded, pieces, span, shown) for span in sorted(slow[:MAX_GAPS], key=lambda span: span.end_ns)]


@dataclass(frozen=True, slots=True)
class _Span:
    """From one token of an output to its next, or until now."""

    sequence_id: int
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


def _spans(report: RequestReport, recorded: Recorded) -> Iterator[_Span]:
    """Between two steps that drew a token for the same sequence; of a request that goes on, or was cut off, from its newest token on."""
    drawn_ns: dict[int, list[int]] = {sequence_id: [] for sequence_id in report.sequence_ids}
    for record in recorded.records:
        for share in record.shares:
            if share.draws and share.sequence_id in drawn_ns and record.done_ns <= report.ended_ns:
                drawn_ns[share.sequence_id].append(record.done_ns)
    for sequence_id, times_ns in drawn_ns.items():
        yield from (_Span(sequence_id, begin_ns, end_ns) for begin_ns, end_ns in pairwise(times_ns))
    sequence_id, times_ns = max(drawn_ns.items(), key=lambda item: item[1][-1:], default=(0, []))
    if times_ns and not report.over_ns:
        yield _Span(sequence_id, times_ns[-1], report.ended_ns)


def _gap(report: RequestReport, recorded: Recorded, pieces: Sequence[Piece], span: _Span, shown: Shown) -> Gap:
    within = [piece for piece in pieces if piece.begin_ns < span.end_ns and piece.end_ns > span.begin_ns]
    steps = [(piece.end_ns - piece.begin_ns, piece.run.record.step) for piece in within if piece.run is not None]
    most = max(parts_of(within, shown), key=lambda part: part.seconds)
    preempted = [
        Preempted(record.step, each.cause, shown(each.taker_id or None))
        for record in recorded.records
        if span.begin_ns <= record.planned_ns < span.end_ns
        for each in record.preempted
        if each.sequence_id == span.sequence_id
    ]
    ended_s = seconds(span.end_ns - report.received_ns)
    return Gap(ended_s, round(span.seconds, 6), max(steps)[1] if steps else None, most.name, most.tenant, preempted)
