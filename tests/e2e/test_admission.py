"""A flood before the served SmolLM2: the flooder is refused and told when to come back, the conformant tenant is served whole."""

import asyncio
from collections import Counter
from typing import Any

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import metric
from tests.e2e.tenants import tenant_headers

FLOOD = 12
SLA = {"ttft_ms": 1_000, "queue_ttl_ms": 60_000}


def prompt(number: int, words: int) -> str:
    return " ".join(f"{number} word {n}" for n in range(words // 3))


async def storm(
    url: str, noisy: dict[str, str], quiet: dict[str, str]
) -> tuple[list[httpx.Response], list[httpx.Response], list[httpx.Response]]:
    """The flood's first answers, those to who came back when told to, and the quiet tenant's."""
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=200)) as http:

        async def ask(headers: dict[str, str], number: int, words: int) -> httpx.Response:
            body: dict[str, Any] = {"prompt": prompt(number, words), "max_tokens": 2, "temperature": 0}
            return await http.post("/v1/completions", json=body, headers=headers)

        async def visit(number: int) -> tuple[httpx.Response, httpx.Response | None]:
            await asyncio.sleep(number * 0.03)
            first = await ask(noisy, number, 240)
            if first.status_code == 200:
                return first, None
            await asyncio.sleep(int(first.headers["retry-after"]))
            return first, await ask(noisy, number, 240)

        async def conformant() -> list[httpx.Response]:
            answers = []
            for number in range(10):
                await asyncio.sleep(0.3)
                answers.append(await ask(quiet, 1_000 + number, 30))
            return answers

        visits, served = await asyncio.gather(asyncio.gather(*(visit(number) for number in range(FLOOD))), conformant())
        return [first for first, _ in visits], [back for _, back in visits if back is not None], served


def test_a_flood_is_refused_in_time_and_the_conformant_tenant_is_not(appliance: Appliance, client: httpx.Client) -> None:
    noisy, quiet = (tenant_headers(appliance, f"flood-{name}", overrides=SLA) for name in ("noisy", "quiet"))
    first, back, served = asyncio.run(storm(appliance.base_url, noisy, quiet))
    assert [answer.status_code for answer in served] == [200] * len(served)
    codes = Counter(answer.status_code for answer in first)
    assert codes[429] + codes[503] > 0, codes
    for answer in first:
        if answer.status_code == 429:
            error = answer.json()["error"]
            assert error["reason"] == "predicted_late" and "the target of lane 'slow' is 1s" in error["message"]
    assert sum(answer.status_code == 200 for answer in back) >= 0.9 * len(back), Counter(answer.status_code for answer in back)
    assert metric(client, "rejections_total", tenant="flood-noisy", reason="predicted_late") >= codes[429]
    assert metric(client, "rejections_total", tenant="flood-quiet") == 0
