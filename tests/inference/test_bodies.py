"""Bodies that do not come, come slowly, or are too much to look at; and answers without one."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from appliance.domain.inference.schemas import LARGE_BODY_BYTES, refuse_endless_prompt
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


def test_more_token_ids_than_the_context_holds_are_refused_before_they_are_decoded(card: ModelCard) -> None:
    assert card.max_model_len == 2048
    ids = b",".join([b"12345"] * 20_000)
    assert len(ids) > LARGE_BODY_BYTES
    with pytest.raises(Invalid, match=r"20000 items; the context is 2048"):
        refuse_endless_prompt(b'{"user": "u", "prompt": [ %b], "max_tokens": 1}' % ids, 2048)
    for fine in (b'{"prompt":[%b]}' % ids[:60], b'{"prompt":"%b"}' % ids, b'{"prompt":["%b"]}' % ids, b'{"prompt":[[1],[%b]]}' % ids, ids):
        refuse_endless_prompt(fine, 2048)


def test_a_million_token_ids_are_refused_over_http(house: House) -> None:
    answer = house.client.post("/v1/completions", content=b'{"prompt":[%b]}' % b",".join([b"7"] * 400_000))
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert "400000" in answer.json()["error"]["message"]
