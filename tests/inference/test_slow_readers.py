"""Readers that do not take their tokens: the engine stops drawing for them, goes on when they catch up, and lets go when they never do."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.inference.backpressure import Backlog
from engine.wire import ModelCard
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import KEY, House, start_house

LIMIT_TOKENS = 32
IN_FLIGHT_TOKENS = 3
"""Of steps that were made before the engine heard of the pause."""


@pytest.fixture(scope="module")
def shared(export: Path, card: ModelCard) -> Iterator[House]:
    with start_house(export, card, counting_answer) as house:
        yield house


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    shared.set_engine(step_s=0.001)
    yield shared
    shared.until(lambda: not shared.engine.running and shared.admission.num_in_flight == 0)


def slow_reader(house: House, max_tokens: int, path: str = "/v1/completions") -> socket.socket:
    """A stream whose client has next to no room for it."""
    url = httpx.URL(house.base_url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.settimeout(10)
    sock.connect((url.host, url.port))
    body = f'{{"prompt": "x", "max_tokens": {max_tokens}, "stream": true}}'
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall((head + body).encode())
    return sock


def sent(house: House) -> int:
    return next(iter(house.engine.running.values())).sent


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_a_reader_that_lags_pauses_its_stream_and_gets_all_of_it_when_it_catches_up(house: House, path: str) -> None:
    pauses = house.metric("backpressure_pauses_total")
    with closing(slow_reader(house, 1900, path)) as sock:
        house.until(lambda: bool(house.engine.paused))
        drawn = house.on_loop(lambda: sent(house))
        assert drawn < 1900
        answer = b""
        while part := sock.recv(65536):
            answer += part
    assert answer.count(b"data: {") >= 1 and b"data: [DONE]" in answer
    house.until(lambda: house.admission.num_in_flight == 0)
    assert house.metric("backpressure_pauses_total") > pauses and house.metric("backpressure_seconds_total") > 0
    assert not house.on_loop(lambda: house.engine.paused)


def test_no_more_than_the_limit_is_drawn_beyond_what_the_client_took(house: House) -> None:
    with closing(slow_reader(house, 1900)) as sock:
        house.until(lambda: bool(house.engine.paused))
        drawn = house.on_loop(lambda: sent(house))
        taken = len(sock.recv(1 << 20, socket.MSG_PEEK).split(b"data: ")) - 1
        assert drawn - taken <= LIMIT_TOKENS + IN_FLIGHT_TOKENS + 1


def test_with_a_limit_of_0_the_engine_never_pauses(export: Path, card: ModelCard) -> None:
    with start_house(export, card, counting_answer, max_unacknowledged_tokens=0) as house:
        house.set_engine(step_s=0.0005)
        with closing(slow_reader(house, 1900)):
            house.until(lambda: not house.engine.running and bool(house.engine.submits))
            assert not house.engine.paused
        house.until(lambda: house.admission.num_in_flight == 0)
        assert house.metric("backpressure_pauses_total") == 0


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_a_paused_reader_that_takes_nothing_until_the_write_deadline_is_cancelled(export: Path, card: ModelCard, path: str) -> None:
    """Its short events all fit the kernel's buffer: the transport alone would never notice."""
    with start_house(export, card, counting_answer, write_deadline_s=0.3) as house:
        with closing(slow_reader(house, 1900, path)):
            house.until(lambda: house.metric_now("cancellations_total", stage="decode", cause="slow_reader") == 1)
            house.until(lambda: not house.engine.running and house.admission.num_in_flight == 0)
        assert house.metric("requests_total", outcome="cancelled") == 1
        assert house.metric("backpressure_seconds_total") >= 0.3


def test_a_client_that_leaves_while_it_is_paused_is_cancelled_at_once(house: House) -> None:
    before = house.metric("cancellations_total", stage="decode", cause="disconnect")
    with closing(slow_reader(house, 1900)):
        house.until(lambda: bool(house.engine.paused))
    house.until(lambda: house.metric_now("cancellations_total", stage="decode", cause="disconnect") == before + 1)
    house.until(lambda: not house.engine.running)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 400), st.floats(0, 1)), max_size=30))
def test_a_backlog_counts_a_write_until_its_last_byte_was_taken(writes: list[tuple[int, int, float]]) -> None:
    waiting, sent = 0, list[tuple[int, int]]()
    backlog = Backlog(lambda: waiting)
    for tokens, num_bytes, share_taken in writes:
        backlog.add(tokens)
        backlog.take()
        assert backlog.tokens() == tokens + sum(count for count, _ in outstanding(sent, waiting))
        backlog.note_written(num_bytes)
        sent.append((tokens, num_bytes))
        waiting = int((waiting + num_bytes) * (1 - share_taken))
        assert backlog.tokens() == sum(count for count, _ in outstanding(sent, waiting))


def outstanding(sent: list[tuple[int, int]], waiting: int) -> list[tuple[int, int]]:
    """The newest writes that hold so many bytes."""
    kept: list[tuple[int, int]] = []
    for tokens, num_bytes in reversed(sent):
        if sum(size for _, size in kept) >= waiting:
            break
        kept.append((tokens, num_bytes))
    return kept


def test_tokens_that_we_hold_back_ourselves_are_nobodys_backlog() -> None:
    backlog = Backlog(lambda: 0)
    for _ in range(100):  # a stop string that may have begun
        backlog.add(1)
        backlog.take()
    assert backlog.tokens() == 1
