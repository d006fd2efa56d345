"""Pages of live and slow requests, on the served model: an operator sees a request, ends it, and reads where its time went."""

import html
import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.appliance import Appliance
from tests.e2e.metrics import until

PASSWORD = "a horse, a staple"
BODY = {"prompt": "Count to one thousand: one, two,", "max_tokens": 1500, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module", params=["viewer", "operator"])
def browser(request: pytest.FixtureRequest, appliance: Appliance) -> Iterator[httpx.Client]:
    """Logged in; its headers name the role."""
    role: str = request.param
    admin = {"name": f"pages-{role}", "password": PASSWORD}
    api = appliance.base_url + "/api/v1"
    httpx.post(api + "/admins", json={**admin, "role": role}, headers=appliance.admin_headers).raise_for_status()
    with httpx.Client(base_url=appliance.base_url, timeout=30, headers={"x-role": role}) as client:
        client.post("/api/v1/login", json=admin).raise_for_status()
        yield client


def page(browser: httpx.Client, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200 and "<html" in answer.text, (path, answer.status_code)
    return html.unescape(answer.text)


def test_a_request_is_seen_live_ended_and_its_time_line_read(appliance: Appliance, browser: httpx.Client) -> None:
    may_cancel = browser.headers["x-role"] == "operator"
    with httpx.stream("POST", appliance.base_url + "/v1/completions", json=BODY, headers=appliance.headers, timeout=120) as running:
        lines = running.iter_lines()
        next(lines)
        request_id = running.headers["x-request-id"]
        assert f'title="{request_id}"' in page(browser, "/ui/requests?tenant=default&stage=decode")
        assert "No request in flight matches" in page(browser, "/ui/requests?tenant=nobody")
        shown = page(browser, f"/ui/requests/{request_id}")
        assert "Running for" in shown and ("Cancel this request" in shown) is may_cancel
        token = re.search(r'name="csrf_token" value="([^"]+)"', shown)
        assert token is not None
        answer = browser.post(f"/ui/requests/{request_id}/cancel", data={"csrf_token": token[1]})
        assert answer.status_code == (303 if may_cancel else 403)
        if may_cancel:
            last = [line for line in lines if line][-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled_by_operator"
            assert browser.post(f"/ui/requests/{request_id}/cancel", data={"csrf_token": token[1]}).status_code == 404
            audit = httpx.get(
                appliance.base_url + "/api/v1/audit", params={"target": "tenant:default"}, headers=appliance.admin_headers
            ).json()["events"][0]
            assert (audit["action"], audit["actor"], audit["after"]["request"]) == ("request.cancel", "admin:pages-operator", request_id)
            shown = page(browser, f"/ui/requests/{request_id}")
            assert "Cancelled (admin) after" in shown and "computing the prompt" in shown

            def page_says_the_verdict() -> bool:
                """Once the engine has told of the last step, which may come behind the request's end."""
                answer = httpx.get(f"{appliance.base_url}/v1/requests/{request_id}/explain", headers=appliance.admin_headers)
                return answer.json()["verdict"] in page(browser, f"/ui/requests/{request_id}")

            until(page_says_the_verdict, timeout_s=20)
            fragment = browser.get(f"/ui/requests/{request_id}/timeline").text
            assert "<html" not in fragment and fragment.count("<rect") >= 3


def test_a_slow_request_is_listed_with_its_reason_and_leads_to_its_time_line(appliance: Appliance, browser: httpx.Client) -> None:
    tenant = f"late-{browser.headers['x-role']}"
    overrides = {"ttft_ms": {"fast": 1}, "shadow_mode": True}
    with httpx.Client(base_url=appliance.base_url + "/api/v1", headers=appliance.admin_headers) as api:
        api.post("/tenants", json={"slug": tenant, "tier": "standard", "overrides": overrides}).raise_for_status()
        key = api.post(f"/tenants/{tenant}/keys", json={"name": "k"}).raise_for_status().json()["key"]
    bearer = {"Authorization": f"Bearer {key}"}
    body = {"prompt": "Say yes.", "max_tokens": 4, "stream": True}
    httpx.post(appliance.base_url + "/v1/completions", json=body, headers=bearer, timeout=60).raise_for_status()
    with browser.stream("GET", f"/ui/live/slow?tenant={tenant}&why=ttft") as updates:  # it is explained behind the request
        shown = next(line for line in updates.iter_lines() if line.startswith("data: ") and "past its target" in line)
    found = re.search(r"/ui/requests/(req_\w+)", shown)
    assert found is not None
    shown = page(browser, f"/ui/requests/{found[1]}")
    assert "past its target" in shown and '<a href="/ui/slow" aria-current="page">' in shown
    assert "No slow request matches" in page(browser, f"/ui/slow?tenant={tenant}&lane=batch")
    assert browser.get("/ui/requests/req_unknown").status_code == 404
