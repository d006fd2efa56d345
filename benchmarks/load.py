"""Sends requests and notes times: a closed loop for throughput, an open loop for latency.

Latency counts from the *scheduled* send, so a late generator can not hide a slow server; how late it was is reported.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.sse_client import BadResponse, Connection, Endpoint


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how many tokens to make of it, greedily and past any end-of-text token."""

    prompt: str
    max_tokens: int

    def body(self, model: str) -> dict[str, object]:
        """The JSON body; vLLM, llama.cpp and this server take all of these fields."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(slots=True)
class Outcome:
    """What came of a request. Times are `time.perf_counter` seconds."""

    scheduled_s: float
    sent_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """From the scheduled send to the first token."""
        return self.token_times_s[0] - self.scheduled_s

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first."""
        return (self.token_times_s[-1] - self.token_times_s[0]) / max(1, self.completion_tokens - 1)

    @property
    def worst_gap_s(self) -> float:
        """Longest wait between two events of the stream."""
        return max((b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)), default=0.0)


@dataclass(frozen=True, slots=True)
class Run:
    """Outcomes of one load, its wall time, and the CPU time the generator itself took."""

    outcomes: tuple[Outcome, ...]
    wall_s: float
    generator_cpu_s: float


async def send(connection: Connection, endpoint: Endpoint, request: Request, scheduled_s: float) -> Outcome:
    """Send one request and read its stream to the end; a failure is an outcome with an error, never an exception."""
    outcome = Outcome(scheduled_s, sent_s=time.perf_counter())
    last = b""
    try:
        async for data in connection.events(request.body(endpoint.model)):
            if b'"choices":[]' not in data.replace(b" ", b""):
                outcome.token_times_s.append(time.perf_counter())
            last = data
        usage = json.loads(last).get("usage") or {}
        outcome.prompt_tokens, outcome.completion_tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        if not outcome.token_times_s or not outcome.completion_tokens:
            outcome.error = f"no tokens or no usage; the last event was {last.decode(errors='replace')[:300]}"
    except BadResponse as error:
        outcome.error = str(error)
    outcome.ended_s = time.perf_counter()
    return outcome


async def closed_loop(endpoint: Endpoint, requests: Sequence[Request], in_flight: int) -> Run:
    """Keep `in_flight` requests going until all are done: what throughput is measured with."""
    todo = iter(requests)
    outcomes: list[Outcome] = []

    async def worker() -> None:
        async with Connection(endpoint) as connection:
            for request in todo:
                outcomes.append(await send(connection, endpoint, request, time.perf_counter()))

    started_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return Run(tuple(outcomes), time.perf_counter() - started_s, time.process_time() - cpu_s)


async def open_loop(endpoint: Endpoint, requests: Sequence[Request], interval_s: float) -> Run:
    """Send a request every `interval_s`, whether or not the one before has been answered."""
    idle: list[Connection] = []

    async def one(request: Request, scheduled_s: float) -> Outcome:
        connection = idle.pop() if idle else Connection(endpoint)
        outcome = await send(connection, endpoint, request, scheduled_s)
        idle.append(connection)
        return outcome

    started_s, cpu_s = time.perf_counter(), time.process_time()
    tasks: list[asyncio.Task[Outcome]] = []
    for number, request in enumerate(requests):
        scheduled_s = started_s + number * interval_s
        await asyncio.sleep(max(0.0, scheduled_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one(request, scheduled_s)))
    outcomes = await asyncio.gather(*tasks)
    for connection in idle:
        connection.close()
    return Run(tuple(outcomes), time.perf_counter() - started_s, time.process_time() - cpu_s)
