"""What each connection does beyond uvicorn: an end for readers that stall and for heads that never end, and no upgrades."""

import asyncio
import contextlib
import struct
import termios
from fcntl import ioctl
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from appliance.domain.inference.backpressure import READER_STATE
from appliance.domain.inference.exchange import STALLED_STATE

WRITE_HIGH_WATER_BYTES = 4_096
"""Bytes kept in the transport before a stream has to wait for its reader."""
MAX_HEAD_BYTES = 65_536
"""Request line and headers. Nothing of them is authenticated yet, so nobody may fill the memory with them."""
HEAD_DEADLINE_S = 75.0
"""What a head may take from the connection's beginning, or from its own first byte."""
MAX_PIPELINED = 8
"""Requests behind the one that is answered; beyond them the connection is not read, and its end is not seen."""

SIOCOUTQ = termios.TIOCOUTQ
"""tcp(7): bytes that the peer has not acknowledged. Linux gives both the same number."""

_INT = struct.Struct("i")
_BAD_REQUEST = b"HTTP/1.1 400 Bad Request"
_HEAD_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large"


def connection_type(write_deadline_s: float) -> type[HttpToolsProtocol]:
    """The connections of a server whose readers may stall for so long."""

    class Connection(HttpToolsProtocol):
        """uvicorn's, which leaves no other way to reach parser and transport."""

        _stalled: asyncio.TimerHandle | None = None
        _head_due: asyncio.TimerHandle | None = None
        _is_in_head = True
        _head_bytes = 0
        """Of the head that is arriving, where it takes more than one piece."""
        _answered: RequestResponseCycle | None = None
        """The request whose turn it is: uvicorn remembers the newest one."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
            self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forgive()
            self._forget_head()
            if self._answered is not None and not self._answered.response_complete:
                self._answered.disconnected = True
                self._answered.message_event.set()
            super().connection_lost(exc)

        # ---- a request arrives

        def data_received(self, data: bytes) -> None:
            self._head_bytes += len(data)  # a head's end sets it to 0
            self._feed(data)
            if not self._is_in_head:
                self._head_bytes = 0
            elif self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LONG, f"request line and headers have more than {MAX_HEAD_BYTES} bytes")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_head()

        def on_headers_complete(self) -> None:
            self._is_in_head, self._head_bytes = False, 0
            self._forget_head()
            if self._is_offered_upgrade():
                return  # the parser stops here, and `_feed` goes on without the offer
            super().on_headers_complete()
            self.scope["state"][READER_STATE] = self  # pyright: ignore[reportTypedDictNotRequiredAccess]
            if len(self.pipeline) <= MAX_PIPELINED:
                self.flow.resume_reading()

        def on_message_complete(self) -> None:
            if not self._is_offered_upgrade():
                self._is_in_head, self._head_bytes = True, 0
                super().on_message_complete()

        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            self._answered = cycle
            super()._start_asgi_task(cycle, app)

        def _feed(self, data: bytes) -> None:
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._decline_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self._refuse(_BAD_REQUEST, "this is no valid HTTP/1.1 request")

        def _is_offered_upgrade(self) -> bool:
            return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

        def _decline_upgrade(self, rest: bytes) -> None:
            """Go on with HTTP/1.1 (RFC 9110, section 7.8): Java's client offers HTTP/2 with each first request.

            The parser has stopped for good; a new one reads the same head without the offer, and the body.
            """
            head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
            head += [part for name, value in self.headers if name != b"upgrade" for part in (name, b": ", value, b"\r\n")]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one
            self._feed(b"".join((*head, b"\r\n", rest)))

        def _refuse(self, status_line: bytes, message: str) -> None:
            """Answer what never became a request, and hang up."""
            body = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":null}}' % message.encode()
            head = b"%s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status_line, len(body))
            self.transport.write(head + body)
            self.transport.close()

        def _await_head(self) -> None:
            self._forget_head()
            self._head_due = self.loop.call_later(HEAD_DEADLINE_S, self.transport.close)

        def _forget_head(self) -> None:
            if self._head_due is not None:
                self._head_due.cancel()
                self._head_due = None

        # ---- an answer leaves (`backpressure.Reader`)

        def unacknowledged_bytes(self) -> int:
            waiting = self.transport.get_write_buffer_size()
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError, ValueError):  # it was closed this very moment; a closed socket is -1
                    waiting += _INT.unpack(ioctl(sock.fileno(), SIOCOUTQ, bytes(_INT.size)))[0]
            return waiting

        def cut(self) -> None:
            """The request sees a disconnect, and by this mark its cause."""
            if self._answered is not None:
                self._answered.scope["state"][STALLED_STATE] = True  # pyright: ignore[reportTypedDictNotRequiredAccess]
            self.transport.abort()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(write_deadline_s, self.cut)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forgive()

        def _forgive(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

    return Connection
