"""What reaches the server before it is a request: heads without end, offers of another protocol, several requests at once."""

import contextlib
import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from appliance.connection import MAX_HEAD_BYTES
from tests.inference.harness import KEY, House

BODY = b'{"prompt": "x", "max_tokens": 2}'
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def sock(house: House) -> Iterator[socket.socket]:
    url = httpx.URL(house.base_url)
    with socket.create_connection((url.host, url.port or 0), timeout=10) as sock:
        yield sock


def request(body: bytes = BODY, *headers: str) -> bytes:
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def read_until(sock: socket.socket, end: bytes) -> bytes:
    answer = b""
    while not answer.endswith(end):
        part = sock.recv(65536)
        assert part, answer
        answer += part
    return answer


def test_a_head_without_end_is_cut_off(sock: socket.socket) -> None:
    sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-A: ")
    with pytest.raises(OSError):  # noqa: PT012 (which of them fails depends on the kernel's buffers)
        for _ in range(1_000):
            sock.sendall(b"a" * MAX_HEAD_BYTES)


def test_a_head_that_is_too_long_is_told_so(sock: socket.socket) -> None:
    sock.sendall(b"GET /livez HTTP/1.1\r\nX-A: ")
    sock.sendall(b"a" * (MAX_HEAD_BYTES + 1))
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # the server closes on what it has not read; its answer came before
        while part := sock.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert str(MAX_HEAD_BYTES) in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize("split", [0, 60, -len(BODY), -5])
def test_an_offer_of_http_2_is_declined_and_the_request_answered(sock: socket.socket, split: int) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")
    whole = request(BODY, *offer)
    sock.sendall(whole[:split])
    sock.sendall(whole[split:])
    assert read_until(sock, b"}").startswith(b"HTTP/1.1 200 ")
    sock.sendall(LIVEZ)
    assert read_until(sock, b"}").startswith(b"HTTP/1.1 200 "), "the connection lives on"


def test_long_bodies_are_no_heads(sock: socket.socket) -> None:
    for _ in range(2):
        sock.sendall(request(b'{"prompt": "x", "user": "%s"}' % (b"u" * 2 * MAX_HEAD_BYTES)) + LIVEZ[:9])
        assert read_until(sock, b"}").startswith(b"HTTP/1.1 200 ")
        sock.sendall(LIVEZ[9:])
        assert read_until(sock, b"}").startswith(b"HTTP/1.1 200 ")


def test_what_is_no_http_is_told_so(sock: socket.socket) -> None:
    sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert read_until(sock, b"}}").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_noticed_behind_its_own_next_request(house: House, stream: bool) -> None:
    house.set_engine(hold=True)
    before = house.metric("cancellations_total", cause="disconnect")
    url = httpx.URL(house.base_url)
    with socket.create_connection((url.host, url.port or 0), timeout=10) as sock:
        sock.sendall(request(json.dumps({"prompt": "x", "stream": stream}).encode()) + LIVEZ)
        house.until(lambda: house.admission.num_in_flight == 1)
    house.until(lambda: house.admission.num_in_flight == 0)
    assert house.metric("cancellations_total", cause="disconnect") == before + 1
    assert house.metric("requests_total", outcome="failed") == 0


def test_requests_sent_at_once_are_answered_in_order(sock: socket.socket) -> None:
    sock.sendall(request() + LIVEZ + request(b"{}") + LIVEZ)
    answer = b""
    while answer.count(b"HTTP/1.1 ") < 4 or not answer.endswith(b"}"):
        answer += sock.recv(65536)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"400", b"200"]
