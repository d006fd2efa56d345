"""Writes usage behind the requests: `note` counts in memory and in a journal, and waits for no database; `flush` brings the counts there.

While the database does not answer, batches go to the spool on disk, in order, and from there to the database when it is back. A batch
that the disk does not take either stays in memory. Nothing that a disk does keeps usage from a database that answers.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from appliance.db.database import Database
from appliance.domain.usage.decisions import Batch, Counts, UsageKey, entry_of
from appliance.domain.usage.service import add_batch, remove_old_minutes
from appliance.domain.usage.spool import Journal, Spool
from appliance.errors import Unavailable
from appliance.telemetry.requests import RequestReport

log = structlog.get_logger(__name__)

FLUSH_EVERY_S = 1.0
MAX_ROWS = 20_000
"""Rows in memory before they go to the spool without waiting for the next flush."""
MAX_HELD_ROWS = 200_000
"""Rows in memory that neither the database nor the disk takes; beyond it the oldest batches are lost (logged and counted)."""
PRUNE_EVERY_S = 3_600.0
REMIND_EVERY_S = 60.0
"""Of a disk that takes nothing, in the log."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch on its way to the database, and its journal (None where the disk did not take one)."""

    batch: Batch
    journal: Journal | None
    num_unjournaled: int
    """Requests that are in memory alone."""


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
        self._folder = folder
        self._spool = Spool(folder, self._writer)
        self._journal: Journal | None = None
        """Of the rows in memory; None where there are none."""
        self._held: dict[int, _Held] = {}
        """By number, upwards."""
        self._num_unjournaled = 0
        """Of the rows in memory: requests that the disk did not take."""
        self._num_dropped = 0
        """Requests of batches that were one too many for the memory."""
        self._told_s = -REMIND_EVERY_S
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
        self._write_down(key, counts)
        if len(self._rows) >= MAX_ROWS:
            self._take()
            self._spool_held()

    @property
    def unwritten_s(self) -> float:
        """Age of the oldest usage that is not in the database."""
        return 0.0 if self._behind_since_s is None else max(0.0, self._wall_s() - self._behind_since_s)

    @property
    def spooled_bytes(self) -> int:
        """What waits on disk for the database, and would wait for it at the next start."""
        return self._spool.num_bytes

    @property
    def num_lost(self) -> int:
        """Requests since the start whose usage nothing had room for. What goes with the process when it ends is in the log alone."""
        return self._num_dropped + self._spool.num_lost

    async def flush(self) -> bool:
        """Write what was counted since the last time, and what is spooled. False where the database does not answer."""
        async with self._flushing:
            began_s = self._wall_s()
            is_written = await self._flush()
            if is_written:  # what came meanwhile is as old as this flush at most
                self._behind_since_s = began_s if self._rows else None
            return is_written

    async def close(self) -> None:
        """Flush for the last time. What neither the database nor the disk takes is lost with the process."""
        await self.flush()
        if num_lost := self._num_in_memory_alone():
            log.error("usage_lost", requests=num_lost, reason="the process ends, and neither the database nor the disk took it")

    async def _flush(self) -> bool:
        if self._rows:
            self._take()
        if self._spool.num_bytes:
            self._spool_held()  # its numbers are higher: it may not be written before what is there
            await self._sync()
            if not await self._replay([self._spool.path]):
                return False
        is_written = await self._write_held()
        await self._sync()
        return is_written

    async def _sync(self) -> None:
        if self._spool.num_bytes:
            with self._on_disk():
                await asyncio.to_thread(self._spool.sync)

    async def recover(self) -> None:
        """Write what processes before this one left in the spool. Call it before anything is counted."""
        async with self._flushing:
            for paths in self._spool.left_by_others():
                await self._replay(paths)

    async def run(self) -> None:
        """Flush for ever; run it as a task, cancel it at shutdown and then `flush` once more."""
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self.flush()
                await self._prune()
            except Exception as error:  # the books must outlive whatever the database does
                log.error("usage_not_written", error=str(error), exc_info=error)

    def _write_down(self, key: UsageKey, counts: Counts) -> None:
        """One request into the journal; a disk that does not take it leaves it in memory."""
        with self._on_disk():
            self._num_unjournaled += 1
            if self._journal is None:
                self._journal = Journal(self._folder, self._writer, self._number + 1)
            self._journal.note((key, counts))
            self._num_unjournaled -= 1

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            now_s = self._wall_s()
            if not 0.0 <= now_s - self._told_s < REMIND_EVERY_S:
                self._told_s = now_s
                log.error("usage_not_on_disk", error=str(error), in_memory_alone=self._num_in_memory_alone())

    def _num_in_memory_alone(self) -> int:
        """Requests that would be lost with the process."""
        return self._num_unjournaled + sum(held.num_unjournaled for held in self._held.values())

    async def _write_held(self) -> bool:
        try:
            for number, held in tuple(self._held.items()):
                if not await self._write([held.batch]):
                    return False
                self._let_go(number)
        finally:  # cancelled by shutdown, too: a batch that was written after all is known when it comes again
            self._spool_held()
        return True

    def _spool_held(self) -> None:
        """Put what is held on the disk; what it does not take stays, up to a bound."""
        with self._on_disk():
            for number, held in tuple(self._held.items()):
                self._spool.append(held.batch)
                self._let_go(number)
        while sum(len(held.batch.rows) for held in self._held.values()) > MAX_HELD_ROWS:
            number, oldest = next(iter(self._held.items()))
            self._num_dropped += oldest.batch.num_requests
            log.error("usage_lost", requests=oldest.batch.num_requests, reason="neither the database nor the disk takes it")
            self._let_go(number)

    def _let_go(self, number: int) -> None:
        """A batch is elsewhere."""
        held = self._held.pop(number, None)  # `note` may have spooled it while it was being written
        if held is not None and held.journal is not None:
            with self._on_disk():
                held.journal.remove()

    def _take(self) -> None:
        """Hold what is in memory as the next batch."""
        self._number += 1
        rows, self._rows = self._rows, {}
        journal, self._journal = self._journal, None
        num_unjournaled, self._num_unjournaled = self._num_unjournaled, 0
        if journal is not None:
            with self._on_disk():
                journal.close()
        self._held[self._number] = _Held(Batch(self._writer, self._number, list(rows.items())), journal, num_unjournaled)

    async def _write(self, batches: list[Batch]) -> bool:
        """One transaction a batch: each counts once, even where the database's answer was lost."""
        try:
            for batch in batches:
                async with self._database.write() as session:
                    await add_batch(session, batch)
        except Unavailable:
            return False
        return True

    async def _replay(self, paths: Sequence[Path]) -> bool:
        """Write a writer's files, and remove them."""
        while files := [path for path in paths if path.exists()]:
            num_bytes = sum(map(self._spool.size, files))
            batches = await asyncio.to_thread(self._spool.read, files)
            if not await self._write(batches):
                return False
            if sum(map(self._spool.size, files)) == num_bytes:  # else `note` has appended meanwhile
                with self._on_disk():
                    for path in files:
                        self._spool.remove(path)
                log.info("usage_replayed", batches=len(batches))
                return True
        return True

    async def _prune(self) -> None:
        now_s = self._wall_s()
        if now_s - self._pruned_s < PRUNE_EVERY_S:
            return
        with contextlib.suppress(Unavailable):  # the next flush says so
            async with self._database.write() as session:
                await remove_old_minutes(session, datetime.fromtimestamp(now_s, UTC))
            self._pruned_s = now_s
