"""Outputs that end before the engine would end them, over HTTP: the text, the reason, the tokens counted, the engine's row."""

import json
from typing import Any

import pytest

from appliance.text.model import TextModel
from tests.inference.conftest import text_answer
from tests.inference.harness import House

FENCED = 'Sure:\n```json\n{"a": [1]}\n```\nLet me explain'
REASONED = "Hm.\n\nFinal Answer: 42\n\nBut then"
SECTIONS = "one two\n### Next"
CALLED = '<tool_call>\n{"name": "f"}\n</tool_call>\nuser:'
LOOPING = "It is so. " + "and so on " * 60


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "expected", "detail"),
    [
        (FENCED, {"task": "extract"}, 'Sure:\n```json\n{"a": [1]}\n```', "task_stop"),
        (SECTIONS, {"task": "extract"}, "one two\n", "task_stop"),
        (SECTIONS, {"task": "other"}, "one two\n", "task_stop"),
        (REASONED, {"task": "reason"}, "Hm.\n\nFinal Answer: 42\n\n", "task_stop"),
        (CALLED, {"task": "chat"}, CALLED.removesuffix("\nuser:"), "task_stop"),
        (FENCED, {"task": "extract", "stop": "json"}, "Sure:\n```", "stop_string"),
        (FENCED, {"stop_on_json": True}, 'Sure:\n```json\n{"a": [1]}', "json"),
        (FENCED, {}, FENCED, "eos"),
        (FENCED, {"task": "extract", "task_stops": False}, FENCED, "eos"),
        (LOOPING, {"max_tokens": 400}, LOOPING, "eos"),
    ],
)
def test_an_output_ends_where_the_request_wants_it(
    house: House, model: TextModel, text: str, fields: dict[str, Any], expected: str, detail: str, stream: bool
) -> None:
    house.set_engine(answer=text_answer(model, text))
    answered = house.post("/v1/completions", {"prompt": "x", "stream": stream, **fields})
    choices = [json.loads(line[6:])["choices"][0] for line in answered.text.splitlines() if line.startswith("data: {")]
    choices = choices if stream else answered.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == expected
    assert (choices[-1]["finish_reason"], choices[-1]["finish_detail"]) == ("stop", detail)
    assert not any("finish_detail" in choice for choice in choices[:-1])
    house.until(lambda: not house.engine.running)


def test_a_looping_output_is_stopped_and_only_what_was_made_is_counted(house: House, model: TextModel) -> None:
    house.set_engine(answer=text_answer(model, LOOPING), step_s=0.001)
    before = house.metric("tokens_total", direction="generated")
    body = {"prompt": "x", "stop_on_repetition": True, "max_tokens": 400}
    answer = house.post("/v1/completions", body).json()
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["finish_detail"]) == ("stop", "repetition")
    assert 30 < answer["usage"]["completion_tokens"] < 80
    assert house.metric("tokens_total", direction="generated") - before == answer["usage"]["completion_tokens"]
    house.until(lambda: not house.engine.running)


def test_generate_tells_the_detail_of_each_output(house: House) -> None:
    assert house.post("/generate", {"prompt": "x", "max_tokens": 3}).json()["finish_detail"] == "max_tokens"
    assert house.post("/generate", {"prompt": "x", "n": 2, "max_tokens": 3}).json()["finish_detail"] == ["max_tokens"] * 2
