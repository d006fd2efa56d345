"""Usage on disk until it is in the database, so that a killed process and a lost database cost none of it.

A writer has two kinds of files in the folder. Its spool, `WRITER.jsonl`: batches that the database did not take, a JSON line each,
synced. Its journals, `WRITER.NUMBER.journal`: the requests that its batch of that number is made of, a line each, written when they end
and removed when the batch is in the database or in the spool. Journals are not synced: they outlive the process, not a power cut.
A line that was cut off by a crash is left out; what stands before it is whole. A full disk takes a line as a whole or not at all.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from appliance.domain.usage.decisions import Batch, Counts, UsageKey, merged

log = structlog.get_logger(__name__)

MAX_SPOOL_BYTES = 256 * 1024 * 1024
"""Beyond this, batches are lost (logged and counted): some days of a busy server without its database."""

APPENDS = os.O_WRONLY | os.O_CREAT | os.O_APPEND

type Entry = tuple[UsageKey, Counts]


class Spool:
    """The spool of one writer in a folder that all writers of the installation on this machine use."""

    def __init__(self, folder: Path, writer: str, max_bytes: int = MAX_SPOOL_BYTES) -> None:
        self._folder = folder
        self.path = folder / f"{writer}.jsonl"
        self._max_bytes = max_bytes
        self._written_bytes = 0
        """In the database already, and still on a disk that lets nothing go."""
        self.num_lost = 0
        """Requests of the batches that were one too many."""
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def num_bytes(self) -> int:
        """What waits for the database."""
        return max(0, self.size(self.path) - self._written_bytes)

    def append(self, batch: Batch) -> None:
        """Keep a batch, by `sync` also through a power cut. One too many is logged and lost. Raises `OSError`."""
        line = msgspec.json.encode(batch) + b"\n"
        size = self.size(self.path)
        if size + len(line) > self._max_bytes:
            self.num_lost += batch.num_requests
            log.error("usage_lost", requests=batch.num_requests, reason="the spool is full")
            return
        self._written_bytes = min(self._written_bytes, size)
        descriptor = os.open(self.path, APPENDS, 0o600)
        try:
            _append_line(descriptor, line, size)
        except OSError:
            if not size:
                self.path.unlink()
            raise
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Wait until what was appended is on the disk; from a thread, for that may take long. Raises `OSError`."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def left_by_others(self) -> list[list[Path]]:
        """The files of each writer that has ended: a data directory has one server at a time."""
        files: dict[str, list[Path]] = defaultdict(list)
        for path in sorted((*self._folder.glob("*.jsonl"), *self._folder.glob("*.journal"))):
            files[path.name.partition(".")[0]].append(path)
        files.pop(self.path.stem, None)
        return list(files.values())

    def read(self, paths: Iterable[Path]) -> list[Batch]:
        """The batches of a writer's files, in the order of their numbers."""
        batches: list[Batch] = []
        for path in paths:
            batches += [_read_journal(path)] if path.suffix == ".journal" else _lines(path, Batch)
        return sorted(batches, key=lambda batch: batch.number)

    def size(self, path: Path) -> int:
        """Bytes of a file; 0 where it is not there."""
        return path.stat().st_size if path.exists() else 0

    def remove(self, path: Path) -> None:
        """Its batches are in the database. Raises `OSError`, and then they count as written all the same."""
        if path == self.path:
            self._written_bytes = self.size(path)
        path.unlink()
        if path == self.path:
            self._written_bytes = 0


class Journal:
    """The requests of one batch that is still in memory."""

    def __init__(self, folder: Path, writer: str, number: int) -> None:
        """Raises `OSError`."""
        self._path = folder / f"{writer}.{number}.journal"
        self._descriptor = os.open(self._path, APPENDS, 0o600)
        self._num_bytes = 0

    def note(self, entry: Entry) -> None:
        """Write one request down: the process may be killed right afterwards. Raises `OSError`."""
        line = msgspec.json.encode(entry) + b"\n"
        _append_line(self._descriptor, line, self._num_bytes)
        self._num_bytes += len(line)

    def close(self) -> None:
        """Its batch is complete. It may be held for long, beside one more each second: an open file for each would be too many."""
        os.close(self._descriptor)
        if not self._num_bytes:
            self.remove()

    def remove(self) -> None:
        """Its batch is elsewhere."""
        self._path.unlink(missing_ok=True)


def _append_line(descriptor: int, line: bytes, size: int) -> None:
    """To a file of so many bytes, and all of it: half a line would spoil the next one, too. Raises `OSError`."""
    try:
        written = os.write(descriptor, line)
        while written < len(line):  # a disk that becomes full says so from the next byte on
            written += os.write(descriptor, line[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _read_journal(path: Path) -> Batch:
    writer, number, _ = path.name.split(".")
    return Batch(writer, int(number), merged(_lines(path, Entry)))


def _lines(path: Path, kind: Any) -> list[Any]:
    """Each line as `kind`."""
    found: list[Any] = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:
            log.error("usage_line_unreadable", path=path.name)
    return found
