"""Answers from the samples that this process keeps of its own metrics."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from appliance.dashboards.metrics import NoAnswer, Reach
from appliance.promql.errors import PromqlError
from appliance.promql.evaluator import evaluate
from appliance.promql.grid import Grid
from appliance.promql.values import Series
from appliance.telemetry.history import KEPT_S, History

MAX_POINTS = 60
LEAST_S = 60.0
"""Of time shown, after a start."""
KEPT_ANSWERS = 512
"""Queries of all dashboards at a few choices; an answer holds until the next sample, whoever asks for it."""


class OwnMetrics:
    """Evaluates in a thread, one query at a time; `History.select` lets go of the interpreter every millisecond or two."""

    def __init__(self, history: History, rules: Mapping[str, str], interval_s: float) -> None:
        self._history = history
        self._rules = rules
        self._interval_s = interval_s
        self._turn = asyncio.Lock()
        self._answers: OrderedDict[tuple[str, Grid], Sequence[Series]] = OrderedDict()

    @property
    def reach(self) -> Reach:
        return Reach("this process's own last hour", KEPT_S, max(LEAST_S, self._history.held_s), self._interval_s, MAX_POINTS, is_own=True)

    def end_ms(self) -> int:
        return self._history.newest_ms or time.time_ns() // 1_000_000

    async def series(self, expr: str, grid: Grid) -> Sequence[Series]:
        async with self._turn:
            found = self._answers.get((expr, grid))
            if found is None:
                found = self._answers[expr, grid] = await asyncio.to_thread(self._evaluate, expr, grid)
                if len(self._answers) > KEPT_ANSWERS:
                    self._answers.popitem(last=False)
            return found

    async def label_values(self, metric: str, label: str) -> list[str]:
        found = await self.series(f"count by ({label}) ({metric})", Grid(self.end_ms()))
        return sorted(filter(None, (each.labels.get(label) for each in found)))

    def _evaluate(self, expr: str, grid: Grid) -> Sequence[Series]:
        try:
            with self._history.reading() as source:
                return evaluate(expr, source, grid, self._rules)
        except PromqlError as error:
            raise NoAnswer(f"this query can not be answered without a Prometheus: {error}") from error
