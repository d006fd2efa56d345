"""This process among those that serve from one database: beats once a second, and knows its share of every limit."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from appliance.db.database import Database
from appliance.domain.access.capacity import Capacity
from appliance.domain.peers.decisions import IDLE, NO_PLAN, WHOLE, Member, Plan, Share, Wants, share_in
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
    """Holds the plan that requests are judged by; while the database is lost, the last one."""

    def __init__(
        self,
        database: Database,
        note_spent: Callable[[Spent, Spent, datetime], None],
        wants: Callable[[Collection[str], float], Wants] = lambda _named, _now_s: {},
        capacity: Capacity | None = None,
    ) -> None:
        """`note_spent` takes what all processes have used of the day and month of a moment, by tenant and by a key's meter; `wants` says
        what this one is asked for, of tenants that it names itself and of those that others name, at a moment of the monotonic clock.
        `capacity` tells what this process can do, and is told what the others can."""
        self._database = database
        self._note_spent = note_spent
        self._wants = wants
        self._capacity = capacity or Capacity()
        self._id = uuid.uuid4().hex
        self._seen: dict[str, _Seen] = {}
        self._named_by_others: set[str] = set()
        self._num_beats = 0
        self._before = self._plan = NO_PLAN
        self._is_agreed = True
        """All others heed the plan: nobody is in our part any more."""
        self._is_member = False

    def share(self, tenant_id: str) -> Share:
        """This process's part of a tenant's limits."""
        if not self._is_member:
            return WHOLE  # nobody shares this database
        new = share_in(self._plan, self._id, tenant_id)
        return new if self._is_agreed else new.within(share_in(self._before, self._id, tenant_id))

    async def join(self) -> None:
        """Become a member and look who is there, before any request is let in. Raises `Unavailable`."""
        self._is_member = True
        async with self._database.write() as session:
            await join(session, self._id)
        await self.beat()

    async def beat(self) -> None:
        """One sign of life, and the plan that holds. Raises `Unavailable`."""
        wants = self._wants(self._named_by_others | self._plan.bounds.keys(), time.monotonic())
        async with self._database.write() as session:
            members, plan, was_removed = await beat(session, self._id, self._plan.number, wants, self._capacity.own_tpm, self._dead())
        if was_removed:  # others may have taken our part
            self._before = self._plan = NO_PLAN
        self._look(members, plan)
        self._num_beats += 1
        if len(members) > 1 and self._num_beats % SPENT_EVERY_BEATS == 0:
            now = datetime.now(UTC)
            async with self._database.read() as session:
                self._note_spent(*await read_all_spent(session, now), now)

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

    def _look(self, members: Collection[Member], plan: Plan) -> None:
        before = self._seen
        self._seen = {member.id: _Seen(member.beats) for member in members}
        for name, seen in self._seen.items():
            if name in before and before[name].beats == seen.beats:
                seen.silent_looks = before[name].silent_looks + 1
        others = [member for member in members if member.id != self._id]
        self._capacity.others_tpm = sum(member.capacity_tpm for member in others)
        self._named_by_others = {name for member in others for name, units in member.wants.items() if units >= IDLE}
        if plan.number != self._plan.number:
            if plan.members != self._plan.members:
                log.info("limits_divided", processes=len(plan.members), plan=plan.number)
            self._before, self._plan = self._plan, plan
        self._is_agreed = all(member.plan == plan.number for member in others if member.id in plan.members)

    def _dead(self) -> list[str]:
        """Members but ourselves that have shown no life for too long."""
        return [name for name, seen in self._seen.items() if name != self._id and seen.silent_looks >= EXPIRY_BEATS]
