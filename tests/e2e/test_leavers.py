"""Clients that leave, and clients that do not read, at the served SmolLM2: nothing of theirs is left, and nobody waits for them."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until
from tests.e2e.tenants import tenant_headers

ROWS = 16
LEAVER = "leaver"


@pytest.fixture(scope="module")
def leaver(appliance: Appliance) -> dict[str, str]:
    return tenant_headers(appliance, LEAVER, overrides={"queue_ttl_ms": None})  # admission is not what is tried here


@pytest.fixture
def idle(client: httpx.Client) -> Iterator[float]:
    """KV pages in use while nothing runs."""
    until(lambda: metric(client, "running_requests") + metric(client, "queue_depth") == 0)
    yield metric(client, "kv_pages", state="used")
    until(lambda: metric(client, "running_requests") + metric(client, "queue_depth") == 0)


def begin(appliance: Appliance, headers: dict[str, str], *, receive_bytes: int = 0, **body: Any) -> socket.socket:
    """A request on a socket of our own, sent whole, its answer not read."""
    url = httpx.URL(appliance.base_url)
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(60)
    sock.connect((url.host, url.port))
    content = json.dumps({"temperature": 0, "ignore_eos": True, **body}).encode()
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        f"Authorization: {headers['Authorization']}",
        f"Content-Length: {len(content)}",
        "",
        "",
    ]
    sock.sendall("\r\n".join(head).encode() + content)
    return sock


def long_prompt(seed: int) -> list[int]:
    """Tokens that no earlier request had."""
    return [100 + (seed * 7919 + place * 31) % 40_000 for place in range(3_900)]


def cancelled(client: httpx.Client, stage: str) -> float:
    return metric(client, "cancellations_total", stage=stage, cause="disconnect", tenant=LEAVER)


def booked(appliance: Appliance) -> int:
    """Cancelled requests of the leaver in the books."""
    answer = httpx.get(f"{appliance.base_url}/api/v1/usage", params={"tenant": LEAVER}, headers=appliance.admin_headers)
    return sum(row["requests"] for row in answer.json()["usage"] if row["outcome"] == "cancelled")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_in_prefill_gives_back_what_it_had(
    appliance: Appliance, client: httpx.Client, leaver: dict[str, str], idle: float, stream: bool
) -> None:
    before, in_books = cancelled(client, "prefill"), booked(appliance)
    with closing(begin(appliance, leaver, prompt=long_prompt(1 + stream), max_tokens=50, stream=stream)):
        until(lambda: metric(client, "kv_pages", state="used") > idle)
    until(lambda: cancelled(client, "prefill") == before + 1)
    until(lambda: metric(client, "kv_pages", state="used") == idle)
    until(lambda: booked(appliance) == in_books + 1)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_tokens_come_gives_back_what_it_had(
    appliance: Appliance, client: httpx.Client, leaver: dict[str, str], idle: float, stream: bool
) -> None:
    before, in_books = cancelled(client, "decode"), booked(appliance)
    with closing(begin(appliance, leaver, prompt="Once upon a time", max_tokens=3_000, stream=stream)):
        until(lambda: metric(client, "kv_pages", state="used") > idle + 2)
    until(lambda: cancelled(client, "decode") == before + 1)
    until(lambda: metric(client, "kv_pages", state="used") == idle)
    until(lambda: booked(appliance) == in_books + 1)


def test_a_client_that_leaves_the_queue_gives_back_its_place_and_nothing_is_computed_for_it(
    appliance: Appliance, client: httpx.Client, leaver: dict[str, str], idle: float
) -> None:
    before, in_books, begun = cancelled(client, "queue"), booked(appliance), metric(client, "queue_wait_seconds_count", tenant=LEAVER)
    with ExitStack() as others:
        for _ in range(ROWS):
            others.enter_context(closing(begin(appliance, appliance.headers, prompt="Count:", max_tokens=3_000)))
        until(lambda: metric(client, "running_requests") + metric(client, "queue_depth") == ROWS)
        with ExitStack() as waiting:
            for _ in range(ROWS):
                waiting.enter_context(closing(begin(appliance, leaver, prompt="Count:", max_tokens=3_000)))
            until(lambda: metric(client, "queue_depth") > 0)
        until(lambda: booked(appliance) == in_books + ROWS)
        assert cancelled(client, "queue") > before
    begun = metric(client, "queue_wait_seconds_count", tenant=LEAVER) - begun
    assert begun + cancelled(client, "queue") - before == ROWS, "whoever left the queue never had a first chunk"
    until(lambda: metric(client, "kv_pages", state="used") == idle)


def test_readers_that_take_nothing_draw_no_tokens_and_leave_their_rows_to_others(
    appliance: Appliance, client: httpx.Client, leaver: dict[str, str], idle: float
) -> None:
    generated = metric(client, "tokens_total", direction="generated", tenant=LEAVER)
    slow = [begin(appliance, leaver, receive_bytes=2048, prompt=f"Story {n}:", max_tokens=3_000, stream=True) for n in range(ROWS)]
    with ExitStack() as readers:
        for sock in slow:
            readers.enter_context(closing(sock))
        until(lambda: is_resting(client))
        asked = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        answer = client.post("/v1/completions", json=asked, headers=leaver)
        assert answer.status_code == 200 and "Paris" in answer.json()["choices"][0]["text"]
        assert metric(client, "preemptions_total", cause="slow_reader") >= 1, "all rows of this tenant were theirs"
    until(lambda: metric(client, "kv_pages", state="used") == idle)
    until(lambda: metric(client, "backpressure_pauses_total", tenant=LEAVER) >= ROWS)
    drawn = metric(client, "tokens_total", direction="generated", tenant=LEAVER) - generated
    assert 0 < drawn < ROWS * 600, "a small part of what was asked for"


def is_resting(client: httpx.Client) -> bool:
    """No step is made, although rows are taken."""
    before = metric(client, "step_seconds_count")
    time.sleep(0.3)  # looking at another process
    return metric(client, "running_requests") > 0 == metric(client, "queue_depth") and metric(client, "step_seconds_count") == before


def test_a_reader_that_lags_gets_the_same_answer_when_it_goes_on(appliance: Appliance, client: httpx.Client, idle: float) -> None:
    asked: dict[str, Any] = {"prompt": "Numbers: 1, 2, 3,", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    whole = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    pauses = metric(client, "backpressure_pauses_total")
    with closing(begin(appliance, appliance.headers, receive_bytes=2048, stream=True, **asked)) as sock:
        until(lambda: is_resting(client))
        answer = b""
        while not answer.endswith(b"0\r\n\r\n"):
            answer += sock.recv(1_000)
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in answer.decode().splitlines() if line.startswith("data: {"))
    assert text == whole
    assert metric(client, "backpressure_pauses_total") > pauses
    request_id = next(line.split(": ")[1] for line in answer.decode().splitlines() if line.lower().startswith("x-request-id: "))
    parts = client.get(f"/v1/requests/{request_id}/explain").json()["parts"]
    assert sum(part["seconds"] for part in parts if part["name"] == "backpressure") > 0.2, "its reader's time, and no tenant's"
    assert all(part["tenant"] is None for part in parts if part["name"] == "backpressure")
