"""How outputs of the served SmolLM2 end, as the openai client sees it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.appliance import Appliance
from tests.e2e.metrics import metric, until

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def openai_client(appliance: Appliance) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{appliance.base_url}/v1", api_key=appliance.api_key, max_retries=0, timeout=120) as client:
        yield client


def ends_of(answer: Any) -> tuple[int, str, str]:
    choice = answer.choices[0]
    return answer.usage.completion_tokens, choice.finish_reason, choice.finish_detail


def test_a_task_caps_an_output_with_and_without_max_tokens(openai_client: openai.OpenAI) -> None:
    def ask(prompt: Any, extra: dict[str, Any], **fields: Any) -> tuple[int, str, str]:
        body = {"ignore_eos": True, **extra}
        return ends_of(openai_client.completions.create(model=MODEL, prompt=prompt, extra_body=body, temperature=0, **fields))

    with ThreadPoolExecutor(3) as pool:
        built_in = pool.submit(ask, "Once", {})
        named = pool.submit(ask, "Once", {"task": "extract", "task_stops": False}, max_tokens=120)
        asked_for = pool.submit(ask, "Once", {}, max_tokens=257)
    assert built_in.result() == (256, "length", "output_cap")
    assert named.result() == (96, "length", "output_cap")
    assert asked_for.result() == (257, "length", "max_tokens")


@pytest.mark.parametrize(
    ("task", "example", "question", "answer"),
    [
        ("extract", "Code:\n```\nx = 1\n```\n", "Code:\n", "```\nx = 1\n```"),
        ("extract", "### Title\nOne line.\n", "### Title\n", "One line.\n"),
        ("reason", "What is 1+1?\nFinal Answer: 2\n\n", "What is 1+1?\n", "Final Answer: 2\n\n"),
        ("chat", 'User: go\n<tool_call>\n{"name": "go"}\n</tool_call>\n', "User: go\n", '<tool_call>\n{"name": "go"}\n</tool_call>'),
    ],
)
def test_an_output_ends_where_its_task_is_done(openai_client: openai.OpenAI, task: str, example: str, question: str, answer: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": example * 8 + question, "temperature": 0, "max_tokens": 40}
    ended = openai_client.completions.create(**body, extra_body={"task": task})
    assert ended.choices[0].text == answer and ends_of(ended)[1:] == ("stop", "task_stop")
    going_on = openai_client.completions.create(**body, extra_body={"task": task, "task_stops": False})
    assert going_on.choices[0].text.startswith(answer) and going_on.choices[0].text != answer


def test_a_looping_output_is_stopped_where_that_was_asked_for(openai_client: openai.OpenAI, client: httpx.Client) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "no " * 60, "temperature": 0, "max_tokens": 150}
    free = ends_of(openai_client.completions.create(**body, extra_body={"ignore_eos": True}))
    stopped = ends_of(openai_client.completions.create(**body, extra_body={"ignore_eos": True, "stop_on_repetition": True}))
    assert free[0] == 150 and stopped[0] < 100 and stopped[1:] == ("stop", "repetition")
    until(lambda: metric(client, "running_requests") == 0)


def test_a_finished_json_value_ends_an_output(openai_client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": '{"a": 1}\n' * 12, "temperature": 0, "max_tokens": 60}
    stopped = openai_client.completions.create(**body, extra_body={"stop_on_json": True})
    assert json.loads(stopped.choices[0].text) == {"a": 1}
    assert ends_of(stopped)[1:] == ("stop", "json")


def test_at_its_deadline_a_stream_ends_with_what_it_has(openai_client: openai.OpenAI, client: httpx.Client) -> None:
    before = metric(client, "cancellations_total", stage="decode", cause="deadline"), metric(client, "requests_total", outcome="expired")
    body: dict[str, Any] = {"ignore_eos": True, "deadline_ms": 500}
    pieces = list(openai_client.completions.create(model=MODEL, prompt="Once", max_tokens=3_000, stream=True, extra_body=body))
    last: Any = pieces[-1].choices[0]
    assert (last.finish_reason, last.finish_detail) == ("length", "deadline") and 1 < len(pieces) < 3_000
    until(lambda: metric(client, "running_requests") == 0)
    after = metric(client, "cancellations_total", stage="decode", cause="deadline"), metric(client, "requests_total", outcome="expired")
    assert after == (before[0] + 1, before[1] + 1)
