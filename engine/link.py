"""The engine's end of its connection: a blocking socket, read between steps and never by another thread."""

import select
import socket

import msgspec

from engine.errors import EngineGone
from engine.frames import FrameReader, encode_frame
from engine.wire import ToEngine

READ_BYTES = 1 << 18


class Link:
    """Frames to and from the control plane. One thread at a time may send, one may receive."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._frames = FrameReader(msgspec.msgpack.Decoder(ToEngine))

    def send(self, message: msgspec.Struct) -> None:
        """Write one frame; waits while the peer's buffer is full.

        Raises:
            EngineGone: the control plane closed the connection.
        """
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as error:
            raise EngineGone(f"the control plane closed the connection: {error}") from error

    def receive(self, timeout_s: float) -> list[ToEngine]:
        """What has arrived; waits for the first bytes at most `timeout_s` (0: not at all).

        Raises:
            EngineGone: the control plane closed the connection.
        """
        messages: list[ToEngine] = []
        while select.select([self._socket], [], [], 0.0 if messages else timeout_s)[0]:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError as error:
                raise EngineGone(f"the control plane closed the connection: {error}") from error
            if not data:
                raise EngineGone("the control plane closed the connection")
            messages += self._frames.feed(data)
            if len(data) < READ_BYTES:
                break
        return messages
