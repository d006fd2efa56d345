"""The step ledger: the newest steps of the engine, in order. Explaining a slow request is a question to it."""

from collections import deque
from collections.abc import Iterator

from engine.wire import StepRecord

KEPT_STEPS = 8_192
"""About two minutes at 15 ms a step; some 50 MB with 32 rows in each."""


class StepLedger:
    """A ring of `StepRecord`."""

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        self._records: deque[StepRecord] = deque(maxlen=kept_steps)

    def append(self, record: StepRecord) -> None:
        self._records.append(record)

    def __len__(self) -> int:
        return len(self._records)

    def between(self, start_ns: int, end_ns: int) -> Iterator[StepRecord]:
        """Steps that were planned or still unfinished in a span of time, oldest first."""
        return (record for record in self._records if record.planned_ns <= end_ns and record.committed_ns >= start_ns)
