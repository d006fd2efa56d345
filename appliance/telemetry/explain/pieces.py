"""A request's life cut into pieces: each has a name, lies behind the one before, and says whose work took its time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from appliance.telemetry.explain.runs import Cause, Run, divide, runs_of, waiting_causes, working_causes
from appliance.telemetry.requests import RequestReport
from engine.wire import StepRecord

PieceName = Literal[
    "door", "receive", "tokenize", "admission", "queue", "prefill", "prefill_wait", "decode", "decode_wait", "preempted", "recompute",
    "between_steps", "transfer", "detokenize", "write", "backpressure", "unrecorded",
]  # fmt: skip
PIECE_NAMES: tuple[PieceName, ...] = get_args(PieceName)
"""In the order of a request's life:

door             it stood at the door: many requests of its tenant were refused, or its long bodies had no room
receive          reading the request and its key
tokenize         rendering the template, making tokens
admission        limits, prediction, ticket
queue            handed to the engine, no step has worked on it yet
prefill          a step computed a chunk of its prompt
prefill_wait     between two chunks, steps worked on others, or were cut short for others
decode           a step drew its next token
decode_wait      steps worked on others, or were cut short for others, while it had a token to draw
preempted        it lost its pages and waited to begin again
recompute        a step computed what the preemption threw away
between_steps    the engine planned, committed and reported, or a step that is not recorded yet
transfer         the last token on its way to the control plane
detokenize       the last token became text
write            the end of the answer was written
backpressure     it was paused, or writing waited, because the client took nothing
unrecorded       older than the oldest step in the ledger
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a request's life. `causes` add up to its length."""

    name: PieceName
    begin_ns: int
    end_ns: int
    causes: Mapping[Cause, int]
    run: Run | None = None
    own_tokens: int = 0
    """Of the request, in this step."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the ledger had of the request's time, oldest first, and the step before where there was one."""

    records: Sequence[StepRecord]
    since_ns: int = 0
    """Steps before this time are forgotten; 0: none is."""
    floor_ns: int = 0
    """A step with next to no work."""


def pieces_of(report: RequestReport, recorded: Recorded) -> list[Piece]:
    """The pieces, in order, without empty ones: the first begins at receipt, the last ends at the request's end."""
    pieces = list(_intake(report))
    if report.submitted_ns:
        handed_ns = pieces[-1].end_ns
        over_ns = min(report.ended_ns, max(handed_ns, report.over_ns or report.ended_ns))
        pieces += _without_pauses(_Engine(report, recorded).pieces(handed_ns, over_ns), report.paused_ns)
        pieces += _ending(report, over_ns)
    return [piece for piece in pieces if piece.end_ns > piece.begin_ns]


def _plain(name: PieceName, begin_ns: int, end_ns: int) -> Piece:
    return Piece(name, begin_ns, end_ns, {None: end_ns - begin_ns})


def _intake(report: RequestReport) -> Iterator[Piece]:
    """Until it was handed to the engine; a refused request ends in the stage that refused it."""
    begin_ns = min(report.ended_ns, report.received_ns + report.held_ns)
    yield _plain("door", report.received_ns, begin_ns)
    stages: tuple[tuple[PieceName, int], ...] = (
        ("receive", report.read_ns),
        ("tokenize", report.tokenized_ns),
        ("admission", report.submitted_ns),
    )
    for name, stamp_ns in stages:
        end_ns = min(report.ended_ns, max(begin_ns, stamp_ns or report.ended_ns))
        yield _plain(name, begin_ns, end_ns)
        begin_ns = end_ns
        if not stamp_ns:
            return


def _ending(report: RequestReport, over_ns: int) -> Iterator[Piece]:
    """From its last event to its end."""
    if not report.over_ns:
        return
    fed_ns = min(report.ended_ns, max(over_ns, report.fed_ns))
    yield _plain("detokenize", over_ns, fed_ns)
    cursor_ns = fed_ns
    for began_ns, ended_ns in report.blocked_ns:
        begin_ns, end_ns = max(began_ns, cursor_ns), min(ended_ns, report.ended_ns)
        if begin_ns < end_ns:
            yield _plain("write", cursor_ns, begin_ns)
            yield _plain("backpressure", begin_ns, end_ns)
            cursor_ns = end_ns
    yield _plain("write", cursor_ns, report.ended_ns)


PAUSABLE: frozenset[PieceName] = frozenset(("prefill_wait", "decode_wait", "preempted", "between_steps"))


def _without_pauses(pieces: Iterable[Piece], paused_ns: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """What it waited while it was paused was for its own reader, whoever the engine worked for meanwhile."""
    for piece in pieces:
        cursor_ns = piece.begin_ns
        for began_ns, ended_ns in paused_ns if piece.name in PAUSABLE else ():
            begin_ns, end_ns = max(began_ns, cursor_ns), min(ended_ns, piece.end_ns)
            if begin_ns < end_ns:
                yield _part(piece, cursor_ns, begin_ns)
                yield _plain("backpressure", begin_ns, end_ns)
                cursor_ns = end_ns
        yield piece if cursor_ns == piece.begin_ns else _part(piece, cursor_ns, piece.end_ns)


def _part(waiting: Piece, begin_ns: int, end_ns: int) -> Piece:
    return Piece(waiting.name, begin_ns, end_ns, divide(end_ns - begin_ns, waiting.causes), waiting.run)


class _Engine:
    """The engine's part: steps that worked for the request, steps that did not, and what lay between."""

    def __init__(self, report: RequestReport, recorded: Recorded) -> None:
        self._report = report
        self._recorded = recorded
        self._own = frozenset(report.sequence_ids)
        self._computed: dict[int, int] = {}
        """Tokens of each own sequence that steps computed since it (re)started."""
        self._lost: dict[int, int] = {}
        self._is_preempted = False
        self._has_begun = bool(report.scheduled_ns) and report.scheduled_ns < recorded.since_ns

    def pieces(self, begin_ns: int, end_ns: int) -> Iterator[Piece]:
        cursor_ns = begin_ns
        if self._recorded.since_ns > begin_ns:
            cursor_ns = min(self._recorded.since_ns, end_ns)
            yield _plain("unrecorded", begin_ns, cursor_ns)
        runs = [run for run in runs_of(self._recorded.records) if run.end_ns > cursor_ns and run.begin_ns < end_ns]
        follow = self._next_kinds(runs)
        for run, next_kind in zip(runs, follow, strict=True):
            self._lose(run.record)
            run_begin_ns, run_end_ns = max(run.begin_ns, cursor_ns), min(run.end_ns, end_ns)
            yield _plain(self._idle_name(next_kind), cursor_ns, run_begin_ns)
            yield self._run_piece(run, run_begin_ns, run_end_ns, next_kind)
            cursor_ns = run_end_ns
        yield _plain(self._idle_name(""), cursor_ns, end_ns)

    def _next_kinds(self, runs: Sequence[Run]) -> list[str]:
        """For each run what the first own run from there on does: `prefill`, `decode`, or nothing."""
        kinds: list[str] = []
        kind = ""
        for run in reversed(runs):
            own = [share for share in run.record.shares if share.sequence_id in self._own]
            if own:
                kind = "prefill" if any(share.prefill_tokens for share in own) else "decode"
            kinds.append(kind)
        return kinds[::-1]

    def _lose(self, record: StepRecord) -> None:
        for each in record.preempted:
            if each.sequence_id in self._own:
                self._is_preempted = True
                self._lost[each.sequence_id] = self._computed.pop(each.sequence_id, 0)

    def _run_piece(self, run: Run, begin_ns: int, end_ns: int, next_kind: str) -> Piece:
        own = [share for share in run.record.shares if share.sequence_id in self._own]
        name: PieceName
        if not own:
            name = self._wait_name(next_kind)
            if name == "transfer":  # whatever runs meanwhile, it is not waited for
                return _plain(name, begin_ns, end_ns)
            return Piece(name, begin_ns, end_ns, waiting_causes(run, end_ns - begin_ns, self._own), run)
        self._has_begun = True
        tokens = 0
        name = "decode"
        for share in own:
            work = share.prefill_tokens + share.decode_tokens
            if share.prefill_tokens:
                name = "recompute" if self._lost.get(share.sequence_id, 0) > 0 else "prefill"
                self._lost[share.sequence_id] = self._lost.get(share.sequence_id, 0) - work
            self._computed[share.sequence_id] = self._computed.get(share.sequence_id, 0) + work
            tokens += work
        self._is_preempted = self._is_preempted and not any(share.prefill_tokens for share in own)
        causes = working_causes(run, end_ns - begin_ns, self._own, self._recorded.floor_ns)
        return Piece(name, begin_ns, end_ns, causes, run, tokens)

    def _wait_name(self, next_kind: str) -> PieceName:
        if not self._has_begun:
            return "queue"
        if self._is_preempted:
            return "preempted"
        if not next_kind:
            if self._report.over_ns:
                return "transfer"
            next_kind = "decode" if self._report.first_token_ns else "prefill"
        return "prefill_wait" if next_kind == "prefill" else "decode_wait"

    def _idle_name(self, next_kind: str) -> PieceName:
        name = self._wait_name(next_kind)
        return "between_steps" if name in ("prefill_wait", "decode_wait") else name
