"""The lock of a data directory: one server at a time, and none while its database is replaced."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from appliance.settings import SettingsError

LOCK_FILE = "serve.lock"


@contextlib.contextmanager
def only_server_of(folder: Path) -> Iterator[None]:
    """Hold the data directory's lock; the system gives it back however this process ends. Raises `SettingsError`."""
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"data_dir={str(folder)!r} is in use by a running server: stop it, or name another folder with --data-dir"
            raise SettingsError(message) from error
        yield
