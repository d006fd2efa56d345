"""Framing of `engine.wire`: a 4-byte little-endian length, then a msgpack body. Shared by both ends."""

import struct

import msgspec

from engine.errors import EngineGone
from engine.wire import MAX_FRAME_BYTES

LENGTH = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """One message as bytes on the wire.

    Raises:
        ValueError: the message is longer than `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


class FrameReader[Message]:
    """Turns chunks of a byte stream into messages. Keeps an incomplete frame until the rest of it arrives."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Messages that `data` completes, in order.

        Raises:
            EngineGone: the peer sent something that is no frame; the stream can not be read on.
        """
        buffer = self._buffer
        buffer += data
        messages: list[Message] = []
        start = 0
        while len(buffer) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer, start)
            if size > MAX_FRAME_BYTES:
                raise EngineGone(
                    f"the peer announced a frame of {size} bytes, over the limit of {MAX_FRAME_BYTES}: the connection is closed"
                )
            end = start + LENGTH.size + size
            if len(buffer) < end:
                break
            try:
                messages.append(self._decoder.decode(memoryview(buffer)[start + LENGTH.size : end]))
            except msgspec.DecodeError as error:
                raise EngineGone(f"the peer sent a frame that can not be read ({error}): both sides must be of the same version") from error
            start = end
        del buffer[:start]
        return messages
