"""The locks of a data directory and of a SQLite file: one server at a time, and none while its database is replaced."""

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


@contextlib.contextmanager
def only_server_on(database: Path) -> Iterator[None]:
    """Hold the lock of a SQLite file, which another server may reach from another data directory: two would each allow the whole of every
    limit. Raises `SettingsError`."""
    with database.with_name(f"{database.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = f"the database {database} is in use by a running server: stop it; several servers share a PostgreSQL database"
            raise SettingsError(message) from error
        yield
