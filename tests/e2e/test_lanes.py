"""Lanes of the served SmolLM2: the scheduler has the last word, and the books name the lane a request ran in."""

import re
from typing import Any

import httpx

from tests.appliance import Appliance
from tests.e2e.conftest import GROUP
from tests.e2e.metrics import metric
from tests.e2e.tenants import tenant_headers
from tests.e2e.test_smollm2 import conversation


def test_a_long_prompt_runs_fast_where_it_is_cached_and_slow_where_it_is_not(appliance: Appliance, client: httpx.Client) -> None:
    members = [tenant_headers(appliance, "lane-member", GROUP), tenant_headers(appliance, "lane-stranger", "")]
    streamed: dict[str, Any] = {**conversation("Which rule is the first?"), "stream": True}
    for headers in members:
        assert client.post("/v1/chat/completions", json=streamed, headers=headers).status_code == 200

    def completed(tenant: str, lane: str) -> float:
        return metric(client, "requests_total", tenant=tenant, lane=lane, outcome="completed")

    assert (completed("lane-member", "fast"), completed("lane-member", "slow")) == (1, 0)
    assert (completed("lane-stranger", "fast"), completed("lane-stranger", "slow")) == (0, 1)


def test_a_request_may_name_its_lane(appliance: Appliance, client: httpx.Client) -> None:
    headers = tenant_headers(appliance, "lane-namer", "")
    body = {"prompt": "Hello", "max_tokens": 1, "lane": "batch"}
    assert client.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert metric(client, "requests_total", tenant="lane-namer", lane="batch", outcome="completed") == 1
    contradiction = client.post("/v1/completions", json={**body, "service_tier": "priority"}, headers=headers)
    assert contradiction.status_code == 400 and contradiction.json()["error"]["param"] == "lane"


def test_the_log_suggests_a_threshold_for_this_machine(appliance: Appliance) -> None:
    assert re.search(r"suggested_fast_prompt_tokens\W+(0|64)\b", appliance.log())
