"""Frames survive any way the stream is cut, and a broken peer is noticed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineGone
from engine.frames import LENGTH, FrameReader, encode_frame
from engine.wire import MAX_FRAME_BYTES, Abort, Sampling, Submit, ToEngine


def reader() -> FrameReader[ToEngine]:
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))


def submit(sequence_id: int) -> Submit:
    return Submit(sequence_id, "req_1", "default", "fast", "tenant:default", (1, 2, 3), Sampling(logit_bias={5: -1.0}), received_ns=7)


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(0, 5))
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(cuts: list[int], count: int) -> None:
    sent = [submit(n) if n % 2 else Abort((n,)) for n in range(count)]
    stream = b"".join(encode_frame(message) for message in sent)
    frames, received = reader(), []
    for cut in [*cuts, len(stream)]:
        received += frames.feed(stream[:cut])
        stream = stream[cut:]
    assert received == sent


def test_a_frame_over_the_limit_closes_the_connection() -> None:
    with pytest.raises(EngineGone, match="over the limit"):
        reader().feed(LENGTH.pack(MAX_FRAME_BYTES + 1))


def test_bytes_that_are_no_message_close_the_connection() -> None:
    with pytest.raises(EngineGone, match="same version"):
        reader().feed(LENGTH.pack(3) + b"\x01\x02\x03")
