"""The load generator against a small server over real sockets."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator

import pytest

from benchmarks.load import Request, closed_loop, open_loop
from benchmarks.peers import comparison, medians
from benchmarks.prompts import prompt, words
from benchmarks.scenarios import quantile, report, text_table
from benchmarks.sse_client import Endpoint

BROKEN = "break off"
REFUSED = "refuse"
LAST = "last"
"""Answered, and then the connection is closed without a word."""


@contextlib.asynccontextmanager
async def completion_server() -> AsyncIterator[Endpoint]:
    """Streams `max_tokens` events and a usage event, in chunks that split events; two prompts make it misbehave."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                await answer(body, writer)
                if body["prompt"] == LAST:
                    break
        writer.close()

    async def answer(body: dict, writer: asyncio.StreamWriter) -> None:
        if body["prompt"] == REFUSED:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nsorry")
            return
        events = [{"choices": [{"text": "a"}]} for _ in range(body["max_tokens"])]
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": body["max_tokens"]}
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in [*events, {"choices": [], "usage": usage}]) + "data: [DONE]\n\n"
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        content = lines.encode()[: 40 if body["prompt"] == BROKEN else None]
        for start in range(0, len(content), 37):
            part = content[start : start + 37]
            writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m")
    finally:
        server.close()


async def test_tokens_and_usage_are_read_from_events_split_over_chunks():
    async with completion_server() as endpoint:
        run = await closed_loop(endpoint, [Request("one two three", 5)] * 7, in_flight=3)
    assert [(o.error, o.prompt_tokens, o.completion_tokens, len(o.token_times_s)) for o in run.outcomes] == [("", 3, 5, 5)] * 7


@pytest.mark.parametrize(("text", "error"), [(REFUSED, "503 Service Unavailable: sorry"), (BROKEN, "ended without")])
async def test_a_failed_request_is_counted_and_does_not_stop_the_others(text: str, error: str):
    async with completion_server() as endpoint:
        run = await closed_loop(endpoint, [Request("fine", 2), Request(text, 2), Request("fine", 2)], in_flight=1)
    numbers = report(run)
    assert (numbers["requests"], numbers["failed"]) == (3, 1)
    assert error in run.outcomes[1].error
    assert error in text_table({"x": numbers})


async def test_a_connection_that_the_server_closed_between_two_requests_is_made_anew():
    async with completion_server() as endpoint:
        run = await closed_loop(endpoint, [Request(LAST, 2)] * 5, in_flight=1)
    assert report(run)["failed"] == 0


async def test_a_server_that_is_not_there_gives_failures_not_an_exception():
    async with completion_server() as endpoint:
        pass
    run = await open_loop(endpoint, [Request("x", 1)] * 2, interval_s=0.0)
    assert report(run)["failed"] == 2


async def test_latency_counts_from_the_scheduled_send():
    async with completion_server() as endpoint:
        run = await open_loop(endpoint, [Request("x", 1)] * 4, interval_s=0.01)
    first = run.outcomes[0].scheduled_s
    assert [round(o.scheduled_s - first, 6) for o in run.outcomes] == [0.0, 0.01, 0.02, 0.03]
    assert all(o.sent_s >= o.scheduled_s for o in run.outcomes)
    assert all(o.ttft_s == o.token_times_s[0] - o.scheduled_s for o in run.outcomes)


def test_prompts_repeat_with_the_seed_and_share_no_beginning():
    rng = random.Random(0)
    prompts = [prompt(rng, 60) for _ in range(200)]
    assert prompts[0] == prompt(random.Random(0), 60)
    assert len({" ".join(each.split()[:4]) for each in prompts}) == len(prompts)
    assert all(len(set(each.split())) == 60 for each in prompts)
    assert len(words()) == len(set(words())) == 1024


def test_p99_of_a_hundred_is_the_ninety_ninth():
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile(range(1, 101), 0.5) == 50
    assert quantile([7.0], 0.99) == 7.0


def test_a_comparison_divides_ours_by_theirs_and_leaves_out_the_first_start():
    ours = [{"in_flight_8": {"output_tok_s": 300}, "start": {"ready_s": start}} for start in (60.0, 8.0)]
    theirs = [{"in_flight_8": {"output_tok_s": 200}, "start": {"ready_s": 16.0}}] * 2
    table = comparison({"fairlane": medians(ours), "vllm": medians(theirs)})
    assert "| in_flight_8: out tok/s | 300.0 | 200.0 | 1.50 |" in table
    assert "| start: ready, s | 8.0 | 16.0 | 0.50 |" in table
