"""A rotated key is the same customer: what the old key has used of its own limits, the new one has used."""

from pathlib import Path
from typing import Any

import httpx

from tests.inference.test_serve import Served, serving
from tests.served.clients import ADMIN_HEADERS, new_tenant

KEYS = "/api/v1/tenants/acme/keys"


def admin(served: Served, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(served.url + path, json=body, headers=ADMIN_HEADERS)
    assert answer.status_code == 201, answer.text
    return answer.json()


def ask(served: Served, key: str) -> httpx.Response:
    return httpx.post(served.url + "/generate", json={"prompt": "x", "max_tokens": 4}, headers={"Authorization": f"Bearer {key}"})


def test_a_successor_goes_on_with_the_rates_and_budgets_of_its_predecessors_also_after_a_restart(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        assert new_tenant(served, "acme").status_code == 201
        first = admin(served, KEYS, {"name": "rate", "rpm": 2})
        assert [ask(served, first["key"]).status_code for _ in range(2)] == [200, 200]
        second = admin(served, f"{KEYS}/{first['id']}/rotate", {})
        third = admin(served, f"{KEYS}/{second['id']}/rotate", {})
        for key in (first, second, third):
            refused = ask(served, key["key"])
            assert (refused.status_code, refused.json()["error"]["reason"]) == (429, "rate_requests")
            assert f"key '{key['id']}'" in refused.json()["error"]["message"]
        spender = admin(served, KEYS, {"name": "budget", "tokens_per_day": 5})
        assert ask(served, spender["key"]).status_code == 200
        successor = admin(served, f"{KEYS}/{spender['id']}/rotate", {})
        assert ask(served, successor["key"]).json()["error"]["code"] == "insufficient_quota"
        served.process.terminate()
        assert served.process.wait(20) == 0
    with serving(tmp_path, export) as served:
        for key in (spender, successor):
            assert ask(served, key["key"]).json()["error"]["code"] == "insufficient_quota"
        assert ask(served, admin(served, KEYS, {"name": "new", "tokens_per_day": 5})["key"]).status_code == 200
