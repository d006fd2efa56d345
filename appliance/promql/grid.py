"""The times an expression is evaluated at, and which samples lie before each of them."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LOOKBACK_MS = 300_000
"""How old a sample may be and still be the current one (Prometheus' default)."""


@dataclass(frozen=True, slots=True)
class Grid:
    """`count` times, `step_ms` apart, the last of them `end_ms` (milliseconds of the Unix epoch)."""

    end_ms: int
    step_ms: int = 1
    count: int = 1

    @property
    def times_ms(self) -> list[int]:
        first_ms = self.end_ms - (self.count - 1) * self.step_ms
        return [first_ms + index * self.step_ms for index in range(self.count)]

    def windows(self, samples_ms: Sequence[int], range_ms: int) -> list[tuple[int, int]]:
        """For each time t the samples in (t - range, t], as first and beyond-last index."""
        return [(bisect_right(samples_ms, time_ms - range_ms), bisect_right(samples_ms, time_ms)) for time_ms in self.times_ms]
