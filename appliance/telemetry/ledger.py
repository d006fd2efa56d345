"""The step ledger: the newest steps of the engine, in order. Explaining a slow request is a question to it."""

from collections import OrderedDict, deque
from collections.abc import Iterator

from appliance.telemetry.requests import RequestReport
from engine.wire import StepRecord

KEPT_STEPS = 8_192
"""About two minutes at 15 ms a step; some 50 MB with 32 rows in each."""
KEPT_REQUESTS = 4_096
"""Reports of ended requests: a kilobyte each."""


class StepLedger:
    """A ring of `StepRecord`."""

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        self.kept_steps = kept_steps
        self._records: deque[StepRecord] = deque(maxlen=kept_steps)

    def append(self, record: StepRecord) -> None:
        self._records.append(record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StepRecord]:
        """Oldest first."""
        return iter(self._records)

    def newest_first(self) -> Iterator[StepRecord]:
        return reversed(self._records)

    @property
    def since_ns(self) -> int:
        """Steps before this time are forgotten; 0 while none is."""
        return self._records[0].planned_ns if len(self._records) == self.kept_steps else 0

    @property
    def span_s(self) -> float:
        """From the oldest step to the newest."""
        return (self._records[-1].committed_ns - self._records[0].planned_ns) / 1e9 if self._records else 0.0

    def between(self, start_ns: int, end_ns: int) -> list[StepRecord]:
        """Steps that were planned or still unfinished in a span of time, and the one before them, oldest first."""
        found: list[StepRecord] = []
        for record in reversed(self._records):
            if record.planned_ns <= end_ns:
                found.append(record)
            if record.committed_ns < start_ns:
                break
        return found[::-1]


class RequestArchive:
    """A ring of the reports of ended requests, by id."""

    def __init__(self, kept_requests: int = KEPT_REQUESTS) -> None:
        self.kept_requests = kept_requests
        self._reports: OrderedDict[str, RequestReport] = OrderedDict()

    def add(self, report: RequestReport) -> None:
        self._reports[report.request_id] = report
        if len(self._reports) > self.kept_requests:
            self._reports.popitem(last=False)

    def find(self, request_id: str) -> RequestReport | None:
        return self._reports.get(request_id)

    def __iter__(self) -> Iterator[RequestReport]:
        """Oldest first."""
        return iter(self._reports.values())
