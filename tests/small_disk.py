"""A file system of a few megabytes, in memory: what a full or a read-only disk does, without one of the machine's."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MS_RDONLY, MS_REMOUNT, MNT_DETACH = 1, 32, 2
DISK_BYTES = 4 * 1_048_576


class SmallDisk:
    """Mounted at `path`, a folder that is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._libc = ctypes.CDLL(None, use_errno=True)

    def mount(self, flags: int = 0, options: str = f"size={DISK_BYTES}") -> None:
        """Raises `OSError`."""
        if self._libc.mount(b"tmpfs", bytes(self.path), b"tmpfs", flags, options.encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def unmount(self) -> None:
        self._libc.umount2(bytes(self.path), MNT_DETACH)

    def make_read_only(self) -> None:
        self.mount(MS_REMOUNT | MS_RDONLY)

    def fill(self, free_bytes: int) -> None:
        """Leave so much room, in whole pages."""
        found = os.statvfs(self.path)
        (self.path / "filling").write_bytes(b"x" * max(0, found.f_bavail * found.f_frsize - free_bytes))

    def refuse_more_files(self) -> None:
        """Those that are there may grow."""
        found = os.statvfs(self.path)
        self.mount(MS_REMOUNT, f"nr_inodes={found.f_files - found.f_ffree}")


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Skips the test where nothing can be mounted."""
    disk = SmallDisk(path)
    path.mkdir()
    try:
        disk.mount()
    except OSError as error:
        pytest.skip(f"no file system can be mounted here ({error.strerror}): it takes root, and a container that may")
    try:
        yield disk
    finally:
        disk.unmount()
