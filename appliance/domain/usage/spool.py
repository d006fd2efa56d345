"""Usage on disk until it is in the database, so that a killed process and a lost database cost none of it.

A writer has two kinds of files in the folder. Its spool, `WRITER.jsonl`: batches that the database did not take, a JSON line each,
synced. Its journals, `WRITER.NUMBER.journal`: the requests that its batch of that number is made of, a line each, written when they end
and removed when the batch is in the database or in the spool. Journals are not synced: they outlive the process, not a power cut.
A line that was cut off by a crash is left out; what stands before it is whole.
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
"""Beyond this, batches are lost (and counted in the log): some days of a busy server without its database."""

type Entry = tuple[UsageKey, Counts]


class Spool:
    """The spool of one writer in a folder that all writers of the installation on this machine use."""

    def __init__(self, folder: Path, writer: str, max_bytes: int = MAX_SPOOL_BYTES) -> None:
        self._folder = folder
        self.path = folder / f"{writer}.jsonl"
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_empty(self) -> bool:
        return not self.path.exists()

    def append(self, batch: Batch) -> None:
        """Keep a batch, by `sync` also through a power cut. One too many is logged and lost. Raises `OSError`."""
        line = msgspec.json.encode(batch) + b"\n"
        size = self.size(self.path)
        if size + len(line) > self._max_bytes:
            log.error("usage_lost", requests=sum(counts.requests for _, counts in batch.rows), reason="the spool is full")
            return
        with self.path.open("ab") as file:
            try:
                file.write(line)
                file.flush()
            except OSError:
                os.truncate(self.path, size)  # half a line would spoil the next one
                raise

    def sync(self) -> None:
        """Wait until what was appended is on the disk; from a thread, for that may take long. Raises `OSError`."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())

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
        """Its batches are in the database."""
        path.unlink()


class Journal:
    """The requests of one batch that is still in memory."""

    def __init__(self, folder: Path, writer: str, number: int) -> None:
        """Raises `OSError`."""
        self._path = folder / f"{writer}.{number}.journal"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, entry: Entry) -> None:
        """Write one request down: the process may be killed right afterwards. Raises `OSError`."""
        os.write(self._descriptor, msgspec.json.encode(entry) + b"\n")

    def remove(self) -> None:
        """Its batch is elsewhere."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


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
