"""Backing a database up to one file, and restoring it: SQLite by its online backup, PostgreSQL by pg_dump and pg_restore.

BackupError              it can not be done; the message says why and what to do

A backup is taken while servers run. Restoring needs them stopped: they would go on with what they have read.
"""

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from appliance.db.database import BUSY_TIMEOUT_MS, DAMAGED_ERRORS

SQLITE_MAGIC = b"SQLite format 3\x00"
POSTGRES_MAGIC = b"PGDMP"
PROGRAM_TIMEOUT_S = 3_600.0
LOGS = ("-wal", "-shm")
"""Ends of the names of what SQLite puts beside a database."""


class BackupError(Exception):
    """A backup or a restore can not be done."""


def is_sqlite(url: str) -> bool:
    """Whether a SQLAlchemy URL names a SQLite file."""
    return url.startswith("sqlite")


def sqlite_path(url: str) -> Path:
    """The file of a SQLite URL."""
    return Path(url.partition(":///")[2].partition("?")[0])


def back_up(url: str, target: Path) -> None:
    """Write a consistent copy of a database to a new file, readable by its owner alone. Raises `BackupError`.

    The file appears whole or not at all; one that exists is not replaced.
    """
    if target.exists():
        raise BackupError(f"{target} exists: name a new file, or move that one away")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent} is no folder: make it first")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        if is_sqlite(url):
            _copy_sqlite(sqlite_path(url), draft)
        else:
            _run("pg_dump", ["--format=custom", "--no-owner", "--no-privileges", f"--file={draft}"], url)
        draft.rename(target)
    except OSError as error:
        raise BackupError(f"{target} can not be written ({error.strerror})") from error
    finally:
        draft.unlink(missing_ok=True)


def check_backup(source: Path, url: str) -> None:
    """Raises `BackupError` where a file is no backup of this kind of database."""
    try:
        with source.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise BackupError(f"{source} can not be read ({error.strerror})") from error
    kind = "SQLite" if head == SQLITE_MAGIC else "PostgreSQL" if head.startswith(POSTGRES_MAGIC) else ""
    wanted = "SQLite" if is_sqlite(url) else "PostgreSQL"
    if not kind:
        raise BackupError(f"{source} is no backup made by `fairlane backup`")
    if kind != wanted:
        raise BackupError(f"{source} is a backup of {kind}, and the database is {wanted}: restore it to one of its own kind")


@contextlib.contextmanager
def restored_sqlite(source: Path, url: str) -> Iterator[str]:
    """URL of a copy of the backup beside the database, which takes its place where the block ends well.

    What the block finds wrong with the copy leaves the database as it was, and so does an end at any moment before the copy takes its
    place: what a killed restore left lying is removed by the next one.
    """
    target = sqlite_path(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.restoring")
    _remove_sqlite(draft)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        _copy_sqlite(source, draft)
        with contextlib.closing(sqlite3.connect(draft)) as copy:
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise BackupError(f"{source} is damaged: {found.partition(chr(10))[0]}")
        yield f"sqlite+aiosqlite:///{draft}"
        _fold_log(draft)
        _sync(draft)
        _fold_log_unless_damaged(target)
        _remove_sqlite(target, LOGS)  # of a damaged one: SQLite would take them for the copy's
        draft.replace(target)
        _sync(target.parent)
    finally:
        _remove_sqlite(draft)


def postgres_backup_revision(source: Path) -> str | None:
    """The revision of the schema in a backup of PostgreSQL; None where it has none."""
    listed = _run("pg_restore", ["--data-only", "--table=alembic_version", "--file=-", str(source)])
    lines = listed.decode().splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith("COPY ")), None)
    return None if begin is None or lines[begin + 1] == "\\." else lines[begin + 1].strip()


def restore_postgres(source: Path, url: str) -> None:
    """Put a backup in the place of everything in schema `public`, in one transaction."""
    statements = _run("pg_restore", ["--no-owner", "--no-privileges", "--file=-", str(source)])
    empty = ["--command=DROP SCHEMA public CASCADE", "--command=CREATE SCHEMA public"]
    options = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null"]
    _run("psql", [*options, *empty, "--file=-"], url, statements)


def _copy_sqlite(source: Path, target: Path) -> None:
    """SQLite's online backup: a consistent copy, also while others write."""
    if not source.is_file():
        raise BackupError(f"there is no database {source}")
    try:
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_MS / 1000)) as database,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    except sqlite3.Error as error:
        raise BackupError(f"{source} can not be copied: {error}") from error


def _fold_log(path: Path) -> None:
    """Put what a database's log beside it holds into the file itself, after which there is no log. Raises `sqlite3.Error`."""
    if path.exists():
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000)) as database:
            database.execute("PRAGMA journal_mode=DELETE")


def _fold_log_unless_damaged(path: Path) -> None:
    """What a damaged database's log holds is given up: that is what backups are for. Raises `BackupError` where somebody has it open."""
    try:
        _fold_log(path)
    except sqlite3.Error as error:
        if not getattr(error, "sqlite_errorname", "").startswith(DAMAGED_ERRORS):
            raise BackupError(f"{path} can not be replaced now ({error}): end what has it open") from error


def _remove_sqlite(path: Path, suffixes: tuple[str, ...] = ("", *LOGS)) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have a file or a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run(program: str, arguments: list[str], url: str = "", given: bytes = b"") -> bytes:
    """Run one of PostgreSQL's programs, on a database where a URL is given; what it prints. Raises `BackupError` with its own words."""
    path = shutil.which(program)
    if path is None:
        raise BackupError(f"the program {program} is missing: install PostgreSQL's client programs (Debian: apt install postgresql-client)")
    environ = dict(os.environ)
    if url:
        plain, password = _libpq_url(url)
        arguments = [f"--dbname={plain}", *arguments]
        environ |= {"PGPASSWORD": password} if password else {}
    try:
        done = subprocess.run([path, *arguments], input=given, env=environ, capture_output=True, check=False, timeout=PROGRAM_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BackupError(f"{program} did not end within {PROGRAM_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        raise BackupError(f"{program} failed: {words[0]}")
    return done.stdout


def _libpq_url(url: str) -> tuple[str, str]:
    """A SQLAlchemy URL as PostgreSQL's programs read it, and apart from it the password, which `ps` would show."""
    parts = urlsplit(url.replace("postgresql+asyncpg://", "postgresql://", 1))
    credentials, _, host = parts.netloc.rpartition("@")
    user = credentials.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host)), unquote(parts.password or "")
