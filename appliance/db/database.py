"""One asynchronous SQLAlchemy engine and its sessions: `read()` and `write()`.

SQLite runs in WAL mode with foreign keys on; a writing transaction begins IMMEDIATE, so that two writers wait for each
other instead of failing in the middle. A database that does not answer raises `Unavailable`, never anything else; where it is
SQLite's file or its disk, the message says so.
"""

import asyncio
import contextlib
import os
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Self

import msgspec
from sqlalchemy import Connection, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from appliance.db.open_file import RETRY_AFTER_S, OpenFile
from appliance.db.outage import Outage
from appliance.errors import Invalid, Unavailable

BUSY_TIMEOUT_MS = 5_000
"""How long a SQLite connection waits for another's lock, where the URL does not say."""
MAX_BUSY_TIMEOUT_MS = 60_000
BUSY_RETRY_S = 0.01
CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 15.0
POOL_TIMEOUT_S = 3.0
"""How long to wait for a connection while all are in use: behind a database that hangs they do not come back."""
LAST_WORD_S = 0.05
"""What the driver's thread that could not open a file gets to say so: behind the loop's end it would end with a traceback."""
APPLICATION = "fairlane"
"""How PostgreSQL's pg_stat_activity names our connections."""

LOST_SQLSTATES = ("08", "25006", "53", "57P", "58")
"""PostgreSQL's codes, by their beginnings, of what is no statement's fault: connections, read-only servers, full disks and out of memory,
shutdowns, errors of the system."""
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
DAMAGED_ERRORS = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
DAMAGED = "the database file is damaged: restore a backup of it, or move it away to start with an empty one (keys and tenants are lost)"
FULL = "the disk of the database is full: make room on it"
READ_ONLY = "the database file can not be written: its disk must be writable, and the file and its folder belong to the appliance's user"
NOT_OPENED = "the database file can not be opened: its folder must be there and writable, and the file belong to the appliance's user"
NO_ANSWER = "the database does not answer"
FLAWS: tuple[tuple[tuple[str, ...], str], ...] = (
    (DAMAGED_ERRORS, DAMAGED),
    (("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "53100"), FULL),
    (("SQLITE_READONLY",), READ_ONLY),
    (("SQLITE_CANTOPEN", "SQLITE_PERM"), NOT_OPENED),
)
"""What is wrong and what to do, by the beginnings of SQLite's names and PostgreSQL's codes. Without a path: everybody may ask /readyz."""


class UnreadableValue(Exception):
    """A stored value is none that we ever wrote: SQLite has no checksums, so damage may show there first."""


def _from_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UnreadableValue(str(error)) from error


ENGINE_OPTIONS: dict[str, Any] = {
    "pool_timeout": POOL_TIMEOUT_S,
    "hide_parameters": True,
    "json_serializer": lambda value: msgspec.json.encode(value).decode(),
    "json_deserializer": _from_json,
}
"""Parameters stay out of errors, and so out of logs: people type passwords into the wrong field. A snapshot
decodes several JSON columns a row; msgspec does it several times faster than the standard library."""


class Database:
    """Opened lazily: the first session connects. `close()`, or the end of an `async with`, gives everything back."""

    def __init__(self, url: str, *, enforce_foreign_keys: bool = True) -> None:
        """Migrations on SQLite turn the enforcement off: rebuilding a table there would delete what refers to it."""
        self.engine = _make_engine(url, enforce_foreign_keys)
        self._file = OpenFile(url)
        self.takes_writes = True
        """Whether the last writing transaction got as far as its end."""
        self.tried_writing_s = 0.0
        """When the last one ended, either way; `time.monotonic`."""
        self._failed_reads, self._failed_writes = Outage("reads"), Outage("writes")
        self._reads = async_sessionmaker(self.engine, expire_on_commit=False)
        self._writes = async_sessionmaker(self.engine.execution_options(fairlane_writes=True), expire_on_commit=False)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session that only reads. Raises `Unavailable`."""
        with _lost_as_unavailable(self._failed_reads):
            self._file.require_same()
            async with self._reads() as session:
                yield session
        self._failed_reads.succeeded(time.monotonic())

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A transaction: committed at the end of the block, rolled back when it raises. Raises `Unavailable`."""
        try:
            with _lost_as_unavailable(self._failed_writes):
                self._file.require_same()
                async with self._writes.begin() as session:
                    yield session
        except Unavailable:
            self.takes_writes, self.tried_writing_s = False, time.monotonic()
            raise
        self.takes_writes, self.tried_writing_s = True, time.monotonic()
        self._failed_writes.succeeded(self.tried_writing_s)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """A bare connection inside a writing transaction, for migrations. Raises `Unavailable`."""
        with _lost_as_unavailable(self._failed_writes):
            async with self.engine.execution_options(fairlane_writes=True).begin() as connection:
                yield connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.engine.dispose()
        if self._failed_reads.lasts or self._failed_writes.lasts:
            await asyncio.sleep(LAST_WORD_S)


@contextmanager
def _lost_as_unavailable(outage: Outage) -> Iterator[None]:
    """Turns a database that does not answer into `Unavailable`; the cause goes to the log, not to clients."""
    try:
        yield
    except (DBAPIError, OSError, TimeoutError, PoolTimeoutError, UnreadableValue) as error:
        if isinstance(error, DBAPIError) and not _is_lost(error):
            raise
        outage.failed(str(error).partition("\n")[0], time.monotonic())
        raise Unavailable(_flaw_of(error), reason="database_unavailable", retry_after_s=RETRY_AFTER_S) from error


def _flaw_of(error: Exception) -> str:
    if isinstance(error, UnreadableValue):
        return DAMAGED
    code = _sqlite_error(error) or _sqlstate(error)
    return next((flaw for codes, flaw in FLAWS if code.startswith(codes)), NO_ANSWER)


def _is_lost(error: DBAPIError) -> bool:
    """Whether the database is at fault, and not the statement (which SQLite calls an operational error, too)."""
    name = _sqlite_error(error)
    of_the_statement = name == "SQLITE_ERROR"
    return (
        error.connection_invalidated
        or name.startswith(DAMAGED_ERRORS)
        or _sqlstate(error).startswith(LOST_SQLSTATES)
        or (isinstance(error, OperationalError | InterfaceError) and not of_the_statement)
    )


def _sqlite_error(error: Exception) -> str:
    """SQLite's own name of an error; empty for any other."""
    return getattr(getattr(error, "orig", None), "sqlite_errorname", "")


def _sqlstate(error: Exception) -> str:
    """PostgreSQL's code of an error; empty for any other."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _make_engine(url: str, enforce_foreign_keys: bool) -> AsyncEngine:
    if url.startswith("sqlite"):
        busy_ms = _busy_timeout_ms(url)
        engine = create_async_engine(url, **ENGINE_OPTIONS, connect_args={"timeout": busy_ms / 1000})
        pragmas = ("synchronous=NORMAL", f"foreign_keys={'ON' if enforce_foreign_keys else 'OFF'}")
        event.listen(engine.sync_engine, "do_connect", _make_private_file)
        event.listen(engine.sync_engine, "connect", partial(_set_up_sqlite, pragmas, busy_ms))
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        event.listen(engine.sync_engine, "before_cursor_execute", _refuse_unstorable)
        return engine
    connect_args = {
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": COMMAND_TIMEOUT_S,
        "server_settings": {"application_name": APPLICATION},
    }
    engine = create_async_engine(url, **ENGINE_OPTIONS, pool_pre_ping=True, pool_size=4, connect_args=connect_args)
    event.listen(engine.sync_engine, "before_cursor_execute", _refuse_unstorable)
    return engine


def _busy_timeout_ms(url: str) -> int:
    """SQLite's parameter `timeout` of a URL is in seconds. Raises `Invalid`."""
    given = make_url(url).query.get("timeout", BUSY_TIMEOUT_MS / 1000)
    try:
        busy_ms = round(float(given) * 1000)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        busy_ms = -1
    if not 0 <= busy_ms <= MAX_BUSY_TIMEOUT_MS:
        message = f"timeout={given!r} of the database's URL must be seconds from 0 to {MAX_BUSY_TIMEOUT_MS // 1000}, and come once"
        raise Invalid(message, param="database_url")
    return busy_ms


def _refuse_unstorable(_connection: Any, _cursor: Any, _statement: str, parameters: Any, _context: Any, _executemany: bool) -> None:
    """The one place where every text on its way to a database passes: PostgreSQL stores no NUL, and nothing encodes half a surrogate pair.
    On SQLite, which takes NUL, the same texts are refused. Raises `Invalid`."""
    for row in parameters if isinstance(parameters, list) else (parameters,):
        for value in row.values() if isinstance(row, dict) else row:
            if isinstance(value, str) and UNSTORABLE.search(value):
                raise Invalid("a text holds the character NUL or half of a surrogate pair: leave it out")


def _make_private_file(_dialect: Any, _record: Any, arguments: list[Any], _parameters: Any) -> None:
    """A new database is its owner's alone, as are the files that SQLite puts beside it: they take over its mode."""
    with contextlib.suppress(OSError):  # SQLite says it better
        os.close(os.open(arguments[0], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _set_up_sqlite(pragmas: tuple[str, ...], busy_ms: int, connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin by itself: `_begin_sqlite` does
    cursor = connection.cursor()
    _log_ahead(connection, cursor, busy_ms)
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _log_ahead(connection: Any, cursor: Any, busy_ms: int) -> None:
    """Put the file into WAL mode, where it is not. Of two that do so at once SQLite fails one without waiting, whatever its timeout:
    both hold the lock that the other waits for. That one tries again, for as long as it would wait for any other lock."""
    deadline_s = time.monotonic() + busy_ms / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() >= deadline_s:
                raise
        connection.run_async(lambda _driver: asyncio.sleep(BUSY_RETRY_S))


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("fairlane_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
