"""A small HTTP/1.1 client for streamed completions. It must not be the bottleneck: raw streams, one read per packet, no parsing
of chunks that only time matters for. Measured by the harness itself, which reports its own CPU share."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class BadResponse(Exception):
    """The server answered something else than a stream; the text has status and body."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server."""

    base_url: str
    model: str
    api_key: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.base_url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def path(self) -> str:
        """Path of the completions route."""
        return urlsplit(self.base_url).path.rstrip("/").removesuffix("/v1") + "/v1/completions"


class Connection:
    """One keep-alive connection; one request at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next request makes a new one."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def events(self, body: dict[str, object]) -> AsyncIterator[bytes]:
        """The data of each server-sent event of a completion, without `data: ` and without the final `[DONE]`.

        Raises:
            BadResponse: any status but 200, or the stream ended early. The connection is closed then.
        """
        finished, headers = False, b""
        try:
            reader, headers = await self._request(self.raw_request(body))
            if not headers.startswith(b"HTTP/1.1 200"):
                raise BadResponse(f"{headers.split(b'\r\n')[0].decode()}: {(await _read_some(reader)).decode(errors='replace')}")
            pending = b""
            async for part in _chunks(reader, chunked=b"chunked" in headers.lower()):
                pending += part.replace(b"\r\n", b"\n")
                *whole, pending = pending.split(b"\n\n")
                for event in whole:
                    data = event[event.find(b"data:") + 5 :].strip() if b"data:" in event else b""
                    if b"event: error" in event or data.startswith(b'{"error"'):
                        raise BadResponse(event.decode(errors="replace"))
                    finished = finished or data == b"[DONE]"
                    if data and not finished:
                        yield data
            if not finished:
                raise BadResponse("the stream ended without [DONE]")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise BadResponse(f"the connection broke: {error!r}") from error
        finally:
            if not finished or b"connection: close" in headers.lower():
                self.close()

    def raw_request(self, body: dict[str, object]) -> bytes:
        """What goes over the wire for a completion."""
        content = json.dumps(body).encode()
        return self._head(len(content)) + content

    def _head(self, content_bytes: int) -> bytes:
        host, port = self._endpoint.address
        lines = [f"POST {self._endpoint.path} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {self._endpoint.api_key}"] * bool(self._endpoint.api_key)
        return "\r\n".join([*lines, f"Content-Length: {content_bytes}", "", ""]).encode()

    async def _request(self, request: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Send, and wait for the answer's head. A server may end an idle connection at any moment: then once more, on a new one."""
        is_new = self._reader is None
        reader, writer = await self._open()
        try:
            writer.write(request)
            return reader, await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            if is_new or (isinstance(error, asyncio.IncompleteReadError) and error.partial):
                raise
            self.close()
            return await self._request(request)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self.close()
            try:
                self._reader, self._writer = await asyncio.open_connection(*self._endpoint.address)
            except OSError as error:
                raise BadResponse(f"no connection to {self._endpoint.base_url}: {error}") from error
        return self._reader, self._writer


async def _read_some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(2000), 1.0)
    except TimeoutError:
        return b""


async def _chunks(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """Body parts as they come: of chunked transfer coding, else until the connection closes."""
    if not chunked:
        while part := await reader.read(65536):
            yield part
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readuntil(b"\r\n")
