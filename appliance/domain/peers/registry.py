"""This process among those that serve from one database: beats once a second, and knows its share of every limit."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from appliance.db.database import Database
from appliance.domain.peers.decisions import WHOLE, Member, Share, decide_share
from appliance.domain.peers.service import beat, join, leave
from appliance.domain.tenants.spent import Spent, read_all_spent
from appliance.errors import Unavailable

log = structlog.get_logger(__name__)

BEAT_EVERY_S = 1.0
EXPIRY_BEATS = 6
"""A member whose beats stand still over so many of ours is dead, and its share goes to the others. Our beats are counted, not
seconds: where this process was paused, it has not looked, and must not take the others for dead."""
SPENT_EVERY_BEATS = 3


@dataclass(slots=True)
class _Seen:
    beats: int
    silent_looks: int = 0


class Peers:
    """Holds the share that requests are judged by; while the database is lost, the last one."""

    def __init__(self, database: Database, note_spent: Callable[[Spent, Spent], None]) -> None:
        """`note_spent` takes what all processes have used of a day and a month, by tenant and by a key's meter."""
        self._database = database
        self._note_spent = note_spent
        self._id = uuid.uuid4().hex
        self._seen: dict[str, _Seen] = {}
        self._divided_by: list[str] = []
        self._knows = 0
        self._num_beats = 0
        self.share: Share = WHOLE

    async def join(self) -> None:
        """Become a member and look who is there, before any request is let in. Raises `Unavailable`."""
        async with self._database.write() as session:
            await join(session, self._id)
        await self.beat()

    async def beat(self) -> None:
        """One sign of life, and the share that follows from the others'. Raises `Unavailable`."""
        async with self._database.write() as session:
            members = await beat(session, self._id, self._knows, self._dead())
        self._look(members)
        self._num_beats += 1
        if self.share.processes > 1 and self._num_beats % SPENT_EVERY_BEATS == 0:
            now = datetime.now(UTC)
            async with self._database.read() as session:
                self._note_spent(*await read_all_spent(session, now))

    async def run(self) -> None:
        """Beat for ever; run it as a task, cancel it at shutdown and then `leave`."""
        while True:
            await asyncio.sleep(BEAT_EVERY_S)
            try:
                await self.beat()
            except Unavailable:
                continue  # the directory says so
            except Exception as error:
                log.error("beat_failed", error=str(error), exc_info=error)

    async def leave(self) -> None:
        """Give the share back; where the database is lost, it expires."""
        with contextlib.suppress(Unavailable):
            async with self._database.write() as session:
                await leave(session, self._id)

    def _look(self, members: Collection[Member]) -> None:
        before = self._seen
        self._seen = {member.id: _Seen(member.beats) for member in members}
        for name, seen in self._seen.items():
            if name in before and before[name].beats == seen.beats:
                seen.silent_looks = before[name].silent_looks + 1
        share = decide_share(self._id, members, self._divided_by)
        self._divided_by = [member.id for member in sorted(members, key=lambda member: member.joined)]
        self._knows = max(member.joined for member in members)
        if share != self.share:
            log.info("limits_divided", processes=share.processes, rank=share.rank, waits=share.is_waiting)
        self.share = share

    def _dead(self) -> list[str]:
        """Members but ourselves that have shown no life for too long."""
        return [name for name, seen in self._seen.items() if name != self._id and seen.silent_looks >= EXPIRY_BEATS]
