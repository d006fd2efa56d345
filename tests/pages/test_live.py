"""The hub behind open pages: one rendering a turn for all, only what changed, an end with the session."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from appliance.errors import Unavailable
from appliance.telemetry.hub import Telemetry
from appliance.ui.live import CHECK_TURNS, MAX_VIEWERS, LiveHub
from appliance.ui.pulse import Pulse


class Board:
    """A page whose pieces a test changes, and how often it was rendered."""

    def __init__(self) -> None:
        self.pieces = {"a": "1", "b": "1"}
        self.renderings = 0

    def __call__(self) -> Mapping[str, str]:
        self.renderings += 1
        return dict(self.pieces)


def hub() -> LiveHub:
    return LiveHub(Pulse(Telemetry(CollectorRegistry())))


async def always() -> bool:
    return True


def html_of(frame: bytes) -> dict[str, str]:
    return msgspec.json.decode(frame.partition(b"data: ")[2])["html"]


async def next_of(frames: AsyncIterator[bytes], turn: Callable[[], Awaitable[None]]) -> bytes:
    """The frame that follows a turn."""
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    await turn()
    return await waiting


async def test_viewers_of_a_page_share_one_rendering_a_turn() -> None:
    live, board = hub(), Board()
    viewers = [live.stream("page", board, always) for _ in range(5)]
    for viewer in viewers:
        assert html_of(await anext(viewer)) == {"a": "1", "b": "1"}
    assert (board.renderings, live.num_viewers) == (1, 5)
    await live.turn()
    assert board.renderings == 2


async def test_a_viewer_gets_what_changed_since_its_last_message_however_long_it_slept() -> None:
    live, board = hub(), Board()
    frames = live.stream("page", board, always)
    await anext(frames)
    board.pieces["a"] = "2"
    await live.turn()
    board.pieces["b"] = "3"
    assert html_of(await next_of(frames, live.turn)) == {"a": "2", "b": "3"}


async def test_a_stream_ends_with_its_session_and_with_the_server() -> None:
    live, board, sessions = hub(), Board(), [True]

    async def is_still_in() -> bool:
        return sessions[0]

    frames = live.stream("page", board, is_still_in)
    await anext(frames)
    sessions[0] = False
    waiting = asyncio.ensure_future(anext(frames))
    for _ in range(CHECK_TURNS):
        await asyncio.sleep(0)
        await live.turn()
    assert await waiting == b"event: ended\ndata: {}\n\n"
    with pytest.raises(StopAsyncIteration):
        await anext(frames)
    assert live.num_viewers == 0
    other = live.stream("page", board, always)
    await anext(other)
    waiting = asyncio.ensure_future(anext(other))
    await asyncio.sleep(0)
    live.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_viewers_let_in_at_once_are_no_more_than_the_most_when_they_begin() -> None:
    live, board = LiveHub(Pulse(Telemetry(CollectorRegistry())), max_viewers=2), Board()
    viewers = [live.stream("page", board, always) for _ in range(4)]
    first = [await anext(viewer) for viewer in viewers]
    assert [b"html" in frame for frame in first] == [True, True, False, False] and first[2] == b"retry: 10000\n\n"
    assert live.num_viewers == 2
    with pytest.raises(StopAsyncIteration):
        await anext(viewers[2])


async def test_a_page_that_can_not_be_rendered_leaves_the_others_alone() -> None:
    live, board, broken = hub(), Board(), Board()
    frames, others = live.stream("broken", broken, always), live.stream("page", board, always)
    await anext(frames)
    await anext(others)
    broken.pieces = None  # pyright: ignore[reportAttributeAccessIssue]
    board.pieces["a"] = "2"
    assert html_of(await next_of(others, live.turn)) == {"a": "2"}


async def test_too_many_viewers_are_refused_before_an_answer_begins() -> None:
    live, board = hub(), Board()
    viewers = [live.stream("page", board, always) for _ in range(MAX_VIEWERS)]
    for viewer in viewers:
        await anext(viewer)
    with pytest.raises(Unavailable, match="too many pages are open"):
        live.stream("page", board, always)
