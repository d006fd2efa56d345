"""A short prompt that comes while a step works on long ones: the step is cut short, and only time is lost by it."""

import asyncio
from typing import Any

import httpx
import pytest

from engine.kernels.cpu.library import NativeUnavailable, native_library
from tests.appliance import Appliance
from tests.e2e.metrics import metric
from tests.e2e.tenants import tenant_headers

LONG_PROMPTS = 6
MOST_SHORT_PROMPTS = 60
WANTED_CUTS = 3


def long_body(number: int) -> dict[str, Any]:
    """Not streamed, and beyond what the fast lane takes."""
    prompt = f"Report {number}: " + " ".join(f"line{number + i}" for i in range(250))
    return {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True}


def short_body(number: int) -> dict[str, Any]:
    return {"prompt": f"Question {number}: what is the capital of France?", "max_tokens": 1, "temperature": 0, "stream": True}


async def crowd(appliance: Appliance, steady: dict[str, str], hasty: dict[str, str]) -> list[httpx.Response]:
    """What the long prompts got. Short ones come one after the other until steps have been cut for them."""
    async with httpx.AsyncClient(base_url=appliance.base_url, timeout=300) as http:

        async def ask(number: int) -> httpx.Response:
            return await http.post("/v1/completions", json=long_body(number), headers=steady)

        tasks = [asyncio.create_task(ask(number)) for number in range(LONG_PROMPTS)]
        await asyncio.sleep(0.2)
        for number in range(MOST_SHORT_PROMPTS):
            answer = await http.post("/v1/completions", json=short_body(number), headers=hasty)
            assert answer.status_code == 200, answer.text
            if all(task.done() for task in tasks):
                break
        return list(await asyncio.gather(*tasks))


def test_steps_on_long_prompts_are_cut_short_for_short_ones_and_nobodys_text_changes(appliance: Appliance, client: httpx.Client) -> None:
    if isinstance(native_library(), NativeUnavailable):
        pytest.skip("only the native kernels can stop between two layers")
    before = metric(client, "step_seconds_count", phase="interrupted")
    steady, hasty = tenant_headers(appliance, "steady", "", {"queue_ttl_ms": None}), tenant_headers(appliance, "hasty")
    answers = asyncio.run(crowd(appliance, steady, hasty))
    assert metric(client, "step_seconds_count", phase="interrupted") - before >= WANTED_CUTS
    assert metric(client, "busy_seconds_total", phase="interrupted") > 0
    lost = []
    for number, answer in enumerate(answers):
        alone = client.post("/v1/completions", json=long_body(number))
        assert alone.json()["choices"][0]["text"] == answer.json()["choices"][0]["text"]
        found = client.get(f"/v1/requests/{answer.json()['id']}/explain", headers=appliance.admin_headers).json()
        lost += [part for part in found["parts"] if part["name"] in ("prefill_wait", "decode_wait") and part["tenant"] == "hasty"]
    assert lost, "nobody was told whose prompt its step was cut short for"
