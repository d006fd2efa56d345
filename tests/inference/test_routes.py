"""The OpenAI contract over real HTTP, with a fake engine behind the real frames."""

import json
from typing import Any

import openai
import pytest

from engine.wire import ModelCard
from tests.inference.conftest import TEXT, text_answer
from tests.inference.harness import KEY, House

MODEL = "smollm2-135m-instruct"
ROUTES = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 64},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64},
    "/generate": {"prompt": "Hi", "max_tokens": 64},
}


def events_of(body: str) -> list[dict[str, Any]]:
    """Payloads of a stream's events up to `[DONE]`, which must be last."""
    frames = [frame for frame in body.split("\n\n") if frame]
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


def text_of(event: dict[str, Any], index: int = 0) -> str:
    choices = [choice for choice in event.get("choices", [event]) if choice["index"] == index]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def whole_text(route: str, body: dict[str, Any]) -> str:
    if route == "/generate":
        return body["text"]
    choice = body["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stop", [None, ["ïve ca"], ["Paris", "café"], [" 😀"], ["日本 😀 done"], ["zzz"]])
def test_a_stream_joined_is_the_whole_answer_and_has_no_broken_character(house: House, route: str, stop: list[str] | None) -> None:
    body = {**ROUTES[route], "stop": stop}
    whole = house.post(route, body)
    streamed = house.post(route, {**body, "stream": True})
    assert whole.status_code == streamed.status_code == 200
    events = events_of(streamed.text)
    text = "".join(text_of(event) for event in events)
    expected = TEXT if not stop or stop == ["zzz"] else TEXT[: min(TEXT.index(s) for s in stop)]
    assert text == whole_text(route, whole.json()) == expected
    assert all("\ufffd" not in text_of(event) for event in events)
    assert streamed.headers["content-type"].startswith("text/event-stream")


def test_a_chat_answer_has_the_shape_openai_documents(house: House) -> None:
    response = house.post("/v1/chat/completions", ROUTES["/v1/chat/completions"])
    body = response.json()
    request_id = response.headers["x-request-id"]
    assert body.pop("created") > 1_700_000_000
    assert body.pop("system_fingerprint").startswith("fp_")
    assert body == {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"content": TEXT, "role": "assistant", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "finish_detail": "eos",
            }
        ],
        "usage": {
            "prompt_tokens": 31,
            "completion_tokens": 19,
            "total_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }


def test_usage_comes_last_in_a_stream_that_asks_for_it_and_nowhere_else(house: House) -> None:
    body = {**ROUTES["/v1/chat/completions"], "stream": True}
    plain = events_of(house.post("/v1/chat/completions", body).text)
    asked = events_of(house.post("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}}).text)
    assert all("usage" not in event for event in plain)
    assert [event["usage"] for event in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["choices"] == [] and asked[-1]["usage"]["completion_tokens"] == 19
    assert asked[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in asked[1]["choices"][0]["delta"]


def test_the_output_ends_with_length_at_max_tokens(house: House) -> None:
    body = house.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3}).json()
    assert body["choices"][0]["finish_reason"] == "length" and body["usage"]["completion_tokens"] == 3
    assert house.post("/generate", {"prompt": "Hi", "max_tokens": 2}).json()["finish_reason"] == "length"


def test_without_max_tokens_an_output_has_its_tasks_cap(house: House) -> None:
    for path, fields, cap in (
        ("/v1/completions", {}, 256),
        ("/generate", {}, 256),
        ("/v1/chat/completions", {}, 384),
        ("/v1/completions", {"task": "extract"}, 96),
        ("/v1/chat/completions", {"task": "reason"}, 768),
    ):
        body = {name: value for name, value in ROUTES[path].items() if name != "max_tokens"}
        assert house.post(path, {**body, **fields}).status_code == 200
        assert house.on_loop(lambda: house.engine.submits[-1]).sampling.max_tokens == cap


def test_every_sampling_field_reaches_the_engine(house: House) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2}
    fields |= {"frequency_penalty": -0.3, "seed": 7, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [5, 6]}
    assert house.post("/v1/completions", {"prompt": "Hi", "max_tokens": 9, "logit_bias": {"12": -100}, **fields}).status_code == 200
    sampling = house.engine.submits[-1].sampling
    assert {name: getattr(sampling, name) for name in fields} == {**fields, "stop_token_ids": (5, 6)}
    assert sampling.logit_bias == {12: -100.0} and sampling.max_tokens == 9


def test_prompts_and_n_make_choices_in_openais_order_with_seeds_that_follow(house: House) -> None:
    body = house.post("/v1/completions", {"prompt": ["a", "b"], "n": 2, "seed": 2**32 - 1, "max_tokens": 1}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [submit.sampling.seed for submit in house.engine.submits[-4:]] == [2**32 - 1, 0, 2**32 - 1, 0]
    assert body["usage"]["prompt_tokens"] == 2 and body["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [1, 27843], [[1, 27843]]])
def test_a_prompt_is_a_text_texts_token_ids_or_lists_of_them(house: House, prompt: Any) -> None:
    assert house.post("/v1/completions", {"prompt": prompt}).status_code == 200
    text_ids = house.post("/tokenize", {"prompt": "Hi"}).json()["tokens"]
    assert house.engine.submits[-1].prompt == tuple(text_ids if "Hi" in prompt else [1, 27843])


def test_echo_puts_the_prompt_in_front_also_of_token_ids(house: House) -> None:
    ids = house.post("/tokenize", {"prompt": "Naïve 😀"}).json()["tokens"]
    for prompt in ("Naïve 😀", ids):
        body = {"prompt": prompt, "echo": True, "max_tokens": 64}
        assert house.post("/v1/completions", body).json()["choices"][0]["text"] == "Naïve 😀" + TEXT
        events = events_of(house.post("/v1/completions", {**body, "stream": True}).text)
        assert "".join(text_of(event) for event in events) == "Naïve 😀" + TEXT


def test_logprobs_of_a_completion_line_up_with_its_text_and_echo_adds_the_prompts(house: House) -> None:
    body = house.post("/v1/completions", {"prompt": "Hi there", "logprobs": 2, "echo": True, "max_tokens": 4}).json()
    choice = body["choices"][0]
    scores = choice["logprobs"]
    assert choice["text"].startswith("Hi there") and "".join(scores["tokens"]) == choice["text"]
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1:] == [-0.5] * (len(scores["tokens"]) - 1)
    assert all(choice["text"][at:].startswith(token) for at, token in zip(scores["text_offset"], scores["tokens"], strict=True))
    assert all(len(top) == 2 for top in scores["top_logprobs"][1:])


def test_logprobs_of_a_chat_name_token_bytes_and_the_likeliest(house: House) -> None:
    asked = {**ROUTES["/v1/chat/completions"], "logprobs": True, "top_logprobs": 3}
    content = house.post("/v1/chat/completions", asked).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == TEXT
    assert all(len(token["top_logprobs"]) == 3 for token in content)


def test_logprobs_in_a_stream_tell_nothing_of_a_stop_string(house: House) -> None:
    body = {"prompt": "Hi", "max_tokens": 64, "logprobs": 0, "stop": [" is Paris"], "stream": True}
    events = events_of(house.post("/v1/completions", body).text)
    tokens = [token for event in events for choice in event["choices"] for token in choice["logprobs"]["tokens"]]
    assert "".join(tokens) == "The capital of France" == "".join(text_of(event) for event in events)


def test_a_stop_string_frees_the_engine_at_once(house: House, model: Any) -> None:
    house.set_engine(answer=text_answer(model, "one two three four " * 50), step_s=0.001)
    body = house.post("/v1/completions", {"prompt": "Hi", "max_tokens": 200, "stop": " three"}).json()
    assert body["choices"][0] == {"text": "one two", "index": 0, "logprobs": None, "finish_reason": "stop", "finish_detail": "stop_string"}
    house.until(lambda: not house.engine.running)
    assert house.engine.submits[-1].sequence_id in house.engine.aborted


def test_min_tokens_come_before_any_stop_string(house: House) -> None:
    body = {"prompt": "Hi", "max_tokens": 64, "stop": [" "], "min_tokens": 4}
    assert house.post("/v1/completions", body).json()["choices"][0]["text"] == "The capital of France"


def test_content_parts_null_fields_and_harmless_fields_are_taken(house: House) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "content": "Yes?", "refusal": None, "tool_calls": None, "annotations": None},
        {"role": "user", "content": "Go on"},
    ]
    body = {"model": MODEL, "messages": messages, "user": "u1", "stop": None, "n": None, "response_format": {"type": "text"}}
    assert house.post("/v1/chat/completions", {**body, "max_completion_tokens": 2}).status_code == 200


def test_a_chat_that_names_a_service_tier_is_told_what_it_was_served_as(house: House) -> None:
    body = ROUTES["/v1/chat/completions"]
    for asked, told, lane in (("flex", "flex", "batch"), ("priority", "priority", "fast"), ("auto", "default", "slow")):
        assert house.post("/v1/chat/completions", {**body, "service_tier": asked}).json()["service_tier"] == told
        assert house.engine.submits[-1].lane == lane
    events = events_of(house.post("/v1/chat/completions", {**body, "service_tier": "default", "stream": True}).text)
    assert {event["service_tier"] for event in events} == {"default"}


def test_the_lane_follows_stream_and_prompt_length(house: House) -> None:
    for prompt, stream, lane in (("Hi", True, "fast"), ("Hi", False, "slow"), ("Hi " * 600, True, "slow")):
        house.post("/v1/completions", {"prompt": prompt, "stream": stream, "max_tokens": 1})
        assert house.engine.submits[-1].lane == lane


def test_the_cache_salt_is_the_authenticated_tenants(house: House) -> None:
    house.post("/v1/completions", ROUTES["/v1/completions"])
    house.post("/v1/completions", ROUTES["/v1/completions"], headers={"Authorization": "Bearer fl-other-6789abcdef0123"})
    assert [submit.salt for submit in house.engine.submits[-2:]] == ["tenant:default", "tenant:other"]


def test_tokenize_counts_prompts_and_conversations(house: House, card: ModelCard) -> None:
    body = house.post("/tokenize", {"prompt": "Hello 😀", "return_token_strs": True}).json()
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) and body["max_model_len"] == card.max_model_len
    assert body["token_strs"][0] == "Hello"
    assert house.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()["count"] == 31
    assert house.post("/tokenize", {}).status_code == 400


def test_models_are_listed_and_shown(house: House) -> None:
    listed = house.client.get("/v1/models").json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == [MODEL]
    assert house.client.get(f"/v1/models/{MODEL}").json() == listed["data"][0]
    assert house.client.get("/v1/models/gpt-9").status_code == 404


def test_the_official_client_works_unchanged(house: House) -> None:
    with openai.OpenAI(base_url=f"{house.base_url}/v1", api_key=KEY, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        messages: Any = [{"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(model=MODEL, messages=messages, logprobs=True, top_logprobs=2)
        assert chat.choices[0].message.content == TEXT and chat.usage is not None and chat.usage.completion_tokens == 19
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 19
        pieces = client.completions.create(model=MODEL, prompt="Hi", max_tokens=64, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == TEXT
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt-9", messages=messages)
        with pytest.raises(openai.BadRequestError, match="tools"):
            client.chat.completions.create(model=MODEL, messages=messages, tools=[])


def test_the_description_of_the_api_names_every_route_and_every_field(house: House) -> None:
    described = house.client.get("/schema/openapi.json").json()
    routes = {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model_id}", "/generate", "/tokenize"}
    assert routes | {"/livez", "/readyz", "/health", "/metrics"} <= set(described["paths"])
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert "temperature" in fields and fields["messages"]["description"]
    page = house.client.get("/schema").text
    assert "/v1/chat/completions" in page and "max_completion_tokens" in page and "<script" not in page
