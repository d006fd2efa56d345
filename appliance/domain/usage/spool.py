"""Batches of usage on disk, for the time the database does not answer and for a process that ends meanwhile.

One file a writer, one JSON line a batch. A line that was cut off by a crash is left out; the batch before it is whole.
"""

import os
from pathlib import Path

import msgspec
import structlog

from appliance.domain.usage.decisions import Batch

log = structlog.get_logger(__name__)

MAX_SPOOL_BYTES = 256 * 1024 * 1024
"""Beyond this, batches are lost (and counted in the log): some days of a busy server without its database."""


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
        """Keep a batch: it is on the disk when this returns. One too many is logged and lost."""
        line = msgspec.json.encode(batch) + b"\n"
        if self.size(self.path) + len(line) > self._max_bytes:
            log.error("usage_lost", requests=sum(counts.requests for _, counts in batch.rows), reason="the spool is full")
            return
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def left_by_others(self) -> list[Path]:
        """Files of writers that have ended: a data directory has one server at a time."""
        return [path for path in sorted(self._folder.glob("*.jsonl")) if path != self.path]

    def read(self, path: Path) -> list[Batch]:
        """The batches of a file."""
        batches: list[Batch] = []
        for line in path.read_bytes().splitlines():
            try:
                batches.append(msgspec.json.decode(line, type=Batch))
            except msgspec.DecodeError:
                log.error("usage_line_unreadable", path=path.name)
        return batches

    def size(self, path: Path) -> int:
        """Bytes of a file; 0 where it is not there."""
        return path.stat().st_size if path.exists() else 0

    def remove(self, path: Path) -> None:
        """Its batches are in the database."""
        path.unlink()
