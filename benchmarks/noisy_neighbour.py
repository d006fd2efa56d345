"""The noisy neighbour: a quiet tenant's times alone, and while another tenant keeps long prompts in flight, over HTTP.

    python -m benchmarks.noisy_neighbour --requests 60                       the default policy
    python -m benchmarks.noisy_neighbour --requests 60 --policy fcfs         what it is compared with

The quiet tenant sends one short prompt a second whether or not the one before was answered; times count from the scheduled send.
The neighbour keeps `--in-flight` prompts going. Each has its own key, made through the administration API.
"""

import argparse
import asyncio
import contextlib
import datetime
import itertools
import json
import os
import random
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import Outcome, Request, open_loop, send
from benchmarks.peers import machine
from benchmarks.prompts import prompt, words_of_tokens
from benchmarks.scenarios import Report, quantile, report
from benchmarks.servers import Server, ours, running
from benchmarks.sse_client import Connection, Endpoint
from benchmarks.tail.report import Sent, tenant_report

ADMIN_TOKEN = "benchmark-admin-0123456789"
QUIET_WORDS, QUIET_OUTPUT_TOKENS = 60, 32
NEIGHBOUR_TOKENS, NEIGHBOUR_OUTPUT_TOKENS = 1500, 64
INTERVAL_S = 1.0
DRAIN_S = 60.0
"""What is in flight at the end is waited for so long: part of it was computed in the time that counts."""
NEIGHBOUR_TIER = "standard"


def server_of(policy: str, flags: Sequence[str]) -> Server:
    """This appliance under a policy; first come, first served is measured without a step limit, as it is elsewhere."""
    unbounded = ["--max-step-ms", "0"] if policy == "fcfs" else []
    made = ours(["--scheduling-policy", policy, *unbounded, *flags])
    return Server(made.name, made.model, made.ready_path, made.command, {**made.env, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN_TOKEN})


def post(base_url: str, path: str, body: dict[str, object]) -> dict[str, str]:
    """One call of the administration API."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(base_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def tenant_endpoint(endpoint: Endpoint, slug: str, tier: str, **overrides: object) -> Endpoint:
    """The server as a new tenant sees it, with a key of its own."""
    post(endpoint.base_url, "/api/v1/tenants", {"slug": slug, "tier": tier, "overrides": overrides})
    key = post(endpoint.base_url, f"/api/v1/tenants/{slug}/keys", {"name": "benchmark"})["key"]
    return Endpoint(endpoint.base_url, endpoint.model, key)


class Neighbour:
    """Keeps prompts in flight until it is stopped."""

    def __init__(self, endpoint: Endpoint, in_flight: int, seed: int) -> None:
        self.outcomes: list[Outcome] = []
        self._endpoint = endpoint
        self._rng = random.Random(seed)
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self._work()) for _ in range(in_flight)]

    async def stop(self, drain_s: float = 0.0) -> None:
        """Begin nothing more; what has not ended after `drain_s` is abandoned."""
        self._is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        async with Connection(self._endpoint) as connection:
            while not self._is_stopping:
                request = Request(prompt(self._rng, words_of_tokens(NEIGHBOUR_TOKENS)), NEIGHBOUR_OUTPUT_TOKENS)
                outcome = await send(connection, self._endpoint, request, time.perf_counter())
                self.outcomes.append(outcome)
                if outcome.error:
                    await asyncio.sleep(0.1)

    def tokens_per_s(self, began_s: float, ended_s: float) -> dict[str, float]:
        """What came meanwhile, an output token by token and a prompt with its first, of requests that have ended by now."""
        sent = [Sent("neighbour", outcome, is_open=False) for outcome in self.outcomes]
        found = tenant_report("neighbour", NEIGHBOUR_TIER, sent, began_s, ended_s)
        return {"prompt_tok_s": found.prompt_tokens_per_s, "output_tok_s": found.output_tokens_per_s}


async def measure(server: Server, num_requests: int, in_flight: int, warm_s: float) -> dict[str, Report]:
    """Reports of the quiet tenant alone and beside its neighbour, and of the neighbour."""
    async with running(server) as ready:
        quiet = tenant_endpoint(ready.endpoint, "quiet", "interactive")
        # it waits as long as it takes: nobody is refused
        noisy = tenant_endpoint(ready.endpoint, "noisy", NEIGHBOUR_TIER, queue_ttl_ms=None)
        rng = random.Random(7)
        await open_loop(quiet, _requests(rng, 3), INTERVAL_S)
        alone = await open_loop(quiet, _requests(rng, num_requests), INTERVAL_S)
        neighbour = Neighbour(noisy, in_flight, seed=11)
        await asyncio.sleep(warm_s)
        began_s = time.perf_counter()
        beside = await open_loop(quiet, _requests(rng, num_requests), INTERVAL_S)
        ended_s = time.perf_counter()
        await neighbour.stop(DRAIN_S)
    noise: Report = {**neighbour.tokens_per_s(began_s, ended_s), "failed": sum(bool(outcome.error) for outcome in neighbour.outcomes)}
    return {
        "alone": _quiet_report(alone.outcomes, report(alone)),
        "beside": _quiet_report(beside.outcomes, report(beside)),
        "neighbour": noise,
    }


def _requests(rng: random.Random, count: int) -> list[Request]:
    return [Request(prompt(rng, QUIET_WORDS), QUIET_OUTPUT_TOKENS) for _ in range(count)]


def _quiet_report(outcomes: Sequence[Outcome], numbers: Report) -> Report:
    """Adds the P99 of all gaps between tokens."""
    times = [outcome.token_times_s for outcome in outcomes if not outcome.error]
    gaps = [after - before for each in times for before, after in itertools.pairwise(each)]
    return numbers | {"gap_p99_ms": 1e3 * quantile(gaps, 0.99) if gaps else 0.0}


def main() -> None:
    """Measure one policy, print it, write it down."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noisy_neighbour", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="vtc", choices=["fcfs", "priority", "wrr", "vtc"])
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--warm-s", type=float, default=15.0, help="how long the neighbour runs before the second measurement")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("flags", nargs="*", help="after --: more flags of `fairlane serve`")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    server = server_of(arguments.policy, arguments.flags)
    numbers = asyncio.run(measure(server, arguments.requests, arguments.in_flight, arguments.warm_s))
    ratio = float(str(numbers["beside"].get("ttft_p99_ms", "nan"))) / float(str(numbers["alone"].get("ttft_p99_ms", "nan")))
    record = {"policy": arguments.policy, "p99_ttft_ratio": ratio, "load_average": [load_before, os.getloadavg()], **numbers}
    print(json.dumps(record, indent=1))
    now = datetime.datetime.now(datetime.UTC)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"noisy-{arguments.policy}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps({"when": now.isoformat(timespec="seconds"), "machine": machine(), **record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
