"""The step ledger: the newest steps of each engine, in order. Explaining a slow request is a question to it."""

import heapq
from collections import deque
from collections.abc import Iterator

from appliance.telemetry.fair_ring import FairRing
from appliance.telemetry.requests import RequestReport
from engine.wire import ONLY_ENGINE, StepRecord

KEPT_STEPS = 8_192
"""About two minutes at 15 ms a step; some 50 MB with 32 rows in each."""
KEPT_REQUESTS = 4_096
"""Reports of ended requests: a kilobyte each."""


class StepLedger:
    """A ring of `StepRecord` for each engine: a busy one does not push out another's, and their numbers never meet."""

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        """`kept_steps`: of each engine."""
        self.kept_steps = kept_steps
        self._rings: dict[str, deque[StepRecord]] = {}

    def append(self, record: StepRecord) -> None:
        if record.engine not in self._rings:
            self._rings[record.engine] = deque(maxlen=self.kept_steps)
        self._rings[record.engine].append(record)

    def __len__(self) -> int:
        return sum(map(len, self._rings.values()))

    def __iter__(self) -> Iterator[StepRecord]:
        """Oldest first."""
        return heapq.merge(*self._rings.values(), key=_committed_ns)

    def newest_first(self) -> Iterator[StepRecord]:
        return heapq.merge(*map(reversed, self._rings.values()), key=_committed_ns, reverse=True)

    def since_ns(self, engine: str = ONLY_ENGINE) -> int:
        """The engine's steps before this time are forgotten; 0 while none is."""
        ring = self._rings.get(engine)
        return ring[0].planned_ns if ring is not None and len(ring) == self.kept_steps else 0

    @property
    def is_whole(self) -> bool:
        """No step of any engine is forgotten."""
        return not any(map(self.since_ns, self._rings))

    @property
    def span_s(self) -> float:
        """From the oldest step to the newest, of the engine that goes back least: all are remembered that far."""
        return min(((ring[-1].committed_ns - ring[0].planned_ns) / 1e9 for ring in self._rings.values()), default=0.0)

    def between(self, start_ns: int, end_ns: int, engine: str = ONLY_ENGINE) -> list[StepRecord]:
        """Steps of an engine that were planned or still unfinished in a span of time, and the one before them, oldest first."""
        found: list[StepRecord] = []
        for record in reversed(self._rings.get(engine, ())):
            if record.planned_ns <= end_ns:
                found.append(record)
            if record.committed_ns < start_ns:
                break
        return found[::-1]

    def all_between(self, start_ns: int, end_ns: int) -> list[StepRecord]:
        """`between` of every engine, one engine's after the other's."""
        return [record for engine in self._rings for record in self.between(start_ns, end_ns, engine)]


def _committed_ns(record: StepRecord) -> int:
    return record.committed_ns


class RequestArchive:
    """Reports of ended requests, by id. A tenant's flood pushes out none but its own, and what was refused nothing that was served;
    requests without a valid key are one more owner."""

    def __init__(self, kept_requests: int = KEPT_REQUESTS) -> None:
        self.kept_requests = kept_requests
        self._ring: FairRing[RequestReport] = FairRing(kept_requests)
        self._reports: dict[str, RequestReport] = {}

    def add(self, report: RequestReport) -> None:
        self._reports[report.request_id] = report
        gone = self._ring.add((report.tenant_id, bool(report.submitted_ns)), report)
        if gone is not None:
            self._reports.pop(gone.request_id, None)

    def find(self, request_id: str) -> RequestReport | None:
        return self._reports.get(request_id)

    def __iter__(self) -> Iterator[RequestReport]:
        """Oldest first."""
        return iter(self._ring)
