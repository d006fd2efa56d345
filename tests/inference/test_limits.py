"""Each limit an operator can set, enforced over HTTP; and that nothing is left over when clients hang up."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import uvloop
from prometheus_client import CollectorRegistry

from appliance.domain.access.directory import Directory
from appliance.domain.access.principal import Limits
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.service import Admission
from appliance.domain.inference.backend import Backend
from appliance.domain.inference.backpressure import Patience
from appliance.domain.inference.call import Call
from appliance.domain.inference.doorstep import Doorstep
from appliance.domain.inference.intake import CHAT, COMPLETIONS, GENERATE
from appliance.domain.inference.service import Clocks, InferenceService
from appliance.errors import ApplianceError
from appliance.runtime import Runtime, Watchers
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import RequestReport
from engine.wire import ModelCard, TenantPolicy
from tests.inference.fake_engine import FakeEngine, counting_answer
from tests.inference.harness import KEY, FixedSource, House, connect, in_background, key, snapshot, start_house

POLICIES: dict[str, dict[str, Any]] = {
    "rpm": {"rpm": 2},
    "tpm": {"tpm": 100},
    "parallel": {"tpm": 100},
    "day": {"tokens_per_day": 20},
    "month": {"tokens_per_month": 20},
    "context": {"max_context_tokens": 20},
    "caps": {"output_caps_tokens": {"other": 3, "chat": 4, "extract": 2}, "output_cap_mode": "clamp"},
    "refusing": {"output_caps_tokens": {"other": 3}, "output_cap_mode": "refuse"},
    "filling": {"output_caps_tokens": {"other": 3}},
    "ttl": {"queue_ttl_s": 0.05},
    "queued": {"max_queued": 1},
    "concurrency": {"max_concurrency": 1},
    "shadow": {
        "rpm": 1, "tpm": 1, "tokens_per_day": 1, "max_context_tokens": 2, "output_caps_tokens": {"other": 1}, "queue_ttl_s": 0.05,
        "shadow_mode": True,
    },
    "batchonly": {"lanes": ("batch",), "default_lane": "batch"},
    "slowdefault": {"default_lane": "slow"},
    "open": {},
}  # fmt: skip


def bearer(tenant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer fl-{tenant}-0123456789abcdef"}


@pytest.fixture(scope="module")
def limited(export: Path, card: ModelCard) -> Iterator[House]:
    policies = [TenantPolicy(tenant_id=name, **{"max_concurrency": None, **fields}) for name, fields in POLICIES.items()]
    keys = {f"fl-{name}-0123456789abcdef": key(name) for name in POLICIES}
    keys["fl-smallkey-0123456789abcdef"] = key("open", limits=Limits(rpm=1, tpm=500))
    with start_house(export, card, counting_answer, access=snapshot(*policies, **keys)) as house:
        yield house


@pytest.fixture
def house(limited: House) -> Iterator[House]:
    limited.set_engine(hold=False, step_s=0.0, max_rows=8)
    yield limited
    limited.set_engine(hold=False, step_s=0.0, max_rows=8)
    limited.until(lambda: limited.admission.num_in_flight == 0)


def ask(house: House, tenant: str, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    return house.post(path, {**prompt, **body}, headers={**bearer(tenant), **(headers or {})})


def refused(response: httpx.Response, status: int, code: str, reason: str = "") -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error.get("reason", "")) == (status, code, reason), response.text


def test_rpm(house: House) -> None:
    first, second, third = (ask(house, "rpm") for _ in range(3))
    assert (first.status_code, second.status_code) == (200, 200)
    refused(third, 429, "rate_limit_exceeded", "rate_requests")
    assert 1 <= int(third.headers["retry-after"]) <= 30
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, third)] == ["1", "0", "0"]
    assert third.headers["x-ratelimit-limit-requests"] == "2" and third.headers["x-ratelimit-reset-requests"].endswith("s")


def test_only_inference_requests_spend_rpm(house: House) -> None:
    for _ in range(3):
        assert house.client.get("/v1/models", headers=bearer("rpm")).status_code == 200
        assert house.post("/tokenize", {"prompt": "x"}, headers=bearer("rpm")).status_code == 200


def test_tpm_reserves_the_longest_output_and_settles_to_the_tokens_used(house: House) -> None:
    streamed = ask(house, "tpm", max_tokens=59, stream=True)
    assert streamed.status_code == 200 and streamed.headers["x-ratelimit-remaining-tokens"] == "40"
    too_many = ask(house, "tpm", max_tokens=60)
    refused(too_many, 429, "rate_limit_exceeded", "rate_tokens")
    assert too_many.headers["x-ratelimit-limit-tokens"] == "100"
    assert int(too_many.headers["retry-after"]) >= 1
    assert ask(house, "tpm", max_tokens=20).status_code == 200


def test_parallel_requests_never_pass_tpm_by_more_than_one_reservation(house: House) -> None:
    house.set_engine(hold=True)
    refused_there = house.metric("rejections_total", tenant="parallel")
    with ThreadPoolExecutor(20) as crowd:  # of 30 tokens each, where 100 a minute are allowed
        asked = [crowd.submit(ask, house, "parallel", max_tokens=29) for _ in range(20)]
        house.until(lambda: house.metric_now("rejections_total", tenant="parallel") - refused_there == 17)
        assert house.on_loop(lambda: house.admission.reserved_tokens) == 90
        house.set_engine(hold=False)
    answers = Counter(each.result().status_code for each in asked)
    assert answers == {200: 3, 429: 17}, answers


@pytest.mark.parametrize("period", ["day", "month"])
def test_token_budgets(house: House, period: str) -> None:
    assert ask(house, period, max_tokens=30).status_code == 200
    spent = ask(house, period, max_tokens=1)
    refused(spent, 429, "insufficient_quota", "budget")
    assert spent.headers["x-should-retry"] == "false" and f"a {period}" in spent.json()["error"]["message"]


def test_max_context(house: House) -> None:
    too_long = ask(house, "context", max_tokens=20)
    refused(too_long, 400, "context_length_exceeded")
    assert "the max_context of tenant 'context'; the model itself has 2048" in too_long.json()["error"]["message"]
    refused(house.post("/v1/completions", {"prompt": list(range(5, 25))}, headers=bearer("context")), 400, "context_length_exceeded")
    assert ask(house, "context", max_tokens=19).json()["usage"]["total_tokens"] == 20
    assert house.metric("rejections_total", tenant="context", reason="too_long") == 2


def test_output_caps_by_task(house: House) -> None:
    lengths = {
        "route": ask(house, "caps", max_tokens=50),
        "chat": ask(house, "caps", "/v1/chat/completions", max_tokens=50),
        "header": ask(house, "caps", headers={"X-Task": "extract"}, max_tokens=50),
        "built in": ask(house, "caps", max_tokens=900, task="reason"),
        "below": ask(house, "caps", max_tokens=1),
        "absent": ask(house, "caps"),
        "filled": ask(house, "filling"),
        "asked for": ask(house, "filling", max_tokens=50),
        "asked for with a task": ask(house, "filling", max_tokens=50, task="other"),
    }
    tokens = {name: answer.json()["usage"]["completion_tokens"] for name, answer in lengths.items()}
    assert tokens == {
        "route": 3, "chat": 4, "header": 2, "built in": 768, "below": 1, "absent": 3, "filled": 3,
        "asked for": 50, "asked for with a task": 3,
    }  # fmt: skip
    details = {name: answer.json()["choices"][0]["finish_detail"] for name, answer in lengths.items()}
    assert details == {name: "max_tokens" if name in ("below", "asked for") else "output_cap" for name in lengths}
    assert lengths["route"].json()["choices"][0]["finish_reason"] == "length"
    refused(ask(house, "caps", headers={"X-Task": "poetry"}), 400, "invalid_value")
    refused(ask(house, "caps", headers={"X-Task": "chat"}, task="reason"), 400, "invalid_value")


def test_a_refusing_cap_refuses_what_is_above_it_with_the_number(house: House) -> None:
    above = ask(house, "refusing", max_tokens=4)
    refused(above, 400, "output_cap_exceeded")
    assert "at most 3 tokens" in above.json()["error"]["message"]
    assert ask(house, "refusing", max_tokens=3).status_code == ask(house, "refusing").status_code == 200


def test_queue_ttl(house: House) -> None:
    house.set_engine(hold=True)
    for stream in (True, False):
        expired = ask(house, "ttl", stream=stream)
        refused(expired, 503, "queue_timeout", "queue_timeout")
        assert "retry-after" in expired.headers
    assert house.metric("requests_total", tenant="ttl", outcome="expired") == 2
    assert house.metric("rejections_total", tenant="ttl", reason="queue_timeout") == 2
    house.until(lambda: not house.engine.queued)
    house.set_engine(hold=False, step_s=0.005)
    assert ask(house, "ttl", max_tokens=30).status_code == 200, "it runs longer than it may wait"


def test_max_queued(house: House) -> None:
    house.set_engine(hold=True)
    with in_background(house, 1, bearer("queued")):
        house.until(lambda: len(house.engine.queued) == 1)
        refused(ask(house, "queued"), 429, "rate_limit_exceeded", "queue_full")
        house.set_engine(hold=False)


def test_max_concurrency(house: House) -> None:
    house.set_engine(hold=True)
    with in_background(house, 1, bearer("concurrency")):
        house.until(lambda: len(house.engine.queued) == 1)
        refused(ask(house, "concurrency"), 429, "rate_limit_exceeded", "concurrency")
        house.set_engine(hold=False)


def test_lanes(house: House) -> None:
    refused(ask(house, "batchonly", service_tier="priority"), 403, "lane_not_allowed")
    assert ask(house, "batchonly", stream=True).status_code == 200
    assert house.metric("requests_total", tenant="batchonly", lane="batch", outcome="completed") == 1


def test_default_lane(house: House) -> None:
    for tenant, lane in (("slowdefault", "slow"), ("open", "fast")):
        before = house.metric("requests_total", tenant=tenant, lane=lane, outcome="completed")
        assert ask(house, tenant, stream=True).status_code == 200
        assert house.metric("requests_total", tenant=tenant, lane=lane, outcome="completed") == before + 1


def test_a_keys_own_limits_are_beneath_its_tenants(house: House) -> None:
    assert ask(house, "smallkey").headers["x-ratelimit-limit-tokens"] == "500"
    refused(ask(house, "smallkey"), 429, "rate_limit_exceeded", "rate_requests")
    unlimited = ask(house, "open")
    assert unlimited.status_code == 200 and not [name for name in unlimited.headers if name.startswith("x-ratelimit")]


def test_shadow_mode_refuses_nothing_and_counts_what_would_have_been_refused(house: House) -> None:
    assert ask(house, "shadow", max_tokens=1).status_code == 200
    for _ in range(2):
        whole = ask(house, "shadow", max_tokens=9)
        assert whole.status_code == 200 and whole.json()["usage"]["completion_tokens"] == 9
    house.set_engine(hold=True)
    with in_background(house, 1, bearer("shadow")):
        house.until(lambda: len(house.engine.queued) == 1)
        house.set_engine(hold=False)
    assert house.metric("shadow_rejections_total", tenant="shadow", reason="budget") == 3
    assert house.metric("requests_total", tenant="shadow", outcome="completed") == 4
    assert house.metric("rejections_total", tenant="shadow") == 0


# ---- nothing is left over ---------------------------------------------------------------------------------------


class Client:
    """One ASGI client: it takes so many chunks, or waits so long, and then it is gone."""

    def __init__(self, leaves_after_chunks: int | None, leaves_after_s: float | None) -> None:
        self._gone = asyncio.Event()
        self._chunks = leaves_after_chunks
        if leaves_after_s is not None:
            asyncio.get_running_loop().call_later(leaves_after_s, self._gone.set)

    async def receive(self) -> dict[str, str]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._chunks is not None:
            self._chunks -= 1
            if self._chunks <= 0:
                self._gone.set()
        await asyncio.sleep(0)


class Books:
    """A serving half without sockets to clients, and all reports of its requests."""

    def __init__(self, card: ModelCard) -> None:
        policy = TenantPolicy(tenant_id="default", max_concurrency=200, tpm=10**12, rpm=10**9, queue_ttl_s=5.0)
        access = snapshot(policy, **{KEY: key("default", limits=Limits(tpm=10**12))})
        self.gate, self.backend, self.reports = Gate(), Backend(), list[RequestReport]()
        directory = Directory(FixedSource(access), access)
        telemetry = Telemetry(CollectorRegistry())
        telemetry.record_usage = self.reports.append
        self.runtime = Runtime(directory, self.gate, self.backend, telemetry, (), Watchers(lambda _: None, lambda _: None, lambda _: None))
        self.admission = Admission(self.gate, 10_000)
        clocks = Clocks(monotonic_ns=time.monotonic_ns, wall_s=time.time)
        doorstep = Doorstep(50.0, 1 << 20, self.gate.require_open)
        patience = Patience(0, 30.0)
        self.inference = InferenceService(directory, self.admission, self.backend, telemetry, clocks, random.Random(0), patience, doorstep)
        self.engine = FakeEngine(card, counting_answer, max_rows=64)

    async def visit(self, number: int, rng: random.Random) -> None:
        route, body = rng.choice(
            ((COMPLETIONS, '"prompt":[5,6,7]'), (GENERATE, '"prompt":"x"'), (CHAT, '"messages":[{"role":"user","content":"x"}]'))
        )
        stream = rng.random() < 0.5
        raw = f'{{{body},"max_tokens":{rng.randrange(1, 12)},"n":{rng.randrange(1, 3)},"stream":{str(stream).lower()}}}'.encode()

        async def read_body() -> bytes:
            return raw

        call = Call(
            request_id=f"req_{number}",
            received_ns=time.monotonic_ns(),
            raw_key=KEY,
            tenant_header=None,
            body_bytes=len(raw),
            read_body=read_body,
        )
        try:
            exchange = await self.inference.open(call, route)
            leaves = rng.random()
            client = Client(rng.randrange(1, 8) if leaves < 0.5 else None, rng.random() * 0.02 if leaves < 0.3 else None)
            await exchange({"state": {}}, client.receive, client.send)  # pyright: ignore[reportArgumentType]
        except ApplianceError:
            await asyncio.sleep(0.005)  # as clients do before they try again

    async def storm(self, number: int, export: Path) -> None:
        await connect(self.runtime, self.engine, export)
        while self.gate.condition.state != "open":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        rng, seats = random.Random(11), asyncio.Semaphore(205)

        async def seated(each: int) -> None:
            async with seats:
                await self.visit(each, rng)

        await asyncio.gather(*(seated(each) for each in range(number)))
        while self.engine.running or self.engine.queued:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.engine.die()
        self.runtime.new_client()
        await asyncio.sleep(0.01)


def test_after_3000_random_disconnects_slots_and_reservations_are_0_and_settled_tokens_are_usage(export: Path, card: ModelCard) -> None:
    books = Books(card)
    with structlog.testing.capture_logs():
        uvloop.run(books.storm(3_000, export))  # 10,000 of a served process: tests/served/test_disconnects.py
    admission, outcomes = books.admission, Counter(report.outcome.value for report in books.reports)
    assert (admission.num_in_flight, admission.num_waiting, admission.reserved_tokens, books.backend.num_live) == (0, 0, 0, 0)
    assert len(books.reports) == len({report.request_id for report in books.reports}) == 3_000
    assert outcomes["cancelled"] > 300 and outcomes["completed"] > 300 and outcomes["rejected"] > 30, outcomes
    assert admission.spent_today("default") == sum(report.billed.tokens for report in books.reports)
