"""What slow requests have in common: the slow log, what each lane's tail is made of, and who costs whom time.

A settled request is looked at when it missed a target, failed, waited long between two tokens, or is among the slowest of its lane.
Explaining takes a millisecond or so, hence it is done behind the requests, one at a time, and where more come than can be explained the
rest is counted as such: the oldest of the tenant that has most, in what waits as in the slow log.
"""

import asyncio
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.explain.answer import Explanation, explain
from appliance.telemetry.explain.gaps import slow_gap_s
from appliance.telemetry.explain.pieces import Piece, Recorded, pieces_of
from appliance.telemetry.fair_ring import FairRing
from appliance.telemetry.requests import Outcome, RequestReport

WINDOW_REQUESTS = 1_000
"""A lane's slowest hundredth is that of so many requests."""
FIRST_REQUESTS = 100
"""Before there were so many, nobody is the slowest hundredth."""
TAIL_SHARE = 0.99
KEPT_SLOW = 500
MAX_WAITING = 256
BUSY_SHARE = 0.05
"""Of the time, what explaining in the background may take."""
SLOS = ("ttft", "tpot")


class SlowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that missed a target, failed, or was among the slowest of its lane."""

    id: str
    ended_at: datetime
    tenant: str
    lane: str
    outcome: str
    why: list[str]
    """ttft, tpot: missed; failed; gap: a wait between two of its tokens was slow, by its target, or without one among the longest
    hundredth of its lane; tail: among the slowest hundredth of its lane."""
    total_s: float
    ttft_s: float | None
    ttft_target_s: float | None
    tpot_s: float | None
    tpot_target_s: float | None
    worst_gap_s: float
    """Longest wait between two of its tokens."""
    verdict: str


class TailPart(msgspec.Struct, frozen=True):
    part: str
    seconds: float


class TailView(msgspec.Struct, frozen=True, kw_only=True):
    """What a lane's tail is made of, since the start: of `ttft` until the first token, of `tpot` after it."""

    lane: str
    slo: str
    requests: int
    """Among the slowest hundredth, and explained."""
    of_requests: int
    """The newest, `WINDOW_REQUESTS` at most, that the next one is compared with: below `FIRST_REQUESTS` there is no slowest hundredth."""
    from_s: float | None
    """How slow the slowest hundredth is at present; null until there are `FIRST_REQUESTS`."""
    parts: list[TailPart]


class Interference(msgspec.Struct, frozen=True):
    """Seconds that slow requests of one tenant spent on another's work."""

    victim: str
    culprit: str
    seconds: float


@dataclass(slots=True)
class _Window:
    """The newest values, and in order."""

    newest: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def note(self, value: float) -> bool:
        """Whether it is among the slowest hundredth."""
        is_slowest = (bound := self.bound) is not None and value > bound
        self.newest.append(value)
        insort(self.ordered, value)
        if len(self.newest) > WINDOW_REQUESTS:
            del self.ordered[bisect_left(self.ordered, self.newest.popleft())]
        return is_slowest

    @property
    def bound(self) -> float | None:
        return self.ordered[int(TAIL_SHARE * len(self.ordered))] if len(self.ordered) >= FIRST_REQUESTS else None


@dataclass(frozen=True, slots=True)
class _Case:
    """A request to be explained."""

    report: RequestReport
    why: tuple[str, ...]
    tails: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finding:
    explanation: Explanation
    tails: dict[str, dict[str, float]]
    culprits: dict[str, float]


class Reviewer(Collector):
    """Takes settled requests, explains the slow ones behind them."""

    def __init__(self, recorded: Callable[[RequestReport], Recorded], label_of: Callable[[str], str], wall_s: Callable[[], float]) -> None:
        self._recorded = recorded
        self._label_of = label_of
        self._wall_s = wall_s
        self._labels = ("", "", "")
        self._windows: defaultdict[tuple[str, str], _Window] = defaultdict(_Window)
        self._worst_gaps: defaultdict[str, _Window] = defaultdict(_Window)
        """By lane."""
        self._waiting: FairRing[_Case] = FairRing(MAX_WAITING)
        self._awake = asyncio.Event()
        self._slow: FairRing[SlowRequest] = FairRing(KEPT_SLOW)
        self._tail_s: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        self._tail_requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._interference_s: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.num_skipped = 0
        """Slow requests that were not explained, because too many waited for it."""
        self.on_explained: Callable[[RequestReport, Explanation], None] = lambda report, explanation: None
        self.on_skipped: Callable[[RequestReport], None] = lambda report: None
        """One that was to be explained is not."""

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on."""
        self._labels = (model, quantization, gpu_type)

    # ---- requests

    def note(self, report: RequestReport, missed: Iterable[str]) -> bool:
        """A request ended; `missed` are the SLOs that it missed. Whether it will be explained; that is done later."""
        if not report.tenant_id or report.outcome is Outcome.REJECTED:
            return False
        tails = tuple(slo for slo, value_s in _values(report) if self._windows[report.lane, slo].note(value_s))
        has_failed = report.outcome in (Outcome.FAILED, Outcome.EXPIRED)
        marks = (("failed", has_failed), ("gap", self._had_a_slow_gap(report)), ("tail", bool(tails)))
        why = (*missed, *(name for name, is_so in marks if is_so))
        if not why:
            return False
        skipped = self._waiting.add(report.tenant_id, _Case(report, why, tails))
        if skipped is not None:
            self.num_skipped += 1
            self.on_skipped(skipped.report)
        self._awake.set()
        return True

    def _had_a_slow_gap(self, report: RequestReport) -> bool:
        if not report.worst_gap_s:
            return False
        is_among_worst = self._worst_gaps[report.lane].note(report.worst_gap_s)
        return report.worst_gap_s > slow_gap_s(report.tpot_target_s) if report.tpot_target_s else is_among_worst

    async def run(self) -> None:
        """Explain what waits, for ever; in all a twentieth of the time."""
        loop = asyncio.get_running_loop()
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._waiting:
                began_s = loop.time()
                await self.explain_next()
                await asyncio.sleep((loop.time() - began_s) * (1 / BUSY_SHARE - 1))

    async def explain_next(self) -> None:
        """The one that waits longest."""
        case = self._waiting.pop_oldest()
        finding = await asyncio.to_thread(_find, case, self._recorded(case.report))
        self._keep(case, finding)

    def _keep(self, case: _Case, finding: _Finding) -> None:
        report, found = case.report, finding.explanation
        ended_at = datetime.fromtimestamp(self._wall_s(), UTC)
        self._slow.add(
            report.tenant_id,
            SlowRequest(
                id=report.request_id,
                ended_at=ended_at,
                tenant=report.tenant_id,
                lane=report.lane,
                outcome=report.outcome.value,
                why=list(case.why),
                total_s=found.total_s,
                ttft_s=found.ttft_s,
                ttft_target_s=found.ttft_target_s,
                tpot_s=found.tpot_s,
                tpot_target_s=found.tpot_target_s,
                worst_gap_s=round(report.worst_gap_s, 6),
                verdict=found.verdict,
            ),
        )
        for slo, parts in finding.tails.items():
            self._tail_requests[report.lane, slo] += 1
            for part, duration_s in parts.items():
                self._tail_s[report.lane, slo, part] += duration_s
        victim = self._label_of(report.tenant_id)
        for culprit, duration_s in finding.culprits.items():
            self._interference_s[victim, self._label_of(culprit)] += duration_s
        self.on_explained(report, found)

    def forget(self, labels: Iterable[str]) -> None:
        """Drop the sums of tenants that have no label any more."""
        gone = frozenset(labels)
        for key in [key for key in self._interference_s if not gone.isdisjoint(key)]:
            del self._interference_s[key]

    # ---- answers

    def slow(self, tenant: str | None, limit: int) -> list[SlowRequest]:
        """Newest first."""
        found = (each for each in reversed(self._slow) if tenant in (None, each.tenant))
        return [each for each, _ in zip(found, range(limit), strict=False)]

    def tails(self) -> list[TailView]:
        """Of each lane and SLO that had requests."""
        return [
            TailView(
                lane=lane,
                slo=slo,
                requests=self._tail_requests[lane, slo],
                of_requests=len(window.ordered),
                from_s=window.bound,
                parts=[
                    TailPart(part, round(s, 6)) for (of_lane, of_slo, part), s in self._tail_s.items() if (of_lane, of_slo) == (lane, slo)
                ],
            )
            for (lane, slo), window in sorted(self._windows.items())
        ]

    def interference(self) -> list[Interference]:
        """Worst first."""
        pairs = [Interference(victim, culprit, round(s, 6)) for (victim, culprit), s in self._interference_s.items()]
        return sorted(pairs, key=lambda pair: -pair.seconds)

    # ---- metrics

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        tail = CounterMetricFamily(f"fairlane_{f.TAIL_SECONDS.name}", f.TAIL_SECONDS.help, labels=f.TAIL_SECONDS.labels)
        for (lane, slo, part), duration_s in tuple(self._tail_s.items()):
            tail.add_metric((lane, *self._labels, slo, part), duration_s)
        yield tail
        matrix = CounterMetricFamily(f"fairlane_{f.INTERFERENCE.name}", f.INTERFERENCE.help, labels=f.INTERFERENCE.labels)
        for (victim, culprit), duration_s in tuple(self._interference_s.items()):
            matrix.add_metric((*self._labels, victim, culprit), duration_s)
        yield matrix
        skipped = CounterMetricFamily(f"fairlane_{f.UNEXPLAINED.name}", f.UNEXPLAINED.help, labels=f.UNEXPLAINED.labels)
        skipped.add_metric((), self.num_skipped)
        yield skipped


def _values(report: RequestReport) -> Iterator[tuple[str, float]]:
    if report.first_sent_ns:
        yield "ttft", (report.first_sent_ns - report.received_ns) / 1e9
    if report.tokens_after_first > 0:
        yield "tpot", (report.last_token_ns - report.first_token_ns) / 1e9 / report.tokens_after_first


def _find(case: _Case, recorded: Recorded) -> _Finding:
    report = case.report
    spans = {"ttft": (report.received_ns, report.first_sent_ns), "tpot": (report.first_token_ns, report.last_token_ns)}
    pieces = pieces_of(report, recorded)
    culprits: dict[str, float] = {}
    for piece in pieces:
        for cause, duration_ns in piece.causes.items():
            if cause not in (None, report.tenant_id):
                culprits[cause] = culprits.get(cause, 0.0) + duration_ns / 1e9
    return _Finding(explain(report, recorded), {slo: seconds_within(pieces, *spans[slo]) for slo in case.tails}, culprits)


def seconds_within(pieces: Sequence[Piece], begin_ns: int, end_ns: int) -> dict[str, float]:
    """By name, what of the pieces lies between two times."""
    sums: dict[str, float] = {}
    for piece in pieces:
        length_ns = min(piece.end_ns, end_ns) - max(piece.begin_ns, begin_ns)
        if length_ns > 0:
            sums[piece.name] = sums.get(piece.name, 0.0) + length_ns / 1e9
    return sums
