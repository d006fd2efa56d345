"""What the control plane's latency is compared with: the same uvicorn, socket and engine connection, and nothing between them.

    python -m benchmarks.bare_server PORT EXPORT_DIR

Whatever is posted, it submits a prompt of a fixed length to a fake engine and answers when that is done: no routes, no JSON, no text,
no key, no limits, no admission, no metrics, no log.
"""

import argparse
import asyncio
import itertools
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
import uvloop

from appliance.listening import listen, server_config
from engine.client import EngineClient, Listener
from engine.wire import EngineConfig, Sampling, SequenceEvent, Submit
from tests.inference.serve_fake import ENGINE

PROMPT_TOKENS = 70
OUTPUT_TOKENS = 4
ANSWER = b'{"id":"bare","object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"length"}]}'.ljust(320)
"""About as long as a real one."""
WRITE_DEADLINE_S = 30.0


class Bare:
    """An ASGI application; GET answers at once, anything else goes to the engine and back."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._numbers = itertools.count(1)

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        if scope["method"] != "GET":
            while (await receive()).get("more_body"):
                pass
            await self._generate()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    async def _generate(self) -> None:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def sink(event: SequenceEvent) -> None:
            if event.finish is not None and not ended.done():
                ended.set_result(None)

        prompt = tuple(range(100, 100 + PROMPT_TOKENS))
        sampling = Sampling(max_tokens=OUTPUT_TOKENS, seed=1, ignore_eos=True)
        number, now_ns = next(self._numbers), time.monotonic_ns()
        self._client.submit(Submit(self._client.next_sequence_id(), f"req_{number}", "bare", "fast", "", prompt, sampling, now_ns), sink)
        await ended


async def serve(port: int, export_dir: str) -> None:
    """Until SIGTERM; the engine ends with its connection."""
    ready = asyncio.Event()
    client = EngineClient(
        Listener(
            on_progress=lambda _: None,
            on_prepared=lambda _: None,
            on_ready=lambda _: ready.set(),
            on_step=lambda _: None,
            on_heartbeat=lambda _: None,
            on_fatal=lambda _: None,
            on_lost=lambda _: None,
        )
    )
    ours, theirs = socket.socketpair()
    config = msgspec.json.encode(EngineConfig(export_dir=export_dir)).decode()
    with theirs:
        command = [*ENGINE, "--fd", str(theirs.fileno()), "--config-json", config]
        engine = await asyncio.create_subprocess_exec(*command, pass_fds=[theirs.fileno()])
    await asyncio.get_running_loop().create_connection(lambda: client, sock=ours)
    await ready.wait()
    await uvicorn.Server(server_config(Bare(client), WRITE_DEADLINE_S)).serve([listen("127.0.0.1", port)])
    client.close()
    await engine.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bare_server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("port", type=int)
    parser.add_argument("export_dir", help="folder for what the control plane reads of the model")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, arguments.export_dir))


if __name__ == "__main__":
    main()
