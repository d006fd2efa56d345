"""Thousands of clients that hang up at random: no slot stays taken, and the books have each request once."""

import asyncio
import random
import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.inference.test_serve import HEADERS, KEY, Served, serving, until
from tests.served.clients import ADMIN_HEADERS, booked

NUM_VISITS = 10_000
SEATS = 32


def series(served: Served, name: str) -> float:
    """Sum of all series of a metric."""
    text = httpx.get(served.url + "/metrics").text
    return sum(float(value) for value in re.findall(rf"^fairlane_{name}{{.* ([\d.e+]+)$", text, re.MULTILINE))


async def hang_up(url: httpx.URL, rng: random.Random, seats: asyncio.Semaphore) -> None:
    """Send a request whole, and leave at some moment of the answer."""
    body = f'{{"prompt": "x", "stream": {rng.choice(("true", "false"))}, "max_tokens": {rng.randrange(1, 9)}}}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    async with seats:
        _, writer = await asyncio.open_connection(url.host, url.port)
        with closing(writer):
            writer.write((head + body).encode())
            await writer.drain()
            await asyncio.sleep(rng.random() * 0.02)


@pytest.mark.timeout(280)
def test_after_10_000_random_disconnects_every_slot_is_free_and_usage_is_the_requests(tmp_path: Path, export: Path) -> None:
    rng = random.Random(11)
    with serving(tmp_path, export, "log_level=error") as served:

        async def storm() -> None:
            seats = asyncio.Semaphore(SEATS)
            await asyncio.gather(*(hang_up(httpx.URL(served.url), rng, seats) for _ in range(NUM_VISITS)))

        asyncio.run(storm())
        until(lambda: series(served, "requests_total") == booked(served)[0] == NUM_VISITS, served.log)
        assert series(served, "requests_total") == NUM_VISITS
        assert series(served, "running_requests") == series(served, "queue_depth") == 0
        one_slot = {"overrides": {"max_concurrency": 1}}
        httpx.patch(served.url + "/api/v1/tenants/default", json=one_slot, headers=ADMIN_HEADERS).raise_for_status()
        answer = httpx.post(served.url + "/generate", json={"prompt": "x", "max_tokens": 1}, headers=HEADERS)
        assert answer.status_code == 200, "where one slot was still taken, this would be refused"
