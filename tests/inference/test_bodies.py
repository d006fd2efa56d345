"""Bodies that do not come, come slowly, or are too much to look at; and answers without one."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from appliance.domain.inference.body_bounds import LARGE_BODY_BYTES, refuse_crowded_body
from appliance.errors import Invalid
from engine.wire import ModelCard
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import KEY, House, start_house


@pytest.fixture(scope="module")
def hasty(export: Path, card: ModelCard) -> Iterator[House]:
    with start_house(export, card, counting_answer, body_deadline_s=0.2) as house:
        yield house


def read_all(sock: socket.socket) -> bytes:
    answer = b""
    while part := sock.recv(65536):
        answer += part
    return answer


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("trickles", [False, True])
def test_a_body_that_does_not_arrive_in_time_is_answered_408_and_the_connection_closed(hasty: House, path: str, trickles: bool) -> None:
    url = httpx.URL(hasty.base_url)
    with closing(socket.create_connection((url.host, url.port or 0), timeout=10)) as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n"
        sock.sendall(head.encode() + (b'{"prom' if trickles else b""))
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"code":"request_timeout"' in answer and b"0.2 s" in answer


def test_a_request_that_came_in_time_may_run_longer_than_its_body_may_take(hasty: House) -> None:
    hasty.set_engine(step_s=0.01)
    assert hasty.post("/v1/completions", {"prompt": "x", "max_tokens": 40}).json()["usage"]["completion_tokens"] == 40
    assert hasty.metric("requests_total", outcome="failed") == 0


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/v1/models"])
def test_head_answers_as_get_does_without_a_body(house: House, path: str) -> None:
    got, head = house.client.get(path), house.client.head(path)
    assert head.status_code == got.status_code == 200 and head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"] and int(head.headers["content-length"]) > 0


def many(item: bytes, number: int) -> bytes:
    return b",".join([item] * number)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"user": "u", "prompt": [ %b], "max_tokens": 1}' % many(b"12345", 20_000), "has 20000 items"),
        (b'{"prompt": [[1], [%b]]}' % many(b"12345", 20_000), "has 20000 items"),
        (b'{"prompt": "x", "stop_token_ids": [%b]}' % many(b"7", 50_000), "has 50000 items"),
        (b'{"prompt": "x", "logit_bias": {%b}}' % many(b'"7":1', 20_000), "has 20000 items"),
        (b'{"prompt": [%b]}' % many(b'"a"', 40_000), "has 40001 texts"),
        (b'{"prompt": [%b]}' % many(rb'"\\"', 40_000), "has 40001 texts"),
        (b'{"prompt": [%b]}' % many(b"[]", 40_000), "has 40002 lists"),
        (b'{"messages": [%b]}' % many(b"{}", 40_000), "has 40002 lists"),
        (b'{"messages": [{"role": "user", "content": [%b]}]}' % many(b'{"type":"text","text":""}', 9_000), "has 36004 texts"),
    ],
)
def test_a_body_with_more_items_than_any_request_can_use_is_refused_before_it_is_decoded(body: bytes, found: str, card: ModelCard) -> None:
    assert card.max_model_len == 2048 and len(body) > LARGE_BODY_BYTES
    with pytest.raises(Invalid, match=f"{found}.*; the context is 2048 tokens"):
        refuse_crowded_body(body, 2048)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": [%b]}' % many(b"12345", 2_048),
        b'{"prompt": [%b]}' % many(b"[%b]" % many(b"1", 2_048), 100),
        b'{"prompt": "%b"}' % many(b"12345", 20_000),
        b'{"prompt": ["%b"]}' % many(b"[{:}]", 40_000),
        b'{"prompt": "%b"}' % (rb"\\" * 40_000 + rb"\"" * 40_000),
        b'{"messages": [%b]}' % many(b'{"role":"user","content":[{"type":"text","text":"x"}]}', 2_048),
        many(b"12345", 20_000),
    ],
)
def test_what_a_request_can_use_is_left_to_the_decoder_however_many_marks_its_texts_hold(body: bytes) -> None:
    refuse_crowded_body(body, 2048)


def test_a_million_token_ids_are_refused_over_http(house: House) -> None:
    answer = house.client.post("/v1/completions", content=b'{"prompt":[%b]}' % b",".join([b"7"] * 400_000))
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert "400000" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"])
def test_a_crowded_body_is_refused_on_every_route(house: House, path: str) -> None:
    answer = house.client.post(path, content=b'{"prompt":[%b]}' % many(b"[]", 300_000))
    assert answer.status_code == 400 and "300002 lists" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "field"), [("/v1/completions", "prompt"), ("/tokenize", "prompt"), ("/v1/chat/completions", "messages")])
def test_long_texts_of_a_tenant_wait_for_its_turn_and_short_ones_do_not(house: House, path: str, field: str) -> None:
    (key,) = house.directory.snapshot.policies.keys() & {house.directory.authenticate(KEY, None).tenant_id}
    held = house.inference._turns.take(key, 100_000)
    asyncio.run_coroutine_threadsafe(held.__aenter__(), house.loop).result(10)
    long = "A line of text. " * 200
    values = {text: [{"role": "user", "content": text}] if field == "messages" else text for text in (long, "short")}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(house.post, path, {field: values[long]})
        house.until(lambda: bool(house.inference._turns._locks[key]._waiters))  # pyright: ignore[reportAttributeAccessIssue]
        assert house.post(path, {field: values["short"]}).status_code == 200
        assert not answer.done()
        asyncio.run_coroutine_threadsafe(held.__aexit__(None, None, None), house.loop).result(10)
        assert answer.result(10).status_code == 200
