"""What changes on open pages, pushed to them: rendered once a second and page, however many look at it.

A page's live parts are pieces of HTML by the id of the element that shows them. A viewer gets those that changed since its last
message, so one that reads slowly skips what is outdated instead of falling behind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from appliance.errors import Unavailable
from appliance.ui.pulse import Pulse

log = structlog.get_logger(__name__)

EVERY_S = 1.0
MAX_VIEWERS = 200
CHECK_TURNS = 10
"""A stream looks so often (in turns) whether its session goes on, and says something even if nothing changed."""

type Snapshot = Callable[[], Mapping[str, str]]
"""A page's pieces of HTML now, by element id."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a browser gets."""

    html: dict[str, str] = {}
    points: list[tuple[float | None, ...]] = []
    """New points of the pulse, where the page has charts."""


@dataclass(slots=True)
class _Channel:
    """One page that is looked at."""

    snapshot: Snapshot
    viewers: int = 0
    pieces: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Turn of the last change, and the HTML, by element id."""

    def turn(self, number: int) -> None:
        for element_id, html in self.snapshot().items():
            known = self.pieces.get(element_id)
            if known is None or known[1] != html:
                self.pieces[element_id] = (number, html)

    def since(self, number: int) -> dict[str, str]:
        return {element_id: html for element_id, (changed, html) in self.pieces.items() if changed > number}


class LiveHub:
    """All open pages."""

    def __init__(self, pulse: Pulse, max_viewers: int = MAX_VIEWERS) -> None:
        self._pulse = pulse
        self._max_viewers = max_viewers
        self._channels: dict[str, _Channel] = {}
        self._turn = 0
        self._turned = asyncio.Event()
        self._is_closed = False

    @property
    def num_viewers(self) -> int:
        return sum(channel.viewers for channel in self._channels.values())

    def stream(
        self, key: str, snapshot: Snapshot, is_still_in: Callable[[], Awaitable[bool]], *, with_points: bool = False
    ) -> AsyncIterator[bytes]:
        """Frames for one viewer of the page `key`, until its session or the server ends. Viewers of one key share a snapshot.

        Raises `Unavailable` where too many look.
        """
        if self.num_viewers >= self._max_viewers:
            raise Unavailable("too many pages are open: close some", reason="too_many_viewers", retry_after_s=10.0)
        return self._frames(key, snapshot, is_still_in, with_points)

    async def _frames(
        self, key: str, snapshot: Snapshot, is_still_in: Callable[[], Awaitable[bool]], with_points: bool
    ) -> AsyncIterator[bytes]:
        if self.num_viewers >= self._max_viewers:  # others have begun since this one was let in: the browser asks again
            yield b"retry: 10000\n\n"
            return
        channel = self._channels.setdefault(key, _Channel(snapshot))
        channel.viewers += 1
        try:
            if channel.viewers == 1:
                channel.turn(self._turn)
            seen, point, turns = -1, 0, 0
            while not self._is_closed:
                points = self._pulse.since(point) if with_points else []
                html, seen = channel.since(seen), self._turn
                if html or points:
                    point = points[-1].number if points else point
                    yield _frame("update", Message(html, [each.row() for each in points]))
                turns += 1
                if turns % CHECK_TURNS == 0:
                    if not await is_still_in():
                        yield b"event: ended\ndata: {}\n\n"
                        return
                    yield b": still here\n\n"
                await self._turned.wait()
        finally:
            channel.viewers -= 1
            if not channel.viewers and self._channels.get(key) is channel:
                del self._channels[key]

    async def turn(self) -> None:
        """Render every page that is looked at, and wake its viewers. Between two pages whoever else waits has the event loop."""
        self._turn += 1
        for key, channel in tuple(self._channels.items()):
            await asyncio.sleep(0)
            try:
                channel.turn(self._turn)
            except Exception as error:  # one page's defect must not stop the others
                log.error("live_page_failed", page=key, exc_info=error)
        self._wake()

    async def run(self) -> None:
        """Turn for ever; run it as a task."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.turn()

    def close(self) -> None:
        """End all streams: the server shuts down."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()


def _frame(event: str, message: Message) -> bytes:
    return b"event: " + event.encode() + b"\ndata: " + msgspec.json.encode(message) + b"\n\n"
