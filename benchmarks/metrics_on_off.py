"""What metrics cost the served process in throughput: one server under a steady load, its metrics switched off and on again by turns.

    python -m benchmarks.metrics_on_off

Requests are kept in flight by as many tenants, of 100 that there are. Every few seconds the switch turns (`switched_server`: the product
has none), in the order on, off, off, on, and all tokens that arrive in between are counted. A window with metrics is scraped once, which
is more often than Prometheus does it, and compared with the one without next to it: the loss is the mean of the pairs' differences,
beside half of its 95 % interval.
"""

import argparse
import asyncio
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.http_client import Client, request_of
from benchmarks.load import Request, send
from benchmarks.noisy_neighbour import server_of, tenant_endpoint
from benchmarks.prompts import prompt
from benchmarks.record import RESULTS, keep
from benchmarks.servers import Server, running
from benchmarks.sse_client import Connection, Endpoint
from benchmarks.switched_server import VARIABLE
from benchmarks.tail.case import Figure

IN_FLIGHT = 32
PROMPT_WORDS = 60
OUTPUT_TOKENS = (32, 96)
"""Drawn evenly from these, so that the requests do not begin and end in step."""
WINDOW_S = 10.0
SETTLE_S = 0.5
"""After the switch was turned, before tokens are counted."""
WARM_S = 10.0
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens that arrived in a time with metrics on or off."""

    is_on: bool
    seconds: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Crowd:
    """Keeps a request of each tenant in flight; counts tokens as they arrive."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.errors: list[str] = []
        self._times_s: list[float] = []
        self._is_over = False
        self._tasks = [asyncio.create_task(self._work(endpoint, random.Random(seed))) for seed, endpoint in enumerate(endpoints)]

    def tokens_between(self, begin_s: float, end_s: float) -> int:
        """Of the requests that have ended."""
        return sum(begin_s <= time_s < end_s for time_s in self._times_s)

    async def stop(self) -> None:
        """No more requests; those in flight come to their end, as their tokens count."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _work(self, endpoint: Endpoint, rng: random.Random) -> None:
        async with Connection(endpoint) as connection:
            while not self._is_over:
                request = Request(prompt(rng, PROMPT_WORDS), rng.randint(*OUTPUT_TOKENS))
                outcome = await send(connection, endpoint, request, time.perf_counter())
                self._times_s += outcome.token_times_s
                self.errors += [outcome.error] * bool(outcome.error)


def turns() -> Iterator[bool]:
    """On or off, so that what drifts is in both alike."""
    return itertools.cycle((True, False, False, True))


def losses(windows: Sequence[Window]) -> list[float]:
    """Of neighbours, how much less came with metrics on: 0.01 is one percent."""
    pairs = zip(windows[::2], windows[1::2], strict=True)
    rates = [{window.is_on: window.tokens_per_s for window in pair} for pair in pairs]
    return [1 - rate[True] / rate[False] for rate in rates]


async def measure(num_tenants: int, num_windows: int) -> tuple[list[Window], int]:
    """The windows in their order, and the bytes of the last scrape."""
    with tempfile.TemporaryDirectory(prefix="fairlane-switch-") as folder:
        switch = Path(folder) / "off"
        async with running(_switched(switch)) as ready:
            endpoints = [
                tenant_endpoint(ready.endpoint, f"tenant-{number:03d}", "standard", ttft_ms=None, queue_ttl_ms=None)
                for number in range(num_tenants)
            ]
            crowd = Crowd(endpoints[:IN_FLIGHT])
            client = Client(ready.endpoint.base_url)
            await asyncio.sleep(WARM_S)
            spans: list[tuple[bool, float, float]] = []
            scraped = b""
            for is_on in itertools.islice(turns(), num_windows):
                switch.unlink(missing_ok=True) if is_on else switch.touch()
                await asyncio.sleep(SETTLE_S)
                begin_s = time.perf_counter()
                if is_on:
                    scraped = (await client.ask(request_of("GET", "/metrics"))).body
                await asyncio.sleep(max(0.0, begin_s + WINDOW_S - time.perf_counter()))
                spans.append((is_on, begin_s, time.perf_counter()))
            await crowd.stop()
            client.close()
    if crowd.errors:
        sys.exit(f"{len(crowd.errors)} requests failed, the first: {crowd.errors[0]}")
    return [Window(is_on, end - begin, crowd.tokens_between(begin, end)) for is_on, begin, end in spans], len(scraped)


def _switched(switch: Path) -> Server:
    made = server_of("vtc", [])

    def command(port: int, folder: Path) -> list[str]:
        program, _, _, *arguments = made.command(port, folder)
        return [program, "-m", "benchmarks.switched_server", *arguments]

    return Server(made.name, made.model, made.ready_path, command, {**made.env, VARIABLE: str(switch)})


def figures_of(windows: Sequence[Window], scrape_bytes: int) -> list[Figure]:
    """The bar of the observability issue, and how sure it is."""
    found = losses(windows)
    error = NORMAL_95 * statistics.stdev(found) / math.sqrt(len(found))
    return [
        Figure("throughput that metrics cost", 100 * statistics.fmean(found), "%", bar=1),
        Figure("... give or take (half of the 95 % interval)", 100 * error, "%"),
        Figure(f"pairs of windows of {WINDOW_S:g} s", len(found)),
        Figure("tokens a second with metrics", statistics.fmean(w.tokens_per_s for w in windows if w.is_on)),
        Figure("tokens a second without", statistics.fmean(w.tokens_per_s for w in windows if not w.is_on)),
        Figure("a scrape", scrape_bytes / 1e6, "MB"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metrics_on_off", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=13)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    windows, scrape_bytes = asyncio.run(measure(arguments.tenants, 2 * arguments.pairs))
    keep("metrics-on-off", figures_of(windows, scrape_bytes), {"windows": [asdict(window) for window in windows]}, arguments.out)


if __name__ == "__main__":
    main()
