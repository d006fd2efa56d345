"""Why was this request slow? Two tenants on the served SmolLM2, one of them noisy."""

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until
from tests.e2e.tenants import tenant_headers

NOISY_REQUESTS = 24
IMPATIENT = {"ttft_ms": 1, "queue_ttl_ms": None}
"""Targets that are missed, and no end of waiting."""
VICTIM_REQUESTS = 4


def body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


async def crowd(appliance: Appliance, victim: dict[str, str], noisy: dict[str, str]) -> dict[str, list[httpx.Response]]:
    """The victim asks one question after the other while the noisy tenant has everything else in flight."""
    async with httpx.AsyncClient(base_url=appliance.base_url, timeout=300) as http:

        async def ask(headers: dict[str, str], number: int, words: int, max_tokens: int) -> httpx.Response:
            prompt = f"Story {number}: " + " ".join(f"word{number + i}" for i in range(words))
            return await http.post("/v1/completions", json=body(prompt, max_tokens), headers=headers)

        async def quiet() -> list[httpx.Response]:
            await asyncio.sleep(0.3)  # the noisy tenant's requests are there first
            return [await ask(victim, 1000 + number, 20, 12) for number in range(VICTIM_REQUESTS)]

        tasks = [asyncio.create_task(ask(noisy, number, 200, 48)) for number in range(NOISY_REQUESTS)]
        answers = await quiet()
        return {"victim": answers, "noisy": list(await asyncio.gather(*tasks))}


def test_the_victim_s_slowest_request_names_the_noisy_tenant_and_its_share(appliance: Appliance) -> None:
    victim, noisy = tenant_headers(appliance, "victim", "", IMPATIENT), tenant_headers(appliance, "noisy", "", {"queue_ttl_ms": None})
    answers = asyncio.run(crowd(appliance, victim, noisy))
    refused = [answer.text for answer in (*answers["victim"], *answers["noisy"]) if answer.status_code != 200]
    assert not refused
    with httpx.Client(base_url=appliance.base_url, timeout=60) as http:

        def explained(answer: httpx.Response, headers: dict[str, str]) -> dict[str, Any]:
            found = http.get(f"/v1/requests/{answer.json()['id']}/explain", headers=headers)
            assert found.status_code == 200, found.text
            assert sum(part["seconds"] for part in found.json()["parts"]) == pytest.approx(found.json()["total_s"], abs=1e-3)
            return found.json()

        mine = [(explained(answer, victim), answer) for answer in answers["victim"]]
        slowest, answer = max(mine, key=lambda pair: pair[0]["total_s"])
        admins = explained(answer, appliance.admin_headers)
        blamed_s = sum(part["seconds"] for part in admins["parts"] if part["tenant"] == "noisy")
        assert f"({blamed_s / admins['total_s']:.0%}) went to tenant noisy" in admins["verdict"], admins
        assert "went to another tenant" in slowest["verdict"] and "noisy" not in str(slowest)
        assert {"queue", "prefill", "decode"} <= {part["name"] for part in admins["parts"]}
        assert sum(chunk["tokens"] for chunk in admins["chunks"]) == admins["prompt_tokens"] - admins["cached_tokens"]
        for each in answers["noisy"]:
            explained(each, noisy)
        assert http.get(f"/v1/requests/{answer.json()['id']}/explain", headers=noisy).status_code == 404
        check_objectives(http, appliance, slowest["id"])


def check_objectives(http: httpx.Client, appliance: Appliance, slowest_id: str) -> None:
    """Every request of the victim missed its target: counted, in the slow log, and blamed on whom it was."""
    metrics = {"tenant": "victim", "lane": "slow", "slo": "ttft"}
    with httpx.Client(base_url=appliance.base_url, headers=appliance.headers) as client:
        assert metric(client, "slo_requests_total", outcome="bad", **metrics) == VICTIM_REQUESTS
        assert metric(client, "slo_requests_total", outcome="good", **metrics) == 0
        assert metric(client, "slo_target_seconds", **metrics) == pytest.approx(0.001)
    asked = {name: partial(http.get, f"/api/v1/{name}", headers=appliance.admin_headers) for name in ("slo", "slow", "tail")}
    objective = next(
        each for each in asked["slo"](params={"tenant": "victim"}).json()["slos"] if each["lane"] == "slow" and each["slo"] == "ttft"
    )
    assert (objective["bad"], objective["attainment"]) == (VICTIM_REQUESTS, 0) and objective["burn"]["5m"] > 1 > objective["budget_left"]
    until(lambda: slowest_id in [each["id"] for each in asked["slow"](params={"tenant": "victim"}).json()["slow"]])
    slow = {each["id"]: each for each in asked["slow"]().json()["slow"]}
    assert slow[slowest_id]["why"][0] == "ttft" and "went to tenant noisy" in slow[slowest_id]["verdict"]
    cost = {(each["victim"], each["culprit"]): each["seconds"] for each in asked["tail"]().json()["interference"]}
    assert cost["victim", "noisy"] > 0
