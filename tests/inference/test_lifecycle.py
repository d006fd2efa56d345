"""One end for every request: whoever goes away, whatever breaks."""

import asyncio
import random
import socket
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import pytest

from appliance.domain.inference.backend import SWEEP_AFTER_NS
from appliance.domain.inference.call import Call
from appliance.domain.inference.intake import COMPLETIONS
from engine.wire import ModelCard, StepDone
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import HEADERS, KEY, House, in_background, start_house

OUTCOMES = ("completed", "rejected", "cancelled", "expired", "failed")


@pytest.fixture
def own_house(export: Any, card: ModelCard) -> Any:
    with start_house(export, card, counting_answer) as house:
        yield house


def raw_request(house: House, body: str, path: str = "/v1/completions") -> socket.socket:
    """A request on a socket of our own, to hang up as we like."""
    url = httpx.URL(house.base_url)
    sock = socket.create_connection((url.host, url.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return sock


def is_idle(house: House) -> bool:
    engine = house.engine
    admission = house.admission
    return not (engine.running or engine.queued or admission.num_in_flight or admission.num_waiting or house.backend.num_live)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_hangs_up_in_the_queue_frees_its_place(own_house: House, stream: str) -> None:
    own_house.set_engine(hold=True)
    with closing(raw_request(own_house, f'{{"prompt": "x", "stream": {stream}}}')):
        own_house.until(lambda: len(own_house.engine.queued) == 1)
    own_house.until(lambda: is_idle(own_house))
    assert own_house.metric("cancellations_total", stage="queue", cause="disconnect") == 1
    assert own_house.metric("requests_total", outcome="cancelled") == 1


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_hangs_up_while_tokens_come_stops_the_engine(own_house: House, stream: str) -> None:
    own_house.set_engine(step_s=0.002)
    with closing(raw_request(own_house, f'{{"prompt": "x", "max_tokens": 2000, "stream": {stream}}}')):
        own_house.until(lambda: own_house.engine.num_steps > 3)
    own_house.until(lambda: is_idle(own_house))
    assert own_house.metric("cancellations_total", stage="decode", cause="disconnect") == 1
    assert own_house.engine.num_steps < 1000


def test_a_client_that_hangs_up_during_prefill_is_counted_there(own_house: House) -> None:
    own_house.set_engine(hold=True)
    with closing(raw_request(own_house, '{"prompt": "x", "stream": true}')):
        own_house.until(lambda: len(own_house.engine.queued) == 1)

        def begin_prefill() -> None:
            engine = own_house.engine
            submit = engine.submits[-1]
            engine.running[submit.sequence_id] = engine.queued.pop(submit.sequence_id)
            record = engine._record(time.monotonic_ns(), [submit.sequence_id], dict(engine.running))  # pyright: ignore[reportPrivateUsage]
            engine.send(StepDone((), engine.load(), record))

        own_house.on_loop(begin_prefill)
        own_house.until(lambda: own_house.admission.num_waiting == 0)
    own_house.until(lambda: is_idle(own_house))
    assert own_house.metric("cancellations_total", stage="prefill", cause="disconnect") == 1


def test_a_client_that_hangs_up_before_its_body_is_whole_is_one_cancelled_request(own_house: House) -> None:
    url = httpx.URL(own_house.base_url)
    with socket.create_connection((url.host, url.port), timeout=10) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n{{"
        sock.sendall(head.encode())
    own_house.until(lambda: own_house.metric_now("requests_total", outcome="cancelled") == 1)


def test_an_answer_that_never_begins_is_swept(own_house: House) -> None:
    """A generator that never starts never runs its `finally`: here the exchange is opened and dropped."""

    async def body() -> bytes:
        return b'{"prompt": "x", "stream": true}'

    own_house.set_engine(hold=True)
    call = Call(request_id="req_x", received_ns=time.monotonic_ns(), raw_key=KEY, tenant_header=None, read_body=body)
    asyncio.run_coroutine_threadsafe(own_house.inference.open(call, COMPLETIONS), own_house.loop).result(10)
    now_ns = time.monotonic_ns()
    own_house.on_loop(lambda: own_house.backend.sweep(now_ns))
    assert own_house.on_loop(lambda: own_house.backend.num_live) == 1, "it is too early to give it up"
    own_house.on_loop(lambda: own_house.backend.sweep(now_ns + SWEEP_AFTER_NS + 1_000_000_000))
    own_house.until(lambda: is_idle(own_house))
    assert own_house.metric("cancellations_total", stage="queue", cause="disconnect") == 1


def test_the_sweep_leaves_requests_alone_that_are_being_answered(own_house: House) -> None:
    own_house.set_engine(hold=True)
    with in_background(own_house, 1):
        own_house.until(lambda: len(own_house.engine.queued) == 1)
        own_house.on_loop(lambda: own_house.backend.sweep(time.monotonic_ns() + 10 * SWEEP_AFTER_NS))
        own_house.set_engine(hold=False)


def test_when_the_engine_dies_streams_end_with_an_error_event_and_others_with_503(own_house: House, export: Any, card: ModelCard) -> None:
    own_house.set_engine(step_s=0.002, fail_after_steps=5)
    unary: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: unary.append(
            httpx.post(own_house.base_url + "/v1/completions", json={"prompt": "x", "max_tokens": 500}, headers=HEADERS)
        )
    )
    own_house.set_engine(hold=True)
    thread.start()
    own_house.until(lambda: len(own_house.engine.queued) == 1)
    own_house.set_engine(hold=False)
    streamed = own_house.post("/v1/completions", {"prompt": "x", "max_tokens": 500, "stream": True})
    thread.join(10)
    assert (unary[0].status_code, unary[0].json()["error"]["code"], unary[0].headers["retry-after"]) == (503, "engine_down", "5")
    if streamed.status_code == 200:  # it got in before the engine died
        assert 'event: error\ndata: {"error":' in streamed.text and "[DONE]" not in streamed.text
    own_house.until(lambda: own_house.admission.num_in_flight == 0)
    ready = own_house.client.get("/readyz")
    assert ready.status_code == 503 and ready.json()["status"] == "engine_down"
    refused = own_house.post("/v1/completions", {"prompt": "x"})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_down"
    own_house.connect_engine(export, counting_answer, card)
    assert own_house.client.get("/readyz").status_code == 200
    assert own_house.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_a_stream_that_fails_on_its_way_ends_with_an_error_event(own_house: House) -> None:
    own_house.set_engine(step_s=0.001, fail_after_steps=10)
    streamed = own_house.post("/v1/completions", {"prompt": "x", "max_tokens": 500, "stream": True})
    frames = [frame for frame in streamed.text.split("\n\n") if frame]
    assert streamed.status_code == 200 and len(frames) > 3
    assert frames[-1].startswith('event: error\ndata: {"error":{"message":') and '"code":"engine_down"' in frames[-1]
    assert own_house.metric("requests_total", outcome="failed") == 1
    texts = [msgspec.json.decode(frame.removeprefix("data: "))["choices"][0]["text"] for frame in frames[:-1]]
    num_delivered = len("".join(texts))  # a character a token
    assert own_house.metric("tokens_total", direction="generated") == num_delivered
    assert own_house.on_loop(lambda: own_house.admission.spent_today("default")) == 1 + num_delivered


def test_a_whole_answer_that_the_engine_took_with_it_costs_nothing(own_house: House) -> None:
    own_house.set_engine(fail_after_steps=10)
    assert own_house.post("/v1/completions", {"prompt": "x", "max_tokens": 500}).status_code == 503
    assert own_house.metric("requests_total", outcome="failed") == 1
    assert own_house.metric("tokens_total") == own_house.on_loop(lambda: own_house.admission.spent_today("default")) == 0


def test_a_reader_that_takes_nothing_is_cut_off_at_the_write_deadline(export: Any, card: ModelCard) -> None:
    with start_house(export, card, counting_answer, write_deadline_s=0.2) as house:
        url = httpx.URL(house.base_url)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.connect((url.host, url.port))
            body = '{"prompt": "x", "max_tokens": 2000, "stream": true}'
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall((head + body).encode())
            house.until(lambda: house.metric_now("cancellations_total", stage="decode", cause="slow_reader") == 1)
        house.until(lambda: is_idle(house))


@dataclass(frozen=True)
class Visit:
    """One client: what it asks for, and when it hangs up (None: it stays)."""

    stream: bool
    leaves_after_s: float | None
    max_tokens: int
    n: int

    def request(self) -> bytes:
        body = f'{{"prompt": "x", "stream": {str(self.stream).lower()}, "max_tokens": {self.max_tokens}, "n": {self.n}}}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def random_visits(number: int, rng: random.Random) -> list[Visit]:
    return [
        Visit(rng.random() < 0.5, rng.random() * 0.05 if rng.random() < 0.6 else None, rng.randrange(1, 40), rng.randrange(1, 4))
        for _ in range(number)
    ]


async def visit(house: House, seats: asyncio.Semaphore, plan: Visit) -> bytes:
    """Send the request whole; then read the answer to its end, or hang up."""
    url = httpx.URL(house.base_url)
    async with seats:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        with closing(writer):
            writer.write(plan.request())
            await writer.drain()
            try:
                async with asyncio.timeout(plan.leaves_after_s):
                    return await reader.read()
            except TimeoutError:
                return b""


def test_after_500_requests_that_hang_up_at_random_nothing_is_left_over(own_house: House) -> None:
    own_house.set_engine(step_s=0.001, max_rows=16)
    visits = random_visits(500, random.Random(7))

    async def storm() -> list[bytes]:
        seats = asyncio.Semaphore(24)
        return await asyncio.gather(*(visit(own_house, seats, plan) for plan in visits))

    answers = asyncio.run(storm())
    own_house.until(lambda: is_idle(own_house))
    counted = {outcome: own_house.metric("requests_total", outcome=outcome) for outcome in OUTCOMES}
    num_answered = sum(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert sum(counted.values()) == 500 and counted["failed"] == counted["rejected"] == 0
    assert counted["completed"] >= num_answered >= 150 and counted["cancelled"] == own_house.metric("cancellations_total") >= 100
    load = own_house.on_loop(own_house.engine.load)
    assert load.pages_free == own_house.engine.card.num_pages


def test_a_fault_of_ours_behind_admission_leaves_no_slot_taken(own_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise OverflowError("a number that no frame holds")

    with monkeypatch.context() as broken:
        broken.setattr(own_house.inference, "_sequence", break_down)
        assert own_house.post("/v1/completions", {"prompt": "x"}).status_code == 500
    own_house.until(lambda: is_idle(own_house))
    assert own_house.metric("requests_total", outcome="failed") == 1
    assert own_house.post("/v1/completions", {"prompt": "x"}).status_code == 200
