"""Whole answers over kept connections, in an open loop: what small requests are timed with, refused ones too.

`sse_client` reads streams and drops the connection of a refused request; here a refusal is an answer like any other.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.scenarios import quantile

SPIN_S = 0.001
"""Timers of an event loop are this coarse; the rest is waited for by looking at the clock."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one request. Times are `time.perf_counter` seconds; status 0 is a connection that broke."""

    scheduled_s: float
    sent_s: float
    ended_s: float
    status: int
    retry_after_s: float | None
    body: bytes

    @property
    def latency_s(self) -> float:
        """From the scheduled send to the last byte."""
        return self.ended_s - self.scheduled_s


@dataclass(frozen=True, slots=True)
class Times:
    """Of many answers, in milliseconds."""

    number: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    lag_p99_ms: float
    """How late they were sent."""

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> "Times":
        latencies, lags = [a.latency_s for a in answers], [a.sent_s - a.scheduled_s for a in answers]
        p50_s, p99_s = quantile(latencies, 0.5), quantile(latencies, 0.99)
        return cls(len(answers), 1e3 * p50_s, 1e3 * p99_s, 1e3 * max(latencies), 1e3 * quantile(lags, 0.99))


def request_of(method: str, path: str, key: str = "", content: bytes = b"") -> bytes:
    """What goes over the wire; a body is JSON."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    lines += [f"Authorization: Bearer {key}"] * bool(key)
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"] * bool(content)
    return "\r\n".join([*lines, "", ""]).encode() + content


class Client:
    """Any number of requests at a time to one server, each on a connection that was left idle or on a new one."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, request: bytes, scheduled_s: float | None = None) -> Answer:
        """Send and read the whole answer. A connection that breaks is an answer with status 0; raises `OSError` where none can be made."""
        sent_s = time.perf_counter()
        scheduled_s = sent_s if scheduled_s is None else scheduled_s
        reader, writer = self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        try:
            writer.write(request)
            status, retry_after_s, body = await _read(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            return Answer(scheduled_s, sent_s, time.perf_counter(), 0, None, repr(error).encode())
        self._idle.append((reader, writer))
        return Answer(scheduled_s, sent_s, time.perf_counter(), status, retry_after_s, body)

    async def paced(self, requests: Sequence[bytes], interval_s: float) -> list[Answer]:
        """One every `interval_s`, whether or not the one before has been answered."""
        started_s = time.perf_counter()
        tasks: list[asyncio.Task[Answer]] = []
        for number, request in enumerate(requests):
            scheduled_s = started_s + number * interval_s
            await _until(scheduled_s)
            tasks.append(asyncio.create_task(self.ask(request, scheduled_s)))
        return await asyncio.gather(*tasks)

    def close(self) -> None:
        """End all idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _until(moment_s: float) -> None:
    if (early_s := moment_s - time.perf_counter() - SPIN_S) > 0:
        await asyncio.sleep(early_s)
    while time.perf_counter() < moment_s:  # noqa: ASYNC110 (the clock is what is waited for)
        await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> tuple[int, float | None, bytes]:
    """Status, Retry-After and body of one answer, of a known length or in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    retry_after_s = float(headers["retry-after"]) if "retry-after" in headers else None
    body = b""
    if "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(status_line.split()[1]), retry_after_s, body
