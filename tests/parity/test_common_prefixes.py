"""`--common-prefixes`: a system prompt computed once before ready, for the tenants of one trust group and nobody else."""

import asyncio
from typing import Any

import httpx

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until
from tests.parity.conftest import COMMON_PAGES, GROUP, NUM_PAGES, PAGE_TOKENS, SYSTEM_PROMPT

NUM_REQUESTS = 100


def conversation(number: int) -> dict[str, Any]:
    question = f"What does rule {number} say about {'x' * (number % 7)}?"
    return {
        "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }


def member(appliance: Appliance, slug: str, trust_group: str) -> dict[str, str]:
    """Headers of a new tenant's key, made through the admin API."""
    with httpx.Client(base_url=appliance.base_url, headers=appliance.admin_headers, timeout=30) as admin:
        created = admin.post("/api/v1/tenants", json={"slug": slug, "name": slug, "tier": "standard", "trust_group": trust_group})
        assert created.status_code == 201, created.text
        key = admin.post(f"/api/v1/tenants/{slug}/keys", json={"name": "parity", "scopes": ["inference"]})
        assert key.status_code == 201, key.text
        return {"Authorization": f"Bearer {key.json()['key']}"}


def ask(appliance: Appliance, numbers: range, headers: list[dict[str, str]]) -> list[dict[str, Any]]:
    """One chat request for each number, all in flight at once, the tenants by turns; their bodies."""

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=appliance.base_url, timeout=240) as client:
            return await asyncio.gather(
                *(client.post("/v1/chat/completions", json=conversation(n), headers=headers[n % len(headers)]) for n in numbers)
            )

    answers = asyncio.run(together())
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers if answer.status_code != 200][:1]
    return [answer.json() for answer in answers]


def cached_tokens(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_100_requests_of_two_tenants_share_one_set_of_125_pages_and_a_stranger_gets_none(baseline: Appliance) -> None:
    assert COMMON_PAGES == 125
    with httpx.Client(base_url=baseline.base_url, headers=baseline.headers, timeout=30) as client:

        def pages(state: str) -> float:
            return metric(client, "kv_pages", state=state)

        until(lambda: pages("used") == COMMON_PAGES)  # pinned, whoever runs or not
        members = [member(baseline, slug, GROUP) for slug in ("member-one", "member-two")]
        preempted = metric(client, "preemptions_total")
        answers = ask(baseline, range(NUM_REQUESTS), members)
        assert {cached_tokens(answer) for answer in answers} == {COMMON_PAGES * PAGE_TOKENS}
        until(lambda: metric(client, "running_requests") == 0 and pages("used") == COMMON_PAGES)
        assert pages("free") + pages("used") + pages("cached") == NUM_PAGES
        # 16 rows with pages of their own would need 2,000, and the pool has fewer: it only goes without preemption by sharing.
        assert metric(client, "preemptions_total") == preempted

        stranger = ask(baseline, range(1), [member(baseline, "stranger", "")])[0]
        assert cached_tokens(stranger) == 0
        assert stranger["choices"] == answers[0]["choices"], "what is computed anew reads the same"
