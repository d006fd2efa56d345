"""At the door: who is refused too often waits there, and so does who sends many long bodies at once. Others pass."""

import asyncio
import json
import math
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.domain.inference.body_bounds import LARGE_BODY_BYTES
from appliance.domain.inference.body_room import BODIES_AT_ONCE, TENANT_BODIES_AT_ONCE, BodyRoom
from appliance.domain.inference.pace import BYTES_PER_TURN, LONGEST_DEBT_S, LONGEST_WAIT_S, Turns
from engine.wire import ModelCard
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import KEY, OTHER_KEY, House, start_house

OTHER = {"Authorization": f"Bearer {OTHER_KEY}"}
PER_S = 2.0
BURST = 20
"""With so many a second."""


# ---- turns


def refuse(turns: Turns, number: int, num_bytes: int = 0) -> None:
    for _ in range(number):
        assert turns.take(0.0)
        turns.owe(num_bytes, 0.0)


def test_a_burst_of_refusals_comes_in_at_once_and_then_one_after_the_other_as_debts_are_paid_off() -> None:
    turns = Turns(PER_S)
    refuse(turns, BURST)
    assert not turns.take(0.0) and [turns.paid_in_s(ahead, 0.0) for ahead in (0, 1, 2)] == pytest.approx([1 / PER_S, 2 / PER_S, 3 / PER_S])
    assert not turns.take(0.9 / PER_S) and turns.take(1.1 / PER_S) and not turns.take(1.1 / PER_S)


def test_who_is_admitted_has_its_turn_back_and_however_many_are_judged_no_time_is_told() -> None:
    turns = Turns(PER_S)
    assert [turns.take(0.0) for _ in range(BURST + 1)] == [True] * BURST + [False]
    assert turns.paid_in_s(0, 0.0) == 0
    for _ in range(10 * BURST):
        turns.give_back()
        assert turns.take(0.0)


def test_a_long_body_costs_more_turns_and_no_debt_lasts_longer_than_a_minute() -> None:
    turns = Turns(PER_S)
    refuse(turns, 1, num_bytes=(BURST + 4) * BYTES_PER_TURN)
    assert turns.paid_in_s(0, 0.0) == pytest.approx(6 / PER_S)
    refuse(turns2 := Turns(PER_S), 1, num_bytes=1 << 40)
    assert not turns2.take(LONGEST_DEBT_S - 1) and turns2.take(LONGEST_DEBT_S + 1)


def test_few_refusals_a_second_still_leave_room_for_requests_that_come_together() -> None:
    turns = Turns(0.1)
    assert all(turns.take(0.0) for _ in range(20))


# ---- room


def test_long_bodies_of_a_tenant_fill_its_part_of_the_room_and_those_of_all_the_whole_but_each_tenant_may_have_one() -> None:
    async def live() -> None:
        size = 2 * LARGE_BODY_BYTES
        room = BodyRoom(size)
        of_a = [room.ask("a", size) for _ in range(TENANT_BODIES_AT_ONCE + 2)]
        assert [each.done() for each in of_a] == [True] * TENANT_BODIES_AT_ONCE + [False] * 2
        others = [(f"b{n}", room.ask(f"b{n}", size)) for n in range(BODIES_AT_ONCE)]
        seconds = [(tenant_id, room.ask(tenant_id, size)) for tenant_id, _ in others]
        assert all(each.done() for _, each in others) and not any(each.done() for _, each in seconds)
        room.leave("a", size, of_a.pop())  # it waits no more
        for tenant_id, each in [*(("a", each) for each in of_a), *others, *seconds]:
            assert each.done(), "whoever left made room for the next"
            room.leave(tenant_id, size, each)
        assert room.held_bytes == 0 and not room._waiting

    asyncio.run(live())


def test_of_two_tenants_that_wait_each_has_its_turn() -> None:
    async def live() -> None:
        size = 2 * LARGE_BODY_BYTES
        room = BodyRoom(size)
        first = [(f"t{n}", room.ask(f"t{n}", size)) for n in range(BODIES_AT_ONCE)]
        waiting = [room.ask(tenant_id, size) for tenant_id in ("a", "a", "a", "b", "b", "b")]
        for tenant_id, each in first[:4]:
            room.leave(tenant_id, size, each)
        assert [each.done() for each in waiting] == [True, True, False, True, True, False]

    asyncio.run(live())


def test_what_is_short_or_too_long_takes_no_room_and_an_undeclared_length_the_greatest() -> None:
    room = BodyRoom(1 << 20)
    assert [room.bytes_of(n) for n in (0, LARGE_BODY_BYTES, LARGE_BODY_BYTES + 1, 1 << 20, (1 << 20) + 1, None)] == [
        0, 0, LARGE_BODY_BYTES + 1, 1 << 20, 0, 1 << 20,
    ]  # fmt: skip


# ---- over HTTP


class Clock:
    """Time at the door goes on when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> int:
        return round(self.now_s * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def strict(export: Path, card: ModelCard, clock: Clock) -> Iterator[House]:
    """Twenty refusals at once, then two a second."""
    most = 16 * LARGE_BODY_BYTES
    with start_house(export, card, counting_answer, refusals_per_s=PER_S, max_body_bytes=most, door_clock_ns=clock) as house:
        yield house


INVALID = {"prompt": "x", "max_tokens": 0}
VALID = {"prompt": "x", "max_tokens": 1}
FLOOD = 5


def waiting(house: House, tenant_id: str = "default") -> int:
    """Requests that stand at the door."""
    line = house.inference.doorstep._lines.get(tenant_id)
    return len(line.waiting) if line else 0


def has_used_up(house: House, tenant_id: str) -> bool:
    line = house.inference.doorstep._lines.get(tenant_id)
    return line is not None and line.turns.debt + 1 > line.turns.burst


@contextmanager
def flood(house: House, tenant_id: str = "default", **kwargs: Any) -> Iterator[list[httpx.Response]]:
    """So many refused requests wait inside the block, and their answers are there after it: it has to let them in."""
    answers: list[httpx.Response] = []
    while not has_used_up(house, tenant_id):
        house.post("/v1/completions", INVALID, **kwargs)
    with ThreadPoolExecutor(FLOOD) as pool:
        asked = [pool.submit(house.post, "/v1/completions", INVALID, **kwargs) for _ in range(FLOOD)]
        house.until(lambda: waiting(house, tenant_id) == FLOOD)
        yield answers
        answers += [each.result(20) for each in asked]


def test_a_tenant_that_is_refused_too_often_waits_and_nobody_else(strict: House, clock: Clock) -> None:
    with flood(strict) as answers:
        assert strict.post("/v1/completions", VALID, headers=OTHER).status_code == 200
        clock.now_s = 2 / PER_S
        strict.until(lambda: waiting(strict) == FLOOD - 2)
        clock.now_s = 10.0
    assert [answer.status_code for answer in answers] == [400] * FLOOD
    assert strict.metric("door_holds_total", tenant="default") == FLOOD
    assert strict.metric("door_hold_seconds_total", tenant="default") == pytest.approx(2 * 2 / PER_S + (FLOOD - 2) * 10)
    assert strict.metric("door_holds_total", tenant="other") == 0
    explained = [strict.client.get(f"/v1/requests/{answer.headers['x-request-id']}/explain").json() for answer in answers]
    assert {each["parts"][0]["name"] for each in explained} == {"door"}


def test_with_the_switch_off_nobody_waits(house: House) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert {each.status_code for each in pool.map(lambda _: house.post("/v1/completions", INVALID), range(200))} == {400}
    assert house.metric("door_holds_total") == 0


def test_who_is_admitted_never_waits_however_many_come(strict: House) -> None:
    with ThreadPoolExecutor(8) as pool:
        statuses = [answer.status_code for answer in pool.map(lambda _: strict.post("/v1/completions", VALID), range(60))]
    assert statuses == [200] * 60 and strict.metric("door_holds_total") == 0


def test_callers_without_a_key_wait_and_get_their_401(strict: House, clock: Clock) -> None:
    with flood(strict, "", headers={"Authorization": "Bearer fl-wrong-0123456789abcdef"}) as answers:
        assert strict.post("/v1/completions", VALID).status_code == 200
        clock.now_s = 10.0
    assert [answer.status_code for answer in answers] == [401] * FLOOD


@pytest.mark.parametrize("ask", [lambda house: house.client.get("/v1/models"), lambda house: house.post("/tokenize", {"prompt": "x"})])
def test_what_no_admission_bounds_costs_turns_too(strict: House, ask: Callable[[House], httpx.Response]) -> None:
    assert [ask(strict).status_code for _ in range(10)] == [200] * 10
    assert strict.inference.doorstep._lines["default"].turns.debt == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/requests/req_1/explain"])
def test_a_wrong_key_costs_a_turn_wherever_it_is_shown(strict: House, path: str) -> None:
    assert strict.client.get(path, headers={"Authorization": "Bearer fl-wrong-0123456789abcdef"}).status_code == 401
    assert strict.inference.doorstep._lines[""].turns.debt == 1


def test_a_tenant_far_beyond_its_turns_is_refused_unread_and_told_when_to_come_back(strict: House, clock: Clock) -> None:
    body = json.dumps({**INVALID, "prompt": "x" * 60 * BYTES_PER_TURN}).encode()
    assert strict.client.post("/v1/completions", content=body).status_code == 400
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(strict.post, "/v1/completions", VALID)
        strict.until(lambda: waiting(strict) == 1)
        clock.now_s = LONGEST_WAIT_S
        away = asked.result(20)
    owed = 1 + len(body) / BYTES_PER_TURN - LONGEST_WAIT_S * PER_S
    assert (away.status_code, away.json()["error"]["reason"]) == (429, "refused_often")
    assert int(away.headers["retry-after"]) == math.ceil((owed + 2 - BURST) / PER_S) and "2 a second" in away.json()["error"]["message"]
    assert strict.metric("rejections_total", tenant="default", lane="none", reason="refused_often") == 1
    assert strict.post("/v1/completions", VALID, headers=OTHER).status_code == 200
    clock.now_s += int(away.headers["retry-after"])
    assert strict.post("/v1/completions", VALID).status_code == 200


def test_who_waits_at_the_door_is_told_that_the_server_shuts_down(strict: House) -> None:
    with flood(strict) as answers:
        strict.on_loop(strict.gate.drain)
    assert {answer.json()["error"]["code"] for answer in answers} == {"draining"}
    line = strict.inference.doorstep._lines["default"]
    assert line.turns.inside == 0 and not line.waiting


def test_long_bodies_of_a_tenant_wait_unread_while_eight_of_them_arrive(strict: House, clock: Clock) -> None:
    url = httpx.URL(strict.base_url)
    body = json.dumps(INVALID).encode()
    body += b" " * (16 * LARGE_BODY_BYTES - len(body))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    room = strict.inference.doorstep._room
    with ExitStack() as open_sockets, ThreadPoolExecutor(1) as pool:
        socks = [open_sockets.enter_context(closing(socket.create_connection((url.host, url.port or 0), timeout=20))) for _ in range(8)]
        for sock in socks:
            sock.sendall(head)
        strict.until(lambda: room.held_bytes == 8 * len(body))
        ninth = pool.submit(strict.client.post, "/v1/completions", content=body)
        strict.until(lambda: bool(room._waiting))
        assert strict.client.post("/v1/completions", content=body, headers=OTHER).status_code == 400
        assert not ninth.done()
        clock.now_s = 1.0
        socks[0].sendall(body)
        assert ninth.result(20).status_code == 400
    assert strict.metric("door_hold_seconds_total", tenant="default") == 1
    strict.until(lambda: room.held_bytes == 0)
