"""Wrong input: the right status, words that help, and nobody else is harmed."""

import socket
from typing import Any

import httpx
import msgspec
import pytest

from appliance.domain.access.principal import Scope
from engine.wire import ModelCard, TenantPolicy
from tests.inference.conftest import text_answer
from tests.inference.harness import KEY, METRICS_KEY, House, in_background, key, snapshot, start_house

HUGE = int("9" * 400)
"""JSON may have it, no float can hold it."""
CHAT = [{"role": "user", "content": "Hi"}]

BAD_COMPLETIONS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"prompt": ""}, "prompt", ["empty"]),
    ({"prompt": []}, "prompt", ["empty"]),
    ({"prompt": [[]]}, "prompt", ["empty"]),
    ({"prompt": ["a", ""]}, "prompt", ["empty"]),
    ({"prompt": ["a", 1]}, "prompt", ["mixes"]),
    ({}, "prompt", ["missing"]),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", ["0", "at least 1"]),
    ({"prompt": "x", "max_tokens": -5}, "max_tokens", ["-5"]),
    ({"prompt": "x", "max_tokens": 2048}, "max_tokens", ["2048", "2047", "1 tokens"]),
    ({"prompt": [33] * 2048}, "prompt", ["2048", "2048 tokens"]),
    ({"prompt": "word " * 3000}, "prompt", ["3001", "2048"]),
    ({"prompt": "x" * 200_000}, "prompt", ["200000", "2048"]),
    ({"prompt": "word " * 20_000}, "prompt", ["first 16384 characters", "2048"]),
    ({"prompt": ["x", "word " * 20_000]}, "prompt", ["first 16384 characters", "2048"]),
    ({"prompt": [-1]}, "prompt", ["-1", "49151"]),
    ({"prompt": [49152]}, "prompt", ["49152", "49151"]),
    ({"prompt": "x", "logit_bias": {"49152": 1}}, "logit_bias", ["49152", "49151"]),
    ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", ["'a'"]),
    ({"prompt": "x", "logit_bias": {" 1": 1}}, "logit_bias", ["' 1'"]),
    ({"prompt": "x", "logit_bias": {"01": 1}}, "logit_bias", ["'01'"]),
    ({"prompt": "x", "logit_bias": {"1_0": 1}}, "logit_bias", ["'1_0'"]),
    ({"prompt": "x", "logit_bias": {"\u0661": 1}}, "logit_bias", ["no token id"]),
    ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias", ["101", "100"]),
    ({"prompt": "x", "stop_token_ids": [-1]}, "stop_token_ids", ["-1"]),
    ({"prompt": "x", "stop_token_ids": list(range(17))}, "stop_token_ids", ["17", "16"]),
    ({"prompt": "x", "stop": ["a"] * 17}, "stop", ["17", "16"]),
    ({"prompt": "x", "stop": ""}, "stop", ["0 characters"]),
    ({"prompt": "x", "temperature": -0.1}, "temperature", ["-0.1", "2"]),
    ({"prompt": "x", "temperature": 2.5}, "temperature", ["2.5", "2"]),
    ({"prompt": "x", "top_p": 0}, "top_p", ["0", "1"]),
    ({"prompt": "x", "top_k": -2}, "top_k", ["-2"]),
    ({"prompt": "x", "min_p": 1.5}, "min_p", ["1.5"]),
    ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", ["0"]),
    ({"prompt": "x", "presence_penalty": 3}, "presence_penalty", ["3"]),
    ({"prompt": "x", "frequency_penalty": -3}, "frequency_penalty", ["-3"]),
    ({"prompt": "x", "min_tokens": 257}, "min_tokens", ["257", "256"]),
    ({"prompt": "x", "task": "poetry"}, "task", ["poetry"]),
    ({"prompt": "x", "deadline_ms": 0}, "deadline_ms", ["0", "from 1 to 86400000"]),
    ({"prompt": "x", "n": 0}, "n", ["0"]),
    ({"prompt": ["x"] * 65, "n": 2}, "n", ["130", "128"]),
    ({"prompt": "x", "best_of": 2}, "best_of", ["2", "1"]),
    ({"prompt": "x", "logprobs": 21}, "logprobs", ["21", "20"]),
    ({"prompt": "x", "logprobs": True}, "logprobs", ["int", "bool"]),
    *(({"prompt": "x", name: HUGE}, name, ["9999", "400"]) for name in ("n", "max_tokens", "min_tokens", "top_k", "logprobs", "best_of")),
    ({"prompt": [HUGE]}, "prompt", ["9999", "49151"]),
    ({"prompt": "x", "stop_token_ids": [-HUGE]}, "stop_token_ids", ["-9999", "49151"]),
    ({"prompt": "x", "suffix": "y"}, "suffix", ["'suffix'", "not supported", "max_tokens"]),
    ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", ["stream"]),
    ({"prompt": "x", "stream": True, "stream_options": {"continuous": 1}}, "stream_options.continuous", ["not supported"]),
    ({"prompt": "x", "temperature": "hot"}, "temperature", ["float", "str"]),
    ({"prompt": "x", "service_tier": "gold"}, "service_tier", ["gold"]),
]  # fmt: skip

BAD_CHATS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({}, "messages", ["missing"]),
    ({"messages": []}, "messages", ["empty"]),
    (
        {"messages": [{"role": "wizard", "content": "x"}]},
        "messages[0].role",
        ["'wizard' is none of", "assistant, developer, system, tool, user"],
    ),
    ({"lane": "express"}, "lane", ["'express' is none of batch, fast, slow"]),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]}, "messages[0].content[0].type", ["image_url"]),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "messages[0].tool_calls", ["null"]),
    ({"messages": CHAT, "tools": []}, "tools", ["'tools'", "not supported"]),
    ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs", ["logprobs"]),
    ({"messages": CHAT, "logprobs": True, "top_logprobs": 21}, "top_logprobs", ["21", "20"]),
    ({"messages": CHAT, "max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", ["1", "2"]),
    ({"messages": CHAT, "max_completion_tokens": 2018}, "max_completion_tokens", ["2018", "31", "2017"]),
    ({"messages": CHAT, "response_format": {"type": "json_object"}}, "response_format.type", ["json_object"]),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages", ["2048"]),
    ({"messages": [{"role": "user", "content": "word " * 20_000}]}, "messages", ["first 16384 characters", "2048"]),
    ({"messages": CHAT * 2049}, "messages", ["2049", "2048"]),
]


def check(response: httpx.Response, param: str | None, words: list[str]) -> None:
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["type"] == "invalid_request_error" and error["param"] == param, error
    assert all(word in error["message"] for word in words), error["message"]
    assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(("body", "param", "words"), BAD_COMPLETIONS)
def test_a_wrong_completion_is_refused_with_the_field_and_the_numbers(
    house: House, body: dict[str, Any], param: str, words: list[str]
) -> None:
    check(house.post("/v1/completions", body), param, words)


@pytest.mark.parametrize(("body", "param", "words"), BAD_CHATS)
def test_a_wrong_chat_is_refused_with_the_field_and_the_numbers(house: House, body: dict[str, Any], param: str, words: list[str]) -> None:
    check(house.post("/v1/chat/completions", body), param, words)


def test_a_text_that_packs_more_than_64_characters_into_each_token_is_not_too_long(house: House) -> None:
    answer = house.post("/v1/completions", {"prompt": ("\n" + 80 * " ") * 2_000, "max_tokens": 1})
    assert answer.json()["usage"]["prompt_tokens"] == 2_000


@pytest.mark.parametrize(
    "raw", [b"", b"{", b'{"prompt": "x", "temperature": NaN}', b"\xff\xfe", b'{"prompt": "x\xff"}', b'{"prompt": "\\ud800"}']
)
def test_a_body_that_is_no_json_is_refused(house: House, raw: bytes) -> None:
    response = house.client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["code"] == "malformed_json"


def test_a_refusal_repeats_no_more_of_a_made_up_name_than_helps(house: House) -> None:
    name = "k" * 100_000
    for body in ({name: 1}, {"messages": [{"role": name}]}, {"messages": [{name: 1}]}, {"messages": CHAT, "model": name}):
        response = house.post("/v1/chat/completions", body)
        assert response.status_code in (400, 404) and len(response.content) < 2_000 and "kkkk" in response.json()["error"]["message"]


def test_a_body_of_endless_brackets_is_refused(house: House) -> None:
    response = house.client.post("/v1/completions", content=b'{"prompt":' + b"[" * 500_000, headers={"content-type": "application/json"})
    assert response.status_code == 400


def test_another_content_type_is_refused(house: House) -> None:
    response = house.client.post("/v1/completions", content=b"prompt=x", headers={"content-type": "application/x-www-form-urlencoded"})
    assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]


def test_an_unknown_model_is_named(house: House) -> None:
    response = house.post("/v1/completions", {"prompt": "x", "model": "gpt-9"})
    assert response.status_code == 404 and response.json()["error"]["code"] == "model_not_found"
    assert "gpt-9" in response.json()["error"]["message"]


def test_a_template_that_refuses_a_role_answers_in_its_own_words(export: Any, card: ModelCard, model: Any, tmp_path: Any) -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}x"
    (tmp_path / "tokenizer.json").write_bytes((export / "tokenizer.json").read_bytes())
    strict = msgspec.structs.replace(card, chat_template=template)
    (tmp_path / "model.json").write_bytes(msgspec.json.encode(strict))
    with start_house(tmp_path, strict, text_answer(model)) as house:
        response = house.post("/v1/chat/completions", {"messages": [{"role": "system", "content": "x"}, *CHAT]})
        check(response, "messages", ["System role not supported"])


def test_a_body_of_50_mb_is_refused_before_it_is_read_and_the_connection_lives_on(house: House) -> None:
    host, port = httpx.URL(house.base_url).host, httpx.URL(house.base_url).port
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, port), timeout=10) as sock:
        sock.sendall(f"{head}Content-Length: {50 * 1024 * 1024}\r\n\r\n".encode())
        answer = b""
        while b"}}" not in answer:  # nothing of the body was sent yet
            answer += sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413") and b"request_too_large" in answer
        for _ in range(50):
            sock.sendall(b"x" * 1024 * 1024)
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_chunked_body_is_refused_where_it_grows_too_long(house: House) -> None:
    def chunks():
        for _ in range(40):
            yield b"x" * 65536

    response = house.client.post("/v1/completions", content=chunks(), headers={"content-type": "application/json"})
    assert response.status_code == 413


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize"])
def test_no_key_or_a_wrong_one_is_401_before_the_body_is_looked_at(house: House, path: str) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong-key-0123456789"}, {"Authorization": "Basic abc"}):
        response = house.client.post(path, content=b"{", headers=headers)
        assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["type"] == "authentication_error"


def test_a_key_without_the_scope_another_tenant_and_another_model_are_403(export: Any, card: ModelCard, model: Any) -> None:
    access = snapshot(
        **{
            "fl-only-model-0123456789": key("default", models=frozenset({"other-model"})),
            "fl-only-batch-0123456789": key("default", lanes=frozenset({"batch"})),
            "fl-gateway-01234567890123": key("default", Scope.GATEWAY),
        }
    )
    with start_house(export, card, text_answer(model), access=access) as house:

        def post(raw_key: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
            return house.post("/v1/completions", {"prompt": "x", **(body or {})}, headers={"Authorization": f"Bearer {raw_key}", **headers})

        twice = [("Authorization", f"Bearer {KEY}"), ("X-Tenant-ID", "default"), ("X-Tenant-ID", "other")]
        assert house.client.post("/v1/completions", json={"prompt": "x"}, headers=twice).json()["error"]["code"] == "repeated_header"
        assert post(METRICS_KEY).json()["error"]["code"] == "missing_scope"
        assert post(KEY, **{"X-Tenant-ID": "other"}).json()["error"]["code"] == "tenant_mismatch"
        assert post("fl-only-model-0123456789").json()["error"]["code"] == "model_not_allowed"
        assert post("fl-only-batch-0123456789", {"service_tier": "priority"}).json()["error"]["code"] == "lane_not_allowed"
        assert post("fl-only-batch-0123456789").status_code == 200
        assert house.engine.submits[-1].lane == "batch"
        assert post("fl-gateway-01234567890123", **{"X-Tenant-ID": "other"}).status_code == 200
        assert house.engine.submits[-1].tenant_id == "other"


def test_limits_answer_429_for_the_tenants_own_and_503_for_our_shortage(export: Any, card: ModelCard, model: Any) -> None:
    access = snapshot(TenantPolicy(tenant_id="default", max_concurrency=2), TenantPolicy(tenant_id="other", max_concurrency=None))
    other = {"Authorization": "Bearer fl-other-6789abcdef0123"}
    with start_house(export, card, text_answer(model), access=access, max_queue_depth=3) as house:
        house.set_engine(hold=True)
        with in_background(house, 2), in_background(house, 1, other):
            house.until(lambda: house.admission.num_in_flight == 3)
            own = house.post("/v1/completions", {"prompt": "x"})
            assert own.status_code == 429 and own.json()["error"]["code"] == "rate_limit_exceeded"
            assert own.json()["error"]["reason"] == "concurrency" and int(own.headers["retry-after"]) >= 1
            full = house.post("/v1/completions", {"prompt": "x"}, headers=other)
            assert full.status_code == 503 and full.json()["error"]["code"] == "overloaded" and "retry-after" in full.headers
            house.set_engine(hold=False)
        house.until(lambda: house.admission.num_in_flight == 0 and house.admission.num_waiting == 0)
        assert house.metric("rejections_total", reason="concurrency") == house.metric("rejections_total", reason="queue_full") == 1


def test_metrics_need_a_key_of_that_scope_where_the_server_is_reachable(export: Any, card: ModelCard, model: Any) -> None:
    with start_house(export, card, text_answer(model), metrics_need_key=True) as house:
        assert house.client.get("/metrics").status_code == 403
        assert house.client.get("/metrics", headers={"Authorization": ""}).status_code == 401
        answer = house.client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_KEY}"})
        assert answer.status_code == 200 and answer.headers["content-type"].count("charset=") == 1, "Prometheus refuses two"


def test_before_the_engine_is_ready_and_while_draining_everything_says_so(export: Any, card: ModelCard, model: Any) -> None:
    with start_house(export, card, text_answer(model), wait=False) as house:
        early = house.post("/v1/completions", {"prompt": "x"})
        assert early.status_code == 503 and early.json()["error"]["code"] == "warming_up" and "retry-after" in early.headers
        assert house.client.get("/v1/models").status_code == 503
        assert house.client.get("/readyz").json()["status"] == "warming_up"
        assert house.client.get("/livez").status_code == 200
        house.connect_engine(export, text_answer(model), card)
        assert house.client.get("/readyz").json() == {"status": "ready", "phase": "ready", "percent": 100, "reason": ""}
        house.on_loop(house.gate.drain)
        late = house.post("/v1/completions", {"prompt": "x"})
        assert late.status_code == 503 and late.json()["error"]["code"] == "draining"
        assert house.client.get("/health").status_code == 503


def test_an_unknown_route_answers_in_openais_shape(house: House) -> None:
    response = house.client.get("/v2/nothing")
    assert response.status_code == 404 and response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["x-request-id"].startswith("req_")
