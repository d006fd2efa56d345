"""Sends a case's requests: open loops from their schedule, closed loops beside them, slow readers, clients that hang up."""

import asyncio
import contextlib
import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator

from benchmarks.load import Outcome, Request, send
from benchmarks.prompts import prompt, words_of_tokens
from benchmarks.sse_client import Connection, Endpoint
from benchmarks.tail.case import Case, Flight, Stream
from benchmarks.tail.report import Sent

RETRY_S = 0.1
"""A closed loop that was refused waits so long."""
SLOW_READ_BYTES = 256
STATUS_OK = b"HTTP/1.1 200"
SMALL_BUFFER_BYTES = 4096
"""Of a slow reader's socket: else the kernel would read ahead for it."""

type Endpoints = dict[str, Endpoint]
type OnSecond = Callable[[float, int], None]
"""Seconds since the begin, requests ended."""


class Traffic:
    """One case's load on one server."""

    def __init__(self, case: Case, endpoints: Endpoints, seed: int = 0) -> None:
        self.sent: list[Sent] = []
        self.begin_s = 0.0
        self.end_s = 0.0
        self._has_ended = False
        """Closed loops end with the request that they are at: part of its work was done in the case's time."""
        self._case = case
        self._endpoints = endpoints
        self._rng = random.Random(f"{case.name} {seed}")
        self._idle: dict[str, list[Connection]] = {}
        self._sizes: dict[str, Iterator[tuple[int, int]]] = {}

    async def run(self, on_second: OnSecond = lambda _s, _ended: None) -> None:
        """Everything, for the case's duration and until what was sent is answered."""
        flights = [task for source in self._case.sources if isinstance(source, Flight) for task in self._start(source)]
        await asyncio.sleep(self._case.warm_s)
        self.begin_s = time.perf_counter()
        ticker = asyncio.create_task(self._tick(on_second))
        streams = [asyncio.create_task(self._stream(source)) for source in self._case.sources if isinstance(source, Stream)]
        await asyncio.sleep(self._case.duration_s)
        self.end_s = time.perf_counter()
        self._has_ended = True
        await asyncio.gather(*streams)
        if flights:
            await asyncio.wait(flights, timeout=self.end_s + self._case.drain_s - time.perf_counter())
        for task in (*flights, ticker):
            task.cancel()
        await asyncio.gather(*flights, ticker, return_exceptions=True)
        for connection in (each for pool in self._idle.values() for each in pool):
            connection.close()

    async def _tick(self, on_second: OnSecond) -> None:
        while True:
            on_second(time.perf_counter() - self.begin_s, len(self.sent))
            await asyncio.sleep(1.0)

    def _request(self, prompt_tokens: int, output_tokens: int) -> Request:
        return Request(prompt(self._rng, words_of_tokens(prompt_tokens)), output_tokens)

    # ---- open loops

    async def _stream(self, source: Stream) -> None:
        """Prompts are made beforehand: making one while it is due would make it late."""
        requests = [self._request(arrival.prompt_tokens, arrival.output_tokens) for arrival in source.arrivals]
        tasks: list[asyncio.Task[None]] = []
        for arrival, request in zip(source.arrivals, requests, strict=True):
            scheduled_s = self.begin_s + arrival.at_s
            await asyncio.sleep(max(0.0, scheduled_s - time.perf_counter()))
            leaves_after_s = self._rng.uniform(0.0, source.leave_within_s) if self._rng.random() < source.leaves else None
            tasks.append(asyncio.create_task(self._one(source.tenant, request, scheduled_s, leaves_after_s)))
        if tasks:
            await asyncio.wait(tasks, timeout=self._case.drain_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, tenant: str, request: Request, scheduled_s: float, leaves_after_s: float | None) -> None:
        endpoint, pool = self._endpoints[tenant], self._idle.setdefault(tenant, [])
        connection = pool.pop() if pool else Connection(endpoint)
        outcome = Outcome(scheduled_s, sent_s=time.perf_counter(), error="it had not ended when the case did")
        left = False
        try:
            async with asyncio.timeout(leaves_after_s):
                outcome = await send(connection, endpoint, request, scheduled_s)
            pool.append(connection)
        except TimeoutError:
            left = True
        finally:
            if left or outcome.error:
                connection.close()
            self.sent.append(Sent(tenant, outcome, left))

    # ---- closed loops

    def _start(self, source: Flight) -> list[asyncio.Task[None]]:
        work = self._slow_worker if source.read_bytes_per_s else self._worker
        self._sizes[source.tenant] = itertools.cycle(source.sizes)
        return [asyncio.create_task(work(source)) for _ in range(source.in_flight)]

    async def _worker(self, source: Flight) -> None:
        endpoint = self._endpoints[source.tenant]
        async with Connection(endpoint) as connection:
            while not self._has_ended:
                outcome = await send(connection, endpoint, self._request(*next(self._sizes[source.tenant])), time.perf_counter())
                self.sent.append(Sent(source.tenant, outcome, is_open=False))
                if outcome.error:
                    await asyncio.sleep(RETRY_S)

    async def _slow_worker(self, source: Flight) -> None:
        """Reads a stream a few bytes at a time, and begins a new one where the server ends it."""
        while not self._has_ended:
            request = self._request(*next(self._sizes[source.tenant]))
            started_s = time.perf_counter()
            ended = await read_slowly(self._endpoints[source.tenant], request, source.read_bytes_per_s)
            error = "" if ended else "the server ended the stream"
            self.sent.append(Sent(source.tenant, Outcome(started_s, started_s, ended_s=time.perf_counter(), error=error), is_open=False))
            await asyncio.sleep(RETRY_S)


async def read_slowly(endpoint: Endpoint, request: Request, bytes_per_s: int) -> bool:
    """Whether the stream came to its own end: false where the server refused it or broke it off."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    first, last = b"", b""
    with contextlib.closing(raw):
        try:
            await loop.sock_connect(raw, endpoint.address)
            await loop.sock_sendall(raw, Connection(endpoint).raw_request(request.body(endpoint.model)))
            while part := await loop.sock_recv(raw, SLOW_READ_BYTES):
                first, last = first or part, (last + part)[-64:]
                if b"[DONE]" in last or not first.startswith(STATUS_OK):
                    return first.startswith(STATUS_OK)
                await asyncio.sleep(SLOW_READ_BYTES / bytes_per_s)
        except OSError:
            return False
    return False
