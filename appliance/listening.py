"""The listening socket and what each connection does beyond uvicorn: small buffers, and an end for readers that stall."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.domain.inference.exchange import STALLED_STATE

SEND_BUFFER_BYTES = 4_096
"""Kernel's send buffer of a connection (it doubles it): default ones hide megabytes of unread tokens."""
WRITE_HIGH_WATER_BYTES = 4_096
"""Bytes kept in the transport before a stream has to wait for its reader."""
BACKLOG = 2_048


class PortTaken(Exception):
    """The address can not be listened on; the message says what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket with small send buffers, which accepted connections inherit. Raises `PortTaken`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise PortTaken(f"host={host!r} is no address of this machine ({error.strerror}): use 127.0.0.1 or 0.0.0.0") from error
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        remedy = "stop what listens there, choose another port with --port, or 0 for any free one"
        raise PortTaken(f"can not listen on {host}:{port} ({error.strerror}): {remedy}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The address as a client on this machine writes it."""
    bound: tuple[str, int] = sock.getsockname()[:2]
    host, port = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound[0], bound[0]), bound[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connection_type(write_deadline_s: float) -> type[HttpToolsProtocol]:
    """The connections of a server whose readers may stall for so long."""

    class Connection(HttpToolsProtocol):
        """uvicorn's, which leaves no other way to reach the transport."""

        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(write_deadline_s, self._cut)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forgive()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forgive()
            super().connection_lost(exc)

        def _forgive(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _cut(self) -> None:
            """The request sees a disconnect, and by this mark its cause."""
            self.scope["state"][STALLED_STATE] = True  # pyright: ignore[reportTypedDictNotRequiredAccess]
            self.transport.abort()

    return Connection


def server_config(app: Any, write_deadline_s: float) -> uvicorn.Config:
    """uvicorn with httptools and nothing that we do ourselves: no lifespan, no access log, no logging set-up."""
    return uvicorn.Config(
        app,
        http=connection_type(write_deadline_s),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=3,
    )
