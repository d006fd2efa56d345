"""The current access snapshot and how it follows the database.

A lost database never turns a valid key away: the last snapshot stays, `flaw` says so, and polling recovers. One that answers and takes
no writes (a full or read-only disk, a lock that somebody holds) is told apart.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from appliance.domain.access.capacity import Capacity
from appliance.domain.access.principal import Principal, Scope
from appliance.domain.access.snapshot import AccessSnapshot, Admin
from appliance.errors import Unavailable

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 0.25
"""How far other processes' writes (the CLI's, another worker's) lag behind."""

SILENT_TICKS, TICK_S = 16, 0.25
"""A database that does not answer for so many turns of ours shows as lost, though it may still answer. Turns, not seconds: where this
process was held up itself, the answer may lie there unread."""
WRITE_EVERY_S = 5.0
"""Where nothing was written for so long, something is, to see whether it can be."""
RETRY_WRITE_S = 1.0

NO_ANSWER = "the database does not answer"
AS_LAST_READ = "keys and tenants are as last read"
LOST = f"{NO_ANSWER}; {AS_LAST_READ}"
NO_WRITES = "the database takes no writes; usage is kept until it does, and administration is refused"


class SnapshotSource(Protocol):
    """Where snapshots come from. Its methods raise `Unavailable` while the database does not answer."""

    async def version(self) -> int:
        """The database's version: it grows with every admin write."""
        ...

    async def load(self) -> AccessSnapshot:
        """Everything, at that version or a later one."""
        ...

    @property
    def takes_writes(self) -> bool:
        """Whether the last write, whosoever, succeeded."""
        ...

    async def try_writing(self, quiet_s: float) -> None:
        """Write something, unless somebody tried so lately."""
        ...

    async def keep_capacity(self, capacity_tpm: int) -> None:
        """Write down what the engines were measured to do."""
        ...


class Directory:
    """Holds the snapshot that requests are judged by. `subscribe` tells the engine's side of policy changes."""

    def __init__(
        self,
        source: SnapshotSource,
        snapshot: AccessSnapshot,
        wall_clock_s: Callable[[], float] = time.time,
        tick_s: float = TICK_S,
        capacity_tpm: int = 0,
    ) -> None:
        """`capacity_tpm`: what the database has of it."""
        self._source = source
        self._snapshot = snapshot
        self._wall_clock_s = wall_clock_s
        self._tick_s = tick_s
        self._loading = asyncio.Lock()
        self._subscribers: list[Callable[[AccessSnapshot], None]] = []
        self._lost = ""
        """Why the last poll brought nothing, so that the snapshot may be old; empty: it did."""
        self._said_no_writes = False
        self.capacity = Capacity(kept_tpm=capacity_tpm)

    @property
    def is_lost(self) -> bool:
        """The database does not answer: the snapshot may be old."""
        return bool(self._lost)

    @property
    def flaw(self) -> str:
        """What is wrong with the database, in words; empty: nothing."""
        if self._lost:
            return f"{self._lost}; {AS_LAST_READ}"
        return "" if self._source.takes_writes else NO_WRITES

    @property
    def snapshot(self) -> AccessSnapshot:
        return self._snapshot

    def authenticate(self, raw_key: str | None, tenant_header: str | None, needs: Scope = Scope.INFERENCE) -> Principal:
        """`AccessSnapshot.authenticate` at this moment."""
        return self._snapshot.authenticate(raw_key, tenant_header, self._wall_clock_s(), needs)

    def authenticate_admin(self, raw_key: str | None, needs: Scope) -> Admin:
        """`AccessSnapshot.authenticate_admin` at this moment."""
        return self._snapshot.authenticate_admin(raw_key, self._wall_clock_s(), needs)

    def require_metrics(self, raw_key: str | None) -> None:
        """`AccessSnapshot.require_metrics` at this moment."""
        self._snapshot.require_metrics(raw_key, self._wall_clock_s())

    def subscribe(self, on_change: Callable[[AccessSnapshot], None]) -> None:
        """Call `on_change` with the present snapshot and then with each new one."""
        self._subscribers.append(on_change)
        on_change(self._snapshot)

    async def refresh(self) -> None:
        """Load now. An admin write calls this before it answers, so the next request is judged by it."""
        async with self._loading:
            loaded = await self._source.load()
            self._snapshot = loaded
            for on_change in self._subscribers:
                on_change(loaded)

    async def poll(self) -> None:
        """Load if the database's version moved; note whether it answers, and in time: a hanging one is as good as lost."""
        silence = asyncio.create_task(self._count_silence())
        try:
            if await self._source.version() != self._snapshot.version:
                await self.refresh()
        except Unavailable as error:
            self._lose(error.message, told=error.message)
        except Exception as error:  # noqa: BLE001 (following must outlive whatever the database does)
            self._lose(str(error), error)
        else:
            if self._lost:
                log.info("database_back", snapshot_version=self._snapshot.version)
            self._lost = ""
        finally:
            silence.cancel()

    def _lose(self, reason: str, unexpected: Exception | None = None, told: str = NO_ANSWER) -> None:
        """`told`: the reason as everybody may read it, who asks whether we are ready."""
        if not self._lost:
            log.error("database_lost", error=reason, snapshot_version=self._snapshot.version, exc_info=unexpected)
        self._lost = told

    async def _count_silence(self) -> None:
        for _ in range(SILENT_TICKS):
            await asyncio.sleep(self._tick_s)
        self._lose(f"no answer within {SILENT_TICKS * self._tick_s:g} s")

    async def try_writing(self) -> None:
        """See whether the database takes writes, where nobody else shows it."""
        try:
            await self._source.try_writing(WRITE_EVERY_S if self._source.takes_writes else RETRY_WRITE_S)
        except Unavailable:
            pass  # the source knows
        except Exception as error:
            log.error("write_not_tried", error=str(error), exc_info=error)
        if self._said_no_writes is self._source.takes_writes:
            self._said_no_writes = not self._source.takes_writes
            (log.error if self._said_no_writes else log.info)(
                "database_takes_no_writes" if self._said_no_writes else "database_takes_writes"
            )

    async def keep_capacity(self) -> None:
        """Where what was measured is another, have the database know it: the command line warns by it, and so does the next start."""
        measured = self.capacity.tpm
        if measured != self.capacity.kept_tpm:
            try:
                await self._source.keep_capacity(measured)
            except Unavailable:
                return  # tried again
            except Exception as error:
                log.error("capacity_not_kept", error=str(error), exc_info=error)
            self.capacity.kept_tpm = measured

    async def follow(self) -> None:
        """Poll for ever; run it as a task and cancel it at shutdown."""
        async with asyncio.TaskGroup() as all_of_them:  # apart: a write may wait for a lock, and reading goes on
            all_of_them.create_task(_for_ever(self.poll, POLL_INTERVAL_S))
            all_of_them.create_task(_for_ever(self.try_writing, RETRY_WRITE_S))
            all_of_them.create_task(_for_ever(self.keep_capacity, RETRY_WRITE_S))


async def _for_ever(what: Callable[[], Awaitable[None]], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await what()
