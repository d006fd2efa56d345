"""The last fifteen minutes of the appliance, a point a second, for the charts of the overview."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import Outcome, RequestReport

KEPT_S = 900
REFUSALS_S = 300
TTFT_WINDOW_S = 60
MAX_TTFTS = 4_096
EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Point:
    """One second. `at_s` is wall clock; rates are of the second before it."""

    number: int
    at_s: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    running: int
    queued: int
    kv_used_ratio: float
    kv_cached_ratio: float
    refused: int
    ttft_p50_s: float | None
    """Of all lanes' first tokens in the last minute; None where there was none."""
    ttft_p99_s: float | None

    def row(self) -> tuple[float | None, ...]:
        """As charts take it: time, then the values in the order of the fields."""
        return (
            self.at_s,
            round(self.prefill_tokens_per_s, 1),
            round(self.decode_tokens_per_s, 1),
            self.running,
            self.queued,
            round(self.kv_used_ratio, 4),
            round(self.kv_cached_ratio, 4),
            self.refused,
            self.ttft_p50_s and round(self.ttft_p50_s, 4),
            self.ttft_p99_s and round(self.ttft_p99_s, 4),
        )


class Pulse:
    """Takes each settled request, and looks at the engine once a second."""

    def __init__(
        self, telemetry: Telemetry, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._telemetry = telemetry
        self._clock_s = clock_s
        self._wall_s = wall_s
        self._points: deque[Point] = deque(maxlen=KEPT_S)
        self._number = 0
        self._refused: deque[tuple[float, str]] = deque(maxlen=100_000)
        """When, and why, newest last."""
        self._ttfts: deque[tuple[float, float]] = deque(maxlen=MAX_TTFTS)
        self._tokens: Counter[str] = Counter()
        self._looked_s = clock_s()
        self._refused_now = 0

    def note(self, report: RequestReport) -> None:
        """A request ended."""
        now_s = self._clock_s()
        if report.outcome is Outcome.REJECTED:
            self._refused_now += 1
            self._refused.append((now_s, report.rejection or report.error_code))
        elif report.first_sent_ns:
            self._ttfts.append((now_s, (report.first_sent_ns - report.received_ns) / 1e9))

    def look(self) -> None:
        """Add the point of this second."""
        now_s, load = self._clock_s(), self._telemetry.engine.load
        while self._ttfts and self._ttfts[0][0] < now_s - TTFT_WINDOW_S:
            self._ttfts.popleft()
        tokens = sum((book.step_tokens for book in self._telemetry.engine.books.values()), Counter[str]())
        passed_s = max(1e-3, now_s - self._looked_s)
        pages = max(1, load.pages_free + load.pages_used + load.pages_cached) if load else 1
        p50_s, p99_s = self._ttft()
        self._number += 1
        at_s = round(self._wall_s())
        if self._points and at_s < self._points[-1].at_s:
            self._points.clear()  # the clock was set back: no chart runs backwards
        self._points.append(
            Point(
                number=self._number,
                at_s=at_s,
                prefill_tokens_per_s=max(0, tokens["prefill"] - self._tokens["prefill"]) / passed_s,
                decode_tokens_per_s=max(0, tokens["decode"] - self._tokens["decode"]) / passed_s,
                running=sum(load.running.values()) if load else 0,
                queued=sum(load.queued.values()) if load else 0,
                kv_used_ratio=load.pages_used / pages if load else 0.0,
                kv_cached_ratio=load.pages_cached / pages if load else 0.0,
                refused=self._refused_now,
                ttft_p50_s=p50_s,
                ttft_p99_s=p99_s,
            )
        )
        self._tokens, self._looked_s, self._refused_now = tokens, now_s, 0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def since(self, number: int) -> list[Point]:
        """Points after the one of a number, oldest first."""
        newest = list(takewhile(lambda point: point.number > number, reversed(self._points)))
        return newest[::-1]

    def refusals(self) -> list[tuple[str, int]]:
        """Reasons and numbers of the last five minutes, most first."""
        since_s = self._clock_s() - REFUSALS_S
        return Counter(reason for _, reason in takewhile(lambda entry: entry[0] >= since_s, reversed(self._refused))).most_common()

    def _ttft(self) -> tuple[float | None, float | None]:
        ordered = sorted(seconds for _, seconds in self._ttfts)
        if not ordered:
            return None, None
        return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
