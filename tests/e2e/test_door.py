"""At the door of the served SmolLM2: who is refused too often waits there, and who waited too long is refused without being computed."""

import asyncio
from contextlib import ExitStack, closing

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until
from tests.e2e.tenants import tenant_headers
from tests.e2e.test_leavers import ROWS, begin

FLOOD = 150


async def hammer(appliance: Appliance, headers: dict[str, str], others: dict[str, str]) -> tuple[set[int], int]:
    """What so many requests got that are sent at once and can not be served, and one of another tenant meanwhile."""
    limits = httpx.Limits(max_connections=FLOOD + 1)
    async with httpx.AsyncClient(base_url=appliance.base_url, timeout=60, limits=limits) as http:

        async def ask(asking: dict[str, str], max_tokens: int) -> int:
            return (await http.post("/v1/completions", json={"prompt": "x", "max_tokens": max_tokens}, headers=asking)).status_code

        flood = [asyncio.create_task(ask(headers, 0)) for _ in range(FLOOD)]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        other = await ask(others, 1)
        return set(await asyncio.gather(*flood)), other


def test_a_tenant_that_hammers_with_requests_that_are_refused_waits_and_another_does_not(
    appliance: Appliance, client: httpx.Client
) -> None:
    hammering, others = tenant_headers(appliance, "hammering"), tenant_headers(appliance, "bystander")
    assert asyncio.run(hammer(appliance, hammering, others)) == ({400}, 200)
    assert metric(client, "rejections_total", tenant="hammering") == FLOOD
    assert metric(client, "door_holds_total", tenant="hammering") > 0 and metric(client, "door_hold_seconds_total", tenant="hammering") > 0
    assert metric(client, "door_holds_total", tenant="bystander") == 0


def unserved(client: httpx.Client, tenant: str) -> float:
    """Of its requests those that found no row in time, and those that were refused because one before them still waited."""
    return sum(metric(client, "requests_total", tenant=tenant, outcome=outcome) for outcome in ("expired", "rejected"))


def test_who_waits_longer_than_its_tier_allows_is_refused_and_nothing_of_it_was_computed(
    appliance: Appliance, client: httpx.Client
) -> None:
    hurried = tenant_headers(appliance, "hurried", overrides={"ttft_ms": None, "queue_ttl_ms": 300})
    with ExitStack() as running:
        begun = 0
        # the last row or two are for other tenants; on a machine that stands still for a moment one waits too long beside a free row
        while metric(client, "running_requests") < ROWS - 2 or not unserved(client, "hurried"):
            running.enter_context(closing(begin(appliance, hurried, prompt="Count:", max_tokens=3_000)))
            begun += 1
            until(lambda: metric(client, "running_requests") + unserved(client, "hurried") == begun)  # noqa: B023 - called at once
        late = client.post("/v1/completions", json={"prompt": "Count:", "max_tokens": 1}, headers=hurried)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout") and "0.3 s" in late.json()["error"]["message"]
    assert "retry-after" in late.headers
    until(lambda: metric(client, "requests_total", tenant="hurried") == begun + 1)
    assert metric(client, "requests_total", tenant="hurried", outcome="expired") >= 1
    assert metric(client, "queue_wait_seconds_count", tenant="hurried") == begun + 1 - unserved(client, "hurried")
