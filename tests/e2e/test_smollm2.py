"""The served SmolLM2 over HTTP."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.text.model import load_text_model
from appliance.text.prefixes import PrefixEntry, encode_prefix
from tests.appliance import Appliance
from tests.e2e.conftest import GROUP, SYSTEM_PROMPT
from tests.e2e.metrics import metric, until
from tests.e2e.tenants import tenant_headers

MODEL = "smollm2-135m-instruct"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PAGE_TOKENS = 16
OUTCOMES = ("completed", "rejected", "cancelled", "expired", "failed")

PROMPTS = [
    "The quick brown fox",
    "Emoji please: 😀😃😄",
    "def fibonacci(n):",
    "日本の首都は",
    "1, 2, 3, 4,",
    "Once upon a time, in a small village by the sea,",
]


@pytest.fixture
def openai_client(appliance: Appliance) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{appliance.base_url}/v1", api_key=appliance.api_key, max_retries=0, timeout=120) as client:
        yield client


def test_the_capital_of_france_is_paris(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "") and answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("stop", [None, ["e"], ["\n\n", " the"]])
def test_a_greedy_stream_joined_is_the_whole_answer(openai_client: openai.OpenAI, prompt: str, stop: list[str] | None) -> None:
    asked: Any = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 24, "stop": stop, "echo": True}
    whole = openai_client.completions.create(**asked)
    pieces = [piece.choices[0] for piece in openai_client.completions.create(**asked, stream=True)]
    text = "".join(piece.text for piece in pieces)
    assert text == whole.choices[0].text and text.startswith(prompt)
    assert pieces[-1].finish_reason == whole.choices[0].finish_reason
    assert "\ufffd" not in text.removesuffix("\ufffd")  # only an output cut inside a character ends with one
    assert not stop or not any(s in text.removeprefix(prompt) for s in stop)


def test_a_stream_has_an_event_for_a_token_whose_text_is_not_whole_yet(openai_client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPTS[1], "temperature": 0, "max_tokens": 24}
    *pieces, last = openai_client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    texts = [piece.choices[0].text for piece in pieces]
    assert last.usage is not None and last.usage.completion_tokens == 24
    assert "" in texts[:-1] and any(ord(letter) > 0xFFFF for letter in "".join(texts))  # a smiley takes several tokens
    assert 16 <= len(texts) <= 25  # several tokens share an event only where the reader is late; the last one may be of the end


def test_the_same_seed_gives_the_same_text_alone_and_in_company(openai_client: openai.OpenAI, appliance: Appliance) -> None:
    asked: Any = {"model": MODEL, "prompt": "A poem about rain:", "temperature": 1.0, "seed": 11, "max_tokens": 24}
    alone = openai_client.completions.create(**asked).choices[0].text

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{appliance.base_url}/v1", api_key=appliance.api_key, timeout=120) as client:
            answers = await asyncio.gather(
                *(client.completions.create(**{**asked, "seed": seed, "prompt": asked["prompt"]}) for seed in (11, 12, 13, 11, 14))
            )
            return [answer.choices[0].text for answer in answers]

    texts = asyncio.run(together())
    assert texts[0] == texts[3] and len(set(texts)) >= 4
    assert alone == texts[0]


def test_sampling_fields_do_what_they_say(client: httpx.Client) -> None:
    def complete(**fields: Any) -> dict[str, Any]:
        response = client.post("/v1/completions", json={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8, **fields})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    plain = complete(logprobs=1)
    first = plain["logprobs"]["tokens"][0]
    first_id = client.post("/tokenize", json={"prompt": first}).json()["tokens"][0]
    assert first not in complete(logit_bias={str(first_id): -100}, max_tokens=1)["text"]
    assert complete(stop_token_ids=[first_id]) == {
        "text": "",
        "index": 0,
        "logprobs": None,
        "finish_reason": "stop",
        "finish_detail": "stop_token",
    }
    assert complete(temperature=2.0, top_k=1)["text"] == plain["text"]
    assert complete(temperature=2.0, top_p=1e-6)["text"] == plain["text"]
    assert complete(ignore_eos=True, max_tokens=60)["finish_reason"] == "length"
    assert (
        complete(presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=1.5, max_tokens=40)["text"]
        != complete(max_tokens=40)["text"]
    )


def test_wrong_input_is_refused_and_harms_nobody(client: httpx.Client) -> None:
    bad: list[dict[str, Any]] = [
        {"prompt": ""},
        {"prompt": [49152]},
        {"prompt": [-1]},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": 5000},
        {"prompt": "word " * 5000},
        {"prompt": "x", "logit_bias": {"60000": 1}},
        {"prompt": "x", "stop_token_ids": [60000]},
        {"prompt": "x", "suffix": "y"},
    ]
    failed_before = metric(client, "requests_total", outcome="failed")
    body = {"prompt": "Count: 1, 2, 3,", "max_tokens": 48, "stream": True, "temperature": 0}
    expected = client.post("/v1/completions", json={**body, "stream": False}).json()["choices"][0]["text"]
    with client.stream("POST", "/v1/completions", json=body) as neighbour:
        for wrong in bad:
            response = client.post("/v1/completions", json=wrong)
            assert response.status_code == 400, (wrong, response.text)
        lines = [json.loads(line.removeprefix("data: ")) for line in neighbour.iter_lines() if line.startswith("data: {")]
    assert "".join(line["choices"][0]["text"] for line in lines) == expected
    assert metric(client, "requests_total", outcome="failed") == failed_before


def test_two_tenants_of_a_group_share_the_pages_of_a_common_prefix(appliance: Appliance, client: httpx.Client, export: Path) -> None:
    model = load_text_model(export)
    prefix = encode_prefix(PrefixEntry(system=SYSTEM_PROMPT, trust_group=GROUP), model)
    num_pages = len(prefix.tokens) // PAGE_TOKENS
    assert num_pages == 125
    patient = {"queue_ttl_ms": None}  # admission knows of the cache only what the tenant's earlier requests showed
    headers = [tenant_headers(appliance, slug, GROUP, patient) for slug in ("acme-one", "acme-two")]
    stranger = tenant_headers(appliance, "stranger", "")
    pages_before = held_pages(client)

    async def ask_all() -> list[int]:
        async with httpx.AsyncClient(base_url=appliance.base_url, timeout=300) as http:
            answers = [http.post("/v1/chat/completions", json=conversation(f"What is {n}?"), headers=headers[n % 2]) for n in range(100)]
            return [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in await asyncio.gather(*answers)]

    assert min(asyncio.run(ask_all())) >= num_pages * PAGE_TOKENS
    until(lambda: metric(client, "running_requests") == 0)
    assert held_pages(client) - pages_before <= 100 * 3, "each request may leave its own few pages, none the prefix's again"
    foreign = client.post("/v1/chat/completions", json=conversation("What is 1?"), headers=stranger).json()
    assert foreign["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def conversation(question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "max_tokens": 1, "temperature": 0}


def held_pages(client: httpx.Client) -> float:
    return metric(client, "kv_pages", state="used") + metric(client, "kv_pages", state="cached")


def test_after_500_requests_with_random_disconnects_nothing_is_left_over(appliance: Appliance, client: httpx.Client) -> None:
    rng = random.Random(3)
    before = {outcome: metric(client, "requests_total", outcome=outcome) for outcome in OUTCOMES}
    visits = [
        (rng.choice(PROMPTS), rng.randrange(1, 12), rng.random() < 0.5, rng.random() * 0.6 if rng.random() < 0.6 else None)
        for _ in range(500)
    ]

    async def storm() -> None:
        seats = asyncio.Semaphore(32)
        await asyncio.gather(*(visit(appliance, seats, *plan) for plan in visits))

    asyncio.run(storm())
    until(lambda: metric(client, "running_requests") + metric(client, "queue_depth") == 0)
    until(lambda: metric(client, "kv_pages", state="used") <= pinned_pages(client))
    counted = {outcome: metric(client, "requests_total", outcome=outcome) - before[outcome] for outcome in OUTCOMES}
    assert sum(counted.values()) == 500 and counted["failed"] == counted["rejected"] == 0
    assert counted["completed"] > 100 and counted["cancelled"] > 20
    assert metric(client, "compiles_after_ready_total") == 0
    assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


def pinned_pages(client: httpx.Client) -> int:
    """Pages of the common prefix, which are held for ever."""
    return len(client.post("/tokenize", json={"messages": conversation("?")["messages"]}).json()["tokens"]) // PAGE_TOKENS


async def visit(
    appliance: Appliance, seats: asyncio.Semaphore, prompt: str, max_tokens: int, stream: bool, leaves_after_s: float | None
) -> None:
    """Send a request whole; read its answer to the end, or hang up."""
    url = httpx.URL(appliance.base_url)
    body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {appliance.api_key}\r\nConnection: close\r\n"
    async with seats:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        try:
            async with asyncio.timeout(leaves_after_s):
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
        except TimeoutError:
            pass
        writer.close()


def test_lanes_show_their_newest_times_and_no_sum_is_out(client: httpx.Client, appliance: Appliance) -> None:
    streamed = client.post("/v1/completions", json={"prompt": "One, two,", "max_tokens": 4, "stream": True})
    assert streamed.status_code == 200
    admin = {"Authorization": f"Bearer {appliance.admin_token}"}
    lanes = {lane["lane"]: lane for lane in client.get("/api/v1/lanes", headers=admin).json()["lanes"]}
    fast = lanes["fast"]["ttft"]
    assert fast["count"] >= 1 and 0 < fast["p50"] <= fast["p90"] <= fast["p99"] <= fast["p999"]
    assert client.get("/api/v1/lanes").status_code == 403
    assert client.get("/load").json()["status"] == "ready"
    assert metric(client, "accounting_mismatch_total") == 0
    assert metric(client, "device_seconds_total", tenant="default") > 0
    assert metric(client, "process_cpu_seconds_total", process="engine") > 1
    assert [metric(client, name) for name in ("ready", "engine_starts_total", "database_degraded")] == [1, 1, 0]
    until(lambda: metric(client, "usage_unwritten_seconds") < 2)
