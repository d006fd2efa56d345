"""How quickly a request is refused while the engine is saturated, and whether who comes back when told gets in.

    python -m benchmarks.refusals

The served model is kept busy by one tenant's long prompts. Beside it three tenants ask in an open loop and are refused: one is beyond
its requests a minute, one beyond its requests in flight, one sends more long prompts than its target allows and is predicted late.
Latency runs from the scheduled send to the last byte of the refusal. Each client that was predicted late comes back once, with the same
request, after the Retry-After it was told. Beside that the decision alone is timed in this process, with 100 and 1,000 tenants waiting
at the engine (`max_queue_depth` lets 1,024 requests wait).
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.admission_decision import Decisions, decide_often
from benchmarks.http_client import Answer, Client, Times, request_of
from benchmarks.noisy_neighbour import Neighbour, post, server_of
from benchmarks.prompts import prompt, words_of_tokens
from benchmarks.record import RESULTS, keep
from benchmarks.servers import running
from benchmarks.sse_client import Endpoint
from benchmarks.tail.case import Figure

REFUSED = (429, 503)
FLOOD_IN_FLIGHT = 24
OWN_IN_FLIGHT = 4
"""Long prompts that the tenant beyond its ceiling in flight keeps there itself."""
LONGEST_RETURN_S = 30.0
"""Clients that are told a longer wait are not waited for; they are counted."""
SERVED_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Asker:
    """A tenant that asks to be refused."""

    tenant: str
    overrides: dict[str, object]
    rate: float
    prompt_tokens: int
    own_in_flight: int = 0


PATIENT: dict[str, object] = {"ttft_ms": None, "queue_ttl_ms": None}
"""Served however late: only ceilings refuse it."""
ASKERS = (
    Asker("over-rate", {"rpm": 2}, 3.0, 60),
    Asker("over-places", {"max_concurrency": OWN_IN_FLIGHT - 1, **PATIENT}, 2.0, 60, OWN_IN_FLIGHT),
    Asker("late", {"ttft_ms": {"fast": 500, "slow": 4_000}, "queue_ttl_ms": 10_000}, 2.0, 900),
)


@dataclass(frozen=True, slots=True)
class Return:
    """A client that was refused and came back: the wait it was told, and the answer, None where it did not come back."""

    told_s: float
    status: int | None


def body(rng: random.Random, prompt_tokens: int) -> bytes:
    """A request for one token."""
    return json.dumps({"prompt": prompt(rng, words_of_tokens(prompt_tokens)), "max_tokens": 1}).encode()


def endpoint_of(endpoint: Endpoint, asker: Asker) -> Endpoint:
    """The asker's tenant, with its overrides and a key."""
    fields = {"slug": asker.tenant, "tier": "interactive", "overrides": asker.overrides}
    post(endpoint.base_url, "/api/v1/tenants", fields)
    key = post(endpoint.base_url, f"/api/v1/tenants/{asker.tenant}/keys", {"name": "benchmark"})["key"]
    return Endpoint(endpoint.base_url, endpoint.model, key)


async def come_back(client: Client, request: bytes, refusal: Answer) -> Return:
    """Wait as told and ask once more."""
    told_s = refusal.retry_after_s or 0.0
    if told_s > LONGEST_RETURN_S:
        return Return(told_s, None)
    await asyncio.sleep(max(0.0, refusal.ended_s + told_s - time.perf_counter()))
    try:
        async with asyncio.timeout(SERVED_WITHIN_S):
            return Return(told_s, (await client.ask(request)).status)
    except TimeoutError:
        return Return(told_s, 0)


async def ask_and_return(client: Client, requests: Sequence[bytes], interval_s: float) -> tuple[list[Answer], list[Return]]:
    """One after the other, whatever became of those before; each refused one comes back."""
    returns: list[asyncio.Task[Return]] = []

    async def one(request: bytes, scheduled_s: float) -> Answer:
        answer = await client.ask(request, scheduled_s)
        if answer.status in REFUSED:
            returns.append(asyncio.create_task(come_back(client, request, answer)))
        return answer

    begin_s, tasks = time.perf_counter(), []
    for number, request in enumerate(requests):
        await asyncio.sleep(max(0.0, begin_s + number * interval_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one(request, begin_s + number * interval_s)))
    answers = await asyncio.gather(*tasks)
    return list(answers), list(await asyncio.gather(*returns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one run."""

    refusals: dict[str, list[Answer]]
    """By tenant."""
    answered: int
    """Not refused."""
    returns: list[Return]
    flood_tokens_per_s: float


async def measure(seconds: float, warm_s: float) -> Measured:
    """Saturate, ask, and wait for those that come back."""
    async with running(server_of("vtc", ["--shutdown-grace-s", "1"])) as ready:
        flood_endpoint = endpoint_of(ready.endpoint, Asker("flood", {"max_concurrency": None, **PATIENT}, 0, 0))
        endpoints = {asker.tenant: endpoint_of(ready.endpoint, asker) for asker in ASKERS}
        flood = Neighbour(flood_endpoint, FLOOD_IN_FLIGHT, seed=11)
        own = [Neighbour(endpoints[asker.tenant], asker.own_in_flight, seed=13) for asker in ASKERS if asker.own_in_flight]
        await asyncio.sleep(warm_s)
        client, rng, began_s = Client(ready.endpoint.base_url), random.Random(17), time.perf_counter()
        loads = []
        for asker in ASKERS:
            bodies = (body(rng, asker.prompt_tokens) for _ in range(round(asker.rate * seconds)))
            requests = [request_of("POST", "/v1/completions", endpoints[asker.tenant].api_key, content) for content in bodies]
            returning = asker.tenant == "late"
            loads.append(ask_and_return(client, requests, 1 / asker.rate) if returning else _ask(client, requests, 1 / asker.rate))
        found = await asyncio.gather(*loads)
        ended_s = time.perf_counter()
        for neighbour in (flood, *own):
            await neighbour.stop()
        client.close()
    answers = dict(zip(endpoints, (each for each, _ in found), strict=True))
    return Measured(
        refusals={tenant: [each for each in all_of if each.status in REFUSED] for tenant, all_of in answers.items()},
        answered=sum(each.status not in REFUSED for all_of in answers.values() for each in all_of),
        returns=[each for _, returns in found for each in returns],
        flood_tokens_per_s=sum(flood.tokens_per_s(began_s, ended_s).values()),
    )


async def _ask(client: Client, requests: Sequence[bytes], interval_s: float) -> tuple[list[Answer], list[Return]]:
    return await client.paced(requests, interval_s), []


def figures_of(measured: Measured, decisions: Sequence[Decisions]) -> list[Figure]:
    """The bars of the tail's issue for admission, and what stands beside them."""
    everybody = [answer for answers in measured.refusals.values() for answer in answers]
    tried = [each for each in measured.returns if each.status is not None]
    figures = [
        Figure("a refusal with the engine saturated, P99", Times.of(everybody).p99_ms if everybody else None, "ms", bar=50),
        Figure("a refusal with the engine saturated, P50", Times.of(everybody).p50_ms if everybody else None, "ms"),
        *(
            Figure(f"... of tenant {tenant} ({len(answers)}), P99", Times.of(answers).p99_ms if answers else None, "ms")
            for tenant, answers in measured.refusals.items()
        ),
        Figure("the generator sent late by, P99", Times.of(everybody).lag_p99_ms if everybody else None, "ms"),
        Figure(
            f"of {len(tried)} clients that came back when told, got in",
            sum(each.status == 200 for each in tried) / len(tried) if tried else None,
            bar=0.9,
            at_most=False,
        ),
        Figure(f"told to wait longer than {LONGEST_RETURN_S:.0f} s, not waited for", len(measured.returns) - len(tried)),
        Figure("asked and not refused", measured.answered),
        Figure("the flood's tokens a second meanwhile", measured.flood_tokens_per_s),
    ]
    return figures + [Figure(f"decision {d.outcome}, {d.tenants} tenants waiting, P99", d.p99_ms, "ms", bar=5) for d in decisions]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.refusals", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the refused tenants ask")
    parser.add_argument("--warm-s", type=float, default=8.0, help="how long the flood runs before")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    decisions = [each for num_tenants in (100, 1_000) for each in decide_often(num_tenants)]
    measured = asyncio.run(measure(arguments.seconds, arguments.warm_s))
    numbers = {
        "statuses": {tenant: Counter(a.status for a in answers) for tenant, answers in measured.refusals.items()},
        "reasons": {tenant: Counter(reason_of(a) for a in answers) for tenant, answers in measured.refusals.items()},
        "returns": [asdict(each) for each in measured.returns],
        "decisions": [asdict(each) for each in decisions],
    }
    keep("refusals", figures_of(measured, decisions), numbers, arguments.out)


def reason_of(answer: Answer) -> str:
    """Why it was refused, as the body says."""
    error = json.loads(answer.body).get("error", {})
    return f"{error.get('code')}: {error.get('message', '')[:40]}"


if __name__ == "__main__":
    main()
