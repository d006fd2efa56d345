"""What the control plane adds to an inference request, and how it stands 10,000 tenants.

    python -m benchmarks.control_plane

A served process with a fake engine whose steps take no time, beside `bare_server`: the same uvicorn, sockets and engine without
anything between. Both get 200 requests a second in an open loop, in alternating rounds; what is *added* is the difference of a
round's quantiles, of which the median over the rounds counts. Latency runs from the scheduled send to the last byte.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.settings import Settings
from benchmarks.bare_server import OUTPUT_TOKENS
from benchmarks.http_client import Answer, Client, Times, request_of
from benchmarks.many_tenants import Reloads, prepare, slug_of
from benchmarks.noisy_neighbour import ADMIN_TOKEN, tenant_endpoint
from benchmarks.prompts import prompt
from benchmarks.record import RESULTS, keep
from benchmarks.servers import API_KEY, Running, Server, running
from benchmarks.tail.case import Figure
from tests.inference.fake_engine import STEP_S_ENV
from tests.text.smollm2 import write_export

PROMPT_WORDS = 60
WARM_REQUESTS = 200
ENV = {"FAIRLANE_BOOTSTRAP_API_KEY": API_KEY, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN_TOKEN, STEP_S_ENV: "0"}


@dataclass(frozen=True, slots=True)
class Round:
    """The same load on both."""

    full: Times
    bare: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """With many tenants in the database."""

    tenants: int
    reloads: Reloads
    list_page_ms: dict[str, float]
    """Median by the kind of page."""
    write_ms: float
    """A change of one tenant, answered when the next request is judged by it; median."""
    rss_before_mib: float
    """Of the control plane with two tenants."""
    rss_after_mib: float
    inference: Times


def full_server(data_dir: Path, export: Path, more_env: Mapping[str, str] | None = None) -> Server:
    """The appliance on a data directory, its engine a fake."""
    program = [sys.executable, "-m", "tests.inference.serve_fake", str(data_dir), str(export)]
    return Server(
        "full",
        "SmolLM2-135M-Instruct",
        "/readyz",
        lambda port, _: [*program, f"port={port}", "log_format=json"],
        {**ENV, **(more_env or {})},
    )


def bare_server(export: Path) -> Server:
    """What it is compared with."""
    return Server("bare", "", "/", lambda port, _: [sys.executable, "-m", "benchmarks.bare_server", str(port), str(export)], ENV)


def completions(key: str, number: int, seed: int) -> list[bytes]:
    """Requests that are answered whole."""
    rng = random.Random(seed)
    body = {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    texts = (prompt(rng, PROMPT_WORDS) for _ in range(number))
    return [request_of("POST", "/v1/completions", key, json.dumps({"prompt": text, **body}).encode()) for text in texts]


def times_of(answers: Sequence[Answer]) -> Times:
    """Raises `AssertionError` where one was not answered with 200: the numbers would be of something else."""
    bad = next((answer for answer in answers if answer.status != 200), None)
    assert bad is None, f"answered {bad.status}: {bad.body[:300].decode(errors='replace')}"
    return Times.of(answers)


async def load(server: Running, key: str, number: int, rate: float, seed: int) -> Times:
    """So many requests at a rate."""
    client = Client(server.endpoint.base_url)
    requests = completions(key, number + WARM_REQUESTS, seed)
    await client.paced(requests[:WARM_REQUESTS], 1 / rate)
    answers = await client.paced(requests[WARM_REQUESTS:], 1 / rate)
    client.close()
    return times_of(answers)


async def added(folder: Path, export: Path, arguments: argparse.Namespace) -> tuple[list[Round], float]:
    """Alternating rounds, and the control plane's resident memory in MiB."""
    number = round(arguments.rate * arguments.seconds)
    async with running(full_server(folder, export)) as full, running(bare_server(export)) as bare:
        key = tenant_endpoint(full.endpoint, "measured", "interactive").api_key
        rounds: list[Round] = []
        for seed in range(arguments.rounds):
            full_times = await load(full, key, number, arguments.rate, seed)
            rounds.append(Round(full_times, await load(bare, "", number, arguments.rate, seed)))
        return rounds, rss_mib(folder)


async def crowd(folder: Path, export: Path, arguments: argparse.Namespace, rss_before_mib: float) -> Crowd:
    """Fill a database, serve from it, ask for its pages and change a tenant."""
    settings = Settings(data_dir=str(folder), bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN)
    read = await prepare(settings, arguments.tenants)
    async with running(full_server(folder, export)) as full:
        client, middle = Client(full.endpoint.base_url), slug_of(arguments.tenants // 2)
        pages = {
            "first": "?limit=100",
            "middle": f"?limit=100&after={middle}",
            "filtered": "?limit=100&tier=interactive&status=active",
            "searched": f"?limit=100&search={middle[-3:]}",
        }
        page_ms = {name: await _median_ms(client, "GET", f"/api/v1/tenants{query}") for name, query in pages.items()}
        change = json.dumps({"name": "Changed"}).encode()
        write_ms = await _median_ms(client, "PATCH", f"/api/v1/tenants/{middle}", change)
        key = tenant_endpoint(full.endpoint, "measured", "interactive").api_key
        inference = await load(full, key, round(arguments.rate * arguments.seconds), arguments.rate, 99)
        client.close()
        return Crowd(
            tenants=arguments.tenants,
            reloads=read,
            list_page_ms=page_ms,
            write_ms=write_ms,
            rss_before_mib=rss_before_mib,
            rss_after_mib=rss_mib(folder),
            inference=inference,
        )


async def _median_ms(client: Client, method: str, path: str, content: bytes = b"", calls: int = 15) -> float:
    request = request_of(method, path, ADMIN_TOKEN, content)
    answers = [await client.ask(request) for _ in range(calls)]
    return times_of(answers).p50_ms


def rss_mib(folder: Path) -> float:
    """Resident memory of the control plane that serves from a data directory."""
    pid = json.loads((folder / "run.json").read_text())["pid"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def figures_of(rounds: Sequence[Round], crowd: Crowd) -> list[Figure]:
    """The bars of the control plane's issue, and what stands beside them."""

    return [
        Figure("added to an inference request, P50", statistics.median([r.full.p50_ms - r.bare.p50_ms for r in rounds]), "ms", bar=1),
        Figure("added to an inference request, P99", statistics.median([r.full.p99_ms - r.bare.p99_ms for r in rounds]), "ms", bar=3),
        Figure("whole answer of the control plane, P50", statistics.median([r.full.p50_ms for r in rounds]), "ms"),
        Figure("whole answer of the control plane, P99", statistics.median([r.full.p99_ms for r in rounds]), "ms"),
        Figure("whole answer of the bare server, P50", statistics.median([r.bare.p50_ms for r in rounds]), "ms"),
        Figure("whole answer of the bare server, P99", statistics.median([r.bare.p99_ms for r in rounds]), "ms"),
        Figure("the generator sent late by, P99", max(max(r.full.lag_p99_ms, r.bare.lag_p99_ms) for r in rounds), "ms"),
        *(Figure(f"{crowd.tenants} tenants: list page, {name}", ms, "ms", bar=100) for name, ms in crowd.list_page_ms.items()),
        Figure(f"{crowd.tenants} tenants: snapshot from nothing", crowd.reloads.cold_s, "s", bar=1),
        Figure(f"{crowd.tenants} tenants: snapshot after one change", crowd.reloads.changed_s, "s", bar=1),
        Figure(f"{crowd.tenants} tenants: a change, written and in force", crowd.write_ms, "ms"),
        Figure(f"{crowd.tenants} tenants: whole answer of the control plane, P50", crowd.inference.p50_ms, "ms"),
        Figure(f"{crowd.tenants} tenants: whole answer of the control plane, P99", crowd.inference.p99_ms, "ms"),
        Figure("resident memory of the control plane, two tenants", crowd.rss_before_mib, "MiB"),
        Figure(f"resident memory of the control plane, {crowd.tenants} tenants", crowd.rss_after_mib, "MiB"),
    ]


async def measure(arguments: argparse.Namespace) -> tuple[list[Round], Crowd]:
    """Everything, in folders of its own."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as name:
        folder = Path(name)
        for each in ("export", "few", "many"):
            (folder / each).mkdir()
        write_export(folder / "export")
        rounds, rss_before_mib = await added(folder / "few", folder / "export", arguments)
        return rounds, await crowd(folder / "many", folder / "export", arguments, rss_before_mib)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.control_plane", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each of the two loads of a round")
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rounds, found = asyncio.run(measure(arguments))
    numbers = {"rate": arguments.rate, "seconds": arguments.seconds, "rounds": [asdict(each) for each in rounds], "crowd": asdict(found)}
    keep("control-plane", figures_of(rounds, found), numbers, arguments.out)


if __name__ == "__main__":
    main()
