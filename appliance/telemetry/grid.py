"""Histograms over a fine grid of times, and what their newest minutes say."""

import itertools
from collections import deque
from collections.abc import Sequence

from prometheus_client.samples import Exemplar

from appliance.telemetry.histogram import Cells

FIRST_S, STEP_RATIO, NUM_BOUNDS = 0.004, 1.1, 86
FINE_GRID_S = (0.001, 0.002, 0.003) + tuple(float(f"{FIRST_S * STEP_RATIO**index:.3g}") for index in range(NUM_BOUNDS)) + (20.0, 40.0, 80.0)
"""Each bound is a tenth above the one before it from 4 ms to 13 s, so a quantile read from the buckets is true within 10 %."""

SLOT_S = 10
WINDOW_SLOTS = 30
"""The window is five minutes, in slots of ten seconds."""


class FineHistogram:
    """Counts by bucket since the start, which are `cells`, and over the last five minutes."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self._slots: deque[tuple[int, list[int]]] = deque(maxlen=WINDOW_SLOTS)

    def observe(self, seconds: float, now_s: float, exemplar: Exemplar | None = None) -> None:
        """Count a time seen at `now_s` of a monotonic clock."""
        index = self.cells.observe(seconds, exemplar)
        slot = int(now_s // SLOT_S)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, [0] * len(self.cells.counts)))
        self._slots[-1][1][index] += 1

    def recent(self, now_s: float) -> list[int]:
        """Counts by bucket over the last five minutes."""
        oldest = int(now_s // SLOT_S) - WINDOW_SLOTS
        kept = [counts for slot, counts in self._slots if slot > oldest]
        return [sum(column) for column in zip(*kept, strict=True)] if kept else [0] * len(self.cells.counts)


def quantile_s(counts: Sequence[int], q: float, bounds_s: Sequence[float] = FINE_GRID_S) -> float | None:
    """The quantile that buckets of `bounds_s` give, as PromQL's `histogram_quantile` does: linear within a bucket, the last
    bound for what lies beyond it. None without values."""
    total = sum(counts)
    if not total:
        return None
    rank = q * total
    for index, upto in enumerate(itertools.accumulate(counts)):
        if upto >= rank and counts[index]:
            if index == len(bounds_s):
                return bounds_s[-1]
            low_s = bounds_s[index - 1] if index else 0.0
            return low_s + (bounds_s[index] - low_s) * (rank - (upto - counts[index])) / counts[index]
    return bounds_s[-1]
