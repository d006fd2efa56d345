"""A request that an operator ends: its client is told, the engine stops, and it is counted as cancelled by an administrator."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from appliance.errors import EndedByOperator
from engine.wire import ModelCard
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import HEADERS, House, start_house

ENDED = EndedByOperator("an operator ended it")


@pytest.fixture
def house(export: Any, card: ModelCard) -> Iterator[House]:
    with start_house(export, card, counting_answer) as house:
        yield house


def running_ids(house: House) -> list[str]:
    return house.on_loop(lambda: [report.request_id for report in house.backend.reports()])


def test_a_whole_answer_that_an_operator_ends_is_a_503_that_is_not_tried_again(house: House) -> None:
    house.set_engine(hold=True)
    answers: list[httpx.Response] = []
    ask = threading.Thread(target=lambda: answers.append(house.post("/v1/completions", {"prompt": "x"})))
    ask.start()
    house.until(lambda: house.backend.num_live == 1)
    [request_id] = running_ids(house)
    assert house.on_loop(lambda: house.backend.cancel(request_id, ENDED))
    ask.join(10)
    assert (answers[0].status_code, answers[0].headers["x-should-retry"]) == (503, "false")
    assert answers[0].json()["error"]["code"] == "cancelled_by_operator"
    assert house.metric("requests_total", outcome="cancelled") == 1
    assert house.metric("cancellations_total", stage="queue", cause="admin") == 1
    house.until(lambda: not house.engine.queued)


def test_a_stream_that_an_operator_ends_says_so_in_its_last_event(house: House) -> None:
    house.set_engine(step_s=0.002)
    body = {"prompt": "x", "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", house.base_url + "/v1/completions", json=body, headers=HEADERS, timeout=20) as response:
        lines = response.iter_lines()
        next(lines)
        house.on_loop(lambda: house.backend.cancel(response.headers["x-request-id"], ENDED))
        last = [line for line in lines if line][-2:]
    assert last[0] == "event: error" and json.loads(last[1].removeprefix("data: "))["error"]["code"] == "cancelled_by_operator"
    house.until(lambda: not house.engine.running)
    assert house.metric("cancellations_total", stage="decode", cause="admin") == 1


def test_what_does_not_run_can_not_be_ended(house: House) -> None:
    assert not house.on_loop(lambda: house.backend.cancel("req_0", ENDED))
