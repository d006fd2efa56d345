"""Where a request stands until its body is read. A tenant pays for refusals and long bodies with its own time, and nobody else does."""

import asyncio
import math
import time
from asyncio import Future, TimerHandle, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from appliance.domain.inference.body_room import BodyRoom
from appliance.domain.inference.call import ReadBody, Stamps
from appliance.domain.inference.pace import LONGEST_WAIT_S, Turns
from appliance.errors import ApplianceError, Forbidden, OverOwnLimit

NOBODY = ""
"""All callers without a valid key are one tenant here."""
LOOK_EVERY_S = 1.0
"""Who waits sees within this time that the server shuts down."""
TURNED_AWAY = "refused_often"
"""Reason of a refusal, and the metric's label."""


@dataclass(slots=True)
class _Line:
    """One tenant's."""

    turns: Turns
    waiting: deque[Future[None]] = field(default_factory=deque[Future[None]])
    """Each is done when its turn has been taken for it."""
    timer: TimerHandle | None = None


class Doorstep:
    """Used by the event loop only."""

    def __init__(
        self,
        refusals_per_s: float,
        max_body_bytes: int,
        require_open: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`refusals_per_s`: of a tenant, answered at once; 0: all are. `require_open` raises where nobody may come in any more."""
        self._refusals_per_s = refusals_per_s
        self._room = BodyRoom(max_body_bytes)
        self._require_open = require_open
        self._clock_ns = clock_ns
        self._lines: dict[str, _Line] = {}

    async def spend_turn(self, tenant_id: str, stamps: Stamps | None = None) -> None:
        """For a request that no admission bounds, or that is refused already. Raises as `let_in`."""
        if self._refusals_per_s:
            await self._take_turn(tenant_id, stamps or Stamps())
            self._owe(tenant_id, 0)

    @asynccontextmanager
    async def check(self, stamps: Stamps | None = None) -> AsyncIterator[None]:
        """Around finding out who asks: whoever has no right to waits as refused ones do, before it is told so. Raises `Unavailable`."""
        try:
            yield
        except ApplianceError as error:
            with suppress(OverOwnLimit):
                await self.spend_turn(error.tenant_id if isinstance(error, Forbidden) else NOBODY, stamps)
            raise

    @asynccontextmanager
    async def let_in(
        self, tenant_id: str, declared_bytes: int | None, read_body: ReadBody, stamps: Stamps, *, is_bounded: bool = True
    ) -> AsyncIterator[bytes]:
        """The body of a request, in its turn and where there is room for it. The room is kept until the block ends.

        A block that ends without an error has admitted the request: its turn comes back. `is_bounded`: else no admission bounds it, and it
        costs turns whatever becomes of it.

        Raises:
            OverOwnLimit: it would have waited too long for its turn.
            Unavailable: the server shuts down meanwhile.
            TooLarge, UnsupportedMedia, Cancellation: as `read_body`.
        """
        if self._refusals_per_s:
            await self._take_turn(tenant_id, stamps)
        content = b""
        try:
            async with self._room_for(tenant_id, declared_bytes, stamps):
                content = await read_body()
                stamps.read_ns = self._clock_ns()
                yield content
        except BaseException:
            self._owe(tenant_id, len(content) or self._room.bytes_of(declared_bytes))
            raise
        if is_bounded:
            self._give_back(tenant_id)
        else:
            self._owe(tenant_id, len(content))

    # ---- turns

    async def _take_turn(self, tenant_id: str, stamps: Stamps) -> None:
        line = self._lines.get(tenant_id)
        if line is None:
            line = self._lines[tenant_id] = _Line(Turns(self._refusals_per_s, at_s=self._now_s))
        if not line.waiting and line.turns.take(self._now_s):
            return
        turn: Future[None] = get_running_loop().create_future()
        line.waiting.append(turn)
        self._call(line)
        try:
            while not turn.done():
                await self._hold(turn, self._now_s + LONGEST_WAIT_S, stamps)
                if not turn.done() and line.turns.paid_in_s(0, self._now_s):
                    raise self._turned_away(tenant_id, line.turns.paid_in_s(len(line.waiting), self._now_s))
        except BaseException:
            if turn.done():
                line.turns.give_back()
            else:
                line.waiting.remove(turn)
            self._call(line)
            raise

    def _call(self, line: _Line) -> None:
        """Let in who has a turn, and look again when debts are paid off."""
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None
        now_s = self._now_s  # one moment: with two, the turn could be paid off between them, and nobody would look again
        while line.waiting and line.turns.take(now_s):
            line.waiting.popleft().set_result(None)
        if line.waiting:
            line.timer = get_running_loop().call_later(line.turns.paid_in_s(line.turns.inside, now_s), self._call, line)

    def _give_back(self, tenant_id: str) -> None:
        line = self._lines.get(tenant_id)
        if line is not None:
            line.turns.give_back()
            self._call(line)

    def _owe(self, tenant_id: str, num_bytes: int) -> None:
        line = self._lines.get(tenant_id)
        if line is not None:
            line.turns.owe(num_bytes, self._now_s)
            self._call(line)

    def _turned_away(self, tenant_id: str, retry_after_s: float) -> OverOwnLimit:
        message = (
            f"tenant {tenant_id!r} has more requests refused than {self._refusals_per_s:g} a second, so this one was not read: heed"
            " Retry-After, send shorter requests, or fewer at once"
        )
        return OverOwnLimit(message, reason=TURNED_AWAY, retry_after_s=retry_after_s)

    # ---- room

    @asynccontextmanager
    async def _room_for(self, tenant_id: str, declared_bytes: int | None, stamps: Stamps) -> AsyncIterator[None]:
        num_bytes = self._room.bytes_of(declared_bytes)
        if not num_bytes:
            yield
            return
        room = self._room.ask(tenant_id, num_bytes)
        try:
            if not room.done():
                await self._hold(room, math.inf, stamps)
            yield
        finally:
            self._room.leave(tenant_id, num_bytes, room)

    async def _hold(self, let_in: Future[None], due_s: float, stamps: Stamps) -> None:
        """Until somebody says so, or that time."""
        began_ns = self._clock_ns()
        try:
            while not let_in.done() and (left_s := due_s - self._now_s) > 0:
                await asyncio.wait([let_in], timeout=min(left_s, LOOK_EVERY_S))
                self._require_open()
        finally:
            stamps.held_ns += self._clock_ns() - began_ns

    @property
    def _now_s(self) -> float:
        return self._clock_ns() / 1e9
