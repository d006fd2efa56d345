"""A flood before the served SmolLM2: the flooder is refused and told when to come back, the conformant tenant is served whole."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from tests.appliance import SMALL_BUCKETS, start_appliance
from tests.e2e.metrics import metric

FLAGS = (*SMALL_BUCKETS, "--max-num-seqs", "16", "--max-model-len", "2048", "--num-gpu-blocks-override", "1024")
FLOOD = 12
SLA = {"ttft_ms": 1_000, "queue_ttl_ms": 60_000}


def tenant(admin: httpx.Client, slug: str) -> dict[str, str]:
    created = admin.post("/api/v1/tenants", json={"slug": slug, "tier": "standard", "overrides": SLA})
    assert created.status_code == 201, created.text
    key = admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "test"}).json()["key"]
    return {"Authorization": f"Bearer {key}"}


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


def test_a_flood_is_refused_in_time_and_the_conformant_tenant_is_not(tmp_path: Path) -> None:
    with (
        start_appliance(tmp_path, *FLAGS) as appliance,
        httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers) as admin,
    ):
        noisy, quiet = tenant(admin, "noisy"), tenant(admin, "quiet")
        first, back, served = asyncio.run(storm(appliance.base_url, noisy, quiet))
        assert [answer.status_code for answer in served] == [200] * len(served)
        codes = Counter(answer.status_code for answer in first)
        assert codes[429] + codes[503] > 0, codes
        for answer in first:
            if answer.status_code == 429:
                error = answer.json()["error"]
                assert error["reason"] == "predicted_late" and "the target of lane 'slow' is 1s" in error["message"]
        assert sum(answer.status_code == 200 for answer in back) >= 0.9 * len(back), Counter(answer.status_code for answer in back)
        assert metric(admin, "rejections_total", tenant="noisy", reason="predicted_late") >= codes[429]
        assert metric(admin, "rejections_total", tenant="quiet") == 0


def test_without_admission_the_same_flood_is_served_late(tmp_path: Path) -> None:
    flags = (*FLAGS, "--no-admission")
    with (
        start_appliance(tmp_path, *flags) as appliance,
        httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers) as admin,
    ):
        noisy, quiet = tenant(admin, "noisy"), tenant(admin, "quiet")
        began_s = time.monotonic()
        first, _, _ = asyncio.run(storm(appliance.base_url, noisy, quiet))
        assert [answer.status_code for answer in first] == [200] * FLOOD
        assert time.monotonic() - began_s > SLA["ttft_ms"] / 1e3
