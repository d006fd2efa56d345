"""A request's own deadline: before its first token an error, after it what there is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.wire import ModelCard
from tests.inference.fake_engine import counting_answer
from tests.inference.harness import House, start_house


@pytest.fixture(scope="module")
def shared(export: Path, card: ModelCard) -> Iterator[House]:
    with start_house(export, card, counting_answer) as house:
        yield house


@pytest.fixture
def house(shared: House) -> Iterator[House]:
    yield shared
    shared.set_engine(hold=False, step_s=0.0)
    shared.until(lambda: not shared.engine.running and shared.admission.num_in_flight == 0)


def expired(house: House, stage: str) -> tuple[float, float]:
    return house.metric("requests_total", outcome="expired"), house.metric("cancellations_total", stage=stage, cause="deadline")


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_that_comes_in_the_queue_is_an_error_and_the_engine_forgets_the_request(house: House, stream: bool) -> None:
    house.set_engine(hold=True)
    before = expired(house, "queue")
    answer = house.post("/v1/completions", {"prompt": "x", "stream": stream, "deadline_ms": 50})
    error = answer.json()["error"]
    assert answer.status_code == 503 and error["code"] == error["reason"] == "deadline_exceeded" and "50 ms" in error["message"]
    house.until(lambda: not house.engine.queued)
    assert expired(house, "queue") == (before[0] + 1, before[1] + 1)
    assert house.metric("rejections_total") == 0
    report = house.on_loop(lambda: house.telemetry.archive.find(answer.headers["x-request-id"]))
    assert report is not None and (report.prompt_tokens, report.billed.tokens) == (1, 0), "known, and nothing of it was computed"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by_header", [True, False])
def test_at_its_deadline_an_output_ends_with_what_it_has(house: House, stream: bool, by_header: bool) -> None:
    house.set_engine(step_s=0.005)
    before = expired(house, "decode")
    body: dict[str, Any] = {"prompt": "x", "stream": stream, "max_tokens": 2000}
    headers = {"X-Deadline-Ms": "150"} if by_header else {}
    answer = house.post("/v1/completions", body if by_header else {**body, "deadline_ms": 150}, headers=headers)
    assert answer.status_code == 200
    assert '"finish_reason":"length","finish_detail":"deadline"' in answer.text
    assert not stream or answer.text.endswith("data: [DONE]\n\n")
    assert expired(house, "decode") == (before[0] + 1, before[1] + 1)
    house.until(lambda: not house.engine.running)
    assert 1 < house.engine.num_steps < 2000


def test_a_deadline_that_passed_before_the_request_was_read_reaches_no_engine(house: House) -> None:
    submits = len(house.on_loop(lambda: house.engine.submits))
    answer = house.post("/v1/completions", {"prompt": "word " * 1500, "n": 100, "max_tokens": 1, "deadline_ms": 1})
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "deadline_exceeded"
    assert len(house.on_loop(lambda: house.engine.submits)) == submits


def test_a_request_that_is_done_in_time_knows_nothing_of_its_deadline(house: House) -> None:
    before = expired(house, "decode")
    assert house.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "deadline_ms": 60_000}).status_code == 200
    assert expired(house, "decode") == before


@pytest.mark.parametrize(("header", "words"), [("soon", "'soon'"), ("0", "send one of them"), ("5", "send one of them")])
def test_a_deadline_that_can_not_be_read_is_refused(house: House, header: str, words: str) -> None:
    answer = house.post("/v1/completions", {"prompt": "x", "deadline_ms": 9}, headers={"X-Deadline-Ms": header})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]
