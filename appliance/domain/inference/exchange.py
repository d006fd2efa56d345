"""Answers an admitted request over ASGI, streamed or whole, and stops the work when the client goes away."""

import asyncio

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from appliance.domain.inference.backpressure import READER_STATE, Patience, Reader
from appliance.domain.inference.facts import Cancellation
from appliance.domain.inference.formats import Format, error_event, timing_of, usage_of
from appliance.domain.inference.job import Job
from appliance.errors import ApplianceError
from appliance.problems import problem_of
from appliance.telemetry.split import server_timing

STALLED_STATE = "stalled"
"""Key of the ASGI scope's `state`: the connection was cut because the client took nothing for too long."""

TIMING_HEADER = b"x-fairlane-timing"
"""Where the time of a whole answer went; a stream says so in its usage block."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Exchange(ASGIResponse):
    """The response of a generating route. Headers go out with the first output, so until then an error keeps its status."""

    def __init__(self, job: Job, format: Format, patience: Patience) -> None:
        super().__init__()
        self._job = job
        self._format = format
        self._patience = patience
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises `ApplianceError` where the request failed before the first byte."""
        reader: Reader | None = scope["state"].get(READER_STATE)
        if reader is not None and self._job.facts.streamed and self._patience.max_unacknowledged_tokens:
            self._job.keep_pace_with(reader, self._patience)
        watch = asyncio.create_task(self._watch(scope, receive))
        try:
            with self._job.running():
                await (self._stream(send) if self._job.facts.streamed else self._answer(send))
        except Cancellation:
            return  # nobody listens
        except ApplianceError as error:
            if not self._has_begun:
                raise
            await _send_body(send, error_event(problem_of(error).body), more=False)
        finally:
            watch.cancel()

    async def _stream(self, send: Send) -> None:
        job, write = self._job, self._format.event
        while gained := await job.gained():
            chunk = b"".join([write(choice, delta) for choice, delta in gained])
            if not self._has_begun:
                self._has_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                await self._write(send, chunk, more=True)
                job.note_sent()
            else:
                await self._write(send, chunk, more=True)
        usage = usage_of(job.choices, job.facts.outputs_per_prompt, timing_of(job.split))
        await self._write(send, self._format.closing(usage), more=False)

    async def _answer(self, send: Send) -> None:
        outputs = await self._job.finished()
        body = self._format.body(outputs, usage_of(self._job.choices, self._job.facts.outputs_per_prompt))
        self._has_begun = True
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (TIMING_HEADER, server_timing(self._job.split).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(send, body, more=False)

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        """Returns when the transport has taken it: a client that reads slowly makes this long."""
        began_ns = self._job.now_ns
        await _send_body(send, body, more=more)
        self._job.note_written(began_ns, len(body))

    async def _watch(self, scope: Scope, receive: Receive) -> None:
        """Wait for the client to go away. After the answer's end the server says so too, when nobody minds."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._job.interrupt(Cancellation("slow_reader" if scope["state"].get(STALLED_STATE) else "disconnect"))


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
