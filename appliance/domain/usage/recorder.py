"""Writes usage behind the requests: `note` counts in memory and never waits; `flush` brings the counts to the database.

While the database does not answer, batches go to the spool on disk, in order, and from there to the database when it is back.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from appliance.db.database import Database
from appliance.domain.usage.decisions import Batch, Counts, UsageKey, entry_of
from appliance.domain.usage.service import add_batch, remove_old_minutes
from appliance.domain.usage.spool import Spool
from appliance.errors import Unavailable
from appliance.telemetry.requests import RequestReport

log = structlog.get_logger(__name__)

FLUSH_EVERY_S = 1.0
MAX_ROWS = 20_000
"""Rows in memory before they go to the spool without waiting for the next flush."""
PRUNE_EVERY_S = 3_600.0


class UsageRecorder:
    """The books of one process."""

    def __init__(self, database: Database, folder: Path, wall_s: Callable[[], float], model: Callable[[], str]) -> None:
        """`folder` holds the spool; `model` names the model that serves now."""
        self._database = database
        self._wall_s = wall_s
        self._model = model
        self._writer = uuid.uuid4().hex
        self._number = 0
        self._rows: dict[UsageKey, Counts] = {}
        self.num_noted = 0
        """Requests counted since the start."""
        self._behind_since_s: float | None = None
        self._spool = Spool(folder, self._writer)
        self._flushing = asyncio.Lock()
        self._pruned_s = 0.0

    def note(self, report: RequestReport) -> None:
        """Count a settled request; one without a valid key belongs to nobody."""
        if not report.tenant_id:
            return
        self.num_noted += 1
        if self._behind_since_s is None:
            self._behind_since_s = self._wall_s()
        key, counts = entry_of(report, self._model(), self._wall_s())
        self._rows.setdefault(key, Counts()).add(counts)
        if len(self._rows) >= MAX_ROWS:
            self._spool.append(self._take())

    @property
    def unwritten_s(self) -> float:
        """Age of the oldest usage that is not in the database."""
        return 0.0 if self._behind_since_s is None else max(0.0, self._wall_s() - self._behind_since_s)

    async def flush(self) -> bool:
        """Write what was counted since the last time, and what is spooled. False where the database does not answer."""
        async with self._flushing:
            began_s = self._wall_s()
            is_written = await self._flush()
            if is_written:  # what came meanwhile is as old as this flush at most
                self._behind_since_s = began_s if self._rows else None
            return is_written

    async def _flush(self) -> bool:
        if not self._rows and self._spool.is_empty:
            return True
        if self._rows and self._spool.is_empty and await self._write_rows():
            return True
        if self._rows:
            self._spool.append(self._take())
        return await self._replay(self._spool.path)

    async def recover(self) -> None:
        """Write what processes before this one left in the spool. Call it before anything is counted."""
        async with self._flushing:
            for path in self._spool.left_by_others():
                await self._replay(path)

    async def run(self) -> None:
        """Flush for ever; run it as a task, cancel it at shutdown and then `flush` once more."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self.flush()
                await self._prune()
            except Exception as error:  # the books must outlive whatever the database does
                log.error("usage_not_written", error=str(error), exc_info=error)

    async def _write_rows(self) -> bool:
        batch = self._take()
        written = False
        try:
            written = await self._write([batch])
        finally:  # cancelled by shutdown, too: a batch that was written after all is known when it comes again
            if not written:
                self._spool.append(batch)
        return written

    def _take(self) -> Batch:
        """What is in memory as the next batch."""
        self._number += 1
        rows, self._rows = self._rows, {}
        return Batch(self._writer, self._number, list(rows.items()))

    async def _write(self, batches: list[Batch]) -> bool:
        """One transaction a batch: each counts once, even where the database's answer was lost."""
        try:
            for batch in batches:
                async with self._database.write() as session:
                    await add_batch(session, batch)
        except Unavailable:
            return False
        return True

    async def _replay(self, path: Path) -> bool:
        while num_bytes := self._spool.size(path):
            batches = await asyncio.to_thread(self._spool.read, path)
            if not await self._write(batches):
                return False
            if self._spool.size(path) == num_bytes:  # else `note` has appended meanwhile
                self._spool.remove(path)
                log.info("usage_replayed", batches=len(batches))
        return True

    async def _prune(self) -> None:
        now_s = self._wall_s()
        if now_s - self._pruned_s < PRUNE_EVERY_S:
            return
        with contextlib.suppress(Unavailable):  # the next flush says so
            async with self._database.write() as session:
                await remove_old_minutes(session, datetime.fromtimestamp(now_s, UTC))
            self._pruned_s = now_s
