"""The current access snapshot and how it follows the database.

A lost database never turns a valid key away: the last snapshot stays, `degraded` says so, and polling recovers.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from appliance.domain.access.principal import Principal, Scope
from appliance.domain.access.snapshot import AccessSnapshot, Admin
from appliance.errors import Unavailable

log = structlog.get_logger(__name__)

POLL_INTERVAL_S = 0.25
"""How far other processes' writes (the CLI's, another worker's) lag behind."""


SILENCE_S = 2.0
"""A poll that takes longer shows as degraded, though it may still be answered."""


class SnapshotSource(Protocol):
    """Where snapshots come from. Both methods raise `Unavailable` while the database does not answer."""

    async def version(self) -> int:
        """The database's version: it grows with every admin write."""
        ...

    async def load(self) -> AccessSnapshot:
        """Everything, at that version or a later one."""
        ...


class Directory:
    """Holds the snapshot that requests are judged by. `subscribe` tells the engine's side of policy changes."""

    def __init__(self, source: SnapshotSource, snapshot: AccessSnapshot, wall_clock_s: Callable[[], float] = time.time) -> None:
        self._source = source
        self._snapshot = snapshot
        self._wall_clock_s = wall_clock_s
        self._loading = asyncio.Lock()
        self._subscribers: list[Callable[[AccessSnapshot], None]] = []
        self.degraded = False
        """The database did not answer the last poll; the snapshot may be old."""
        self.capacity_tpm = 0
        """Tokens a minute that the engine measured it can do; 0: no engine was ready yet."""

    @property
    def snapshot(self) -> AccessSnapshot:
        return self._snapshot

    def authenticate(self, raw_key: str | None, tenant_header: str | None, needs: Scope = Scope.INFERENCE) -> Principal:
        """`AccessSnapshot.authenticate` at this moment."""
        return self._snapshot.authenticate(raw_key, tenant_header, self._wall_clock_s(), needs)

    def authenticate_admin(self, raw_key: str | None, needs: Scope) -> Admin:
        """`AccessSnapshot.authenticate_admin` at this moment."""
        return self._snapshot.authenticate_admin(raw_key, self._wall_clock_s(), needs)

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
        silence = asyncio.get_running_loop().call_later(SILENCE_S, self._lose, f"no answer within {SILENCE_S:g} s")
        try:
            if await self._source.version() != self._snapshot.version:
                await self.refresh()
        except Exception as error:  # noqa: BLE001 (following must outlive whatever the database does)
            self._lose(str(error), None if isinstance(error, Unavailable) else error)
        else:
            if self.degraded:
                log.info("database_back", snapshot_version=self._snapshot.version)
            self.degraded = False
        finally:
            silence.cancel()

    def _lose(self, reason: str, unexpected: Exception | None = None) -> None:
        if not self.degraded:
            log.error("database_lost", error=reason, snapshot_version=self._snapshot.version, exc_info=unexpected)
        self.degraded = True

    async def follow(self) -> None:
        """Poll for ever; run it as a task and cancel it at shutdown."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.poll()
