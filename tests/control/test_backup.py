"""`fairlane backup` and `fairlane restore` on both databases: what comes back is what was there, and nothing is lost on the way."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from appliance.data_lock import only_server_of, only_server_on
from appliance.db.backup import BackupError, is_sqlite, restored_sqlite, sqlite_path
from appliance.db.base import Base
from appliance.db.database import Database
from appliance.db.revision import SchemaState, read_schema
from appliance.domain.tenants.bootstrap import open_control
from appliance.settings import Settings, sqlalchemy_url
from tests.control.conftest import Fairlane
from tests.control.test_migrations import execute


@pytest.fixture
def on(fairlane: Fairlane, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Fairlane:
    """A command line on each kind of database."""
    monkeypatch.setenv("FAIRLANE_DATA_DIR", settings.data_dir)
    monkeypatch.setenv("FAIRLANE_DATABASE_URL", settings.database_url)
    return fairlane


def run(on: Fairlane, *arguments: str) -> str:
    done = on(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


async def knows(settings: Settings, key: str) -> str:
    """The tenant that a server started now would take a key for."""
    control = await open_control(settings)
    try:
        return control.directory.authenticate(key, None).tenant_id
    finally:
        await control.close()


@pytest.fixture(autouse=True)
def need_programs(request: pytest.FixtureRequest) -> None:
    if "postgresql" in request.node.name:
        request.getfixturevalue("postgres_server")


def test_what_was_backed_up_comes_back_whatever_happened_since(on: Fairlane, settings: Settings, tmp_path: Path) -> None:
    run(on, "tenant", "create", "acme", "--set", "rpm=5")
    key = run(on, "key", "create", "acme").strip()
    file = tmp_path / "backup"
    assert f"keep {settings.data_dir}/key-pepper with it" in run(on, "backup", str(file))
    assert file.stat().st_mode & 0o077 == 0, "it holds digests of keys"
    run(on, "tenant", "create", "later")
    run(on, "tenant", "delete", "acme")
    refused = on("restore", str(file))
    assert refused.exit_code == 1 and "not empty" in refused.stderr and "--force" in refused.stderr
    assert "later" in run(on, "tenant", "list")
    assert "at revision" in run(on, "restore", str(file), "--force")
    tenants = run(on, "tenant", "list")
    assert "acme" in tenants and "later" not in tenants
    assert asyncio.run(knows(settings, key)) == "acme"
    pepper = Path(settings.data_dir) / "key-pepper"
    kept = pepper.rename(tmp_path / "kept")
    warned = on("restore", str(file), "--force")
    assert warned.exit_code == 0 and "nothing will start on it yet: the keys in this database" in warned.stderr
    assert f"there is none in {pepper}" in warned.stderr and not pepper.exists()
    kept.rename(pepper)
    assert on("restore", str(file), "--force").stderr == ""
    run(on, "tenant", "create", "new")  # sequences and constraints came back, too
    events = run(on, "audit", "list")
    assert "tenant.create" in events and "tenant.delete" not in events
    meddled = "UPDATE audit_event SET actor = 'nobody'"
    with pytest.raises(Exception, match="append only"):
        asyncio.run(execute(sqlalchemy_url(settings), meddled))


def test_a_backup_does_not_replace_a_file_and_a_failed_one_leaves_none(
    on: Fairlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(on, "migrate")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    refused = on("backup", str(taken))
    assert refused.exit_code == 1 and "exists" in refused.stderr and taken.read_text() == "mine"
    nowhere = on("backup", str(tmp_path / "no" / "folder"))
    assert nowhere.exit_code == 1 and "no folder" in nowhere.stderr
    for url in (f"sqlite:///{tmp_path}/none.db", "postgresql://nobody@127.0.0.1:1/none"):
        monkeypatch.setenv("FAIRLANE_DATABASE_URL", url)
        failed = on("backup", str(tmp_path / "none"))
        assert failed.exit_code == 1 and "Traceback" not in failed.output
        assert not [path for path in tmp_path.iterdir() if "none" in path.name]


class Killed(BaseException):
    """The process ends here."""


def test_a_restore_that_is_killed_as_it_replaces_the_database_loses_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, backup = tmp_path / "live.db", tmp_path / "backup"
    url = f"sqlite+aiosqlite:///{database}"
    backing = sqlite3.connect(backup)
    backing.executescript("CREATE TABLE t (x)")
    backing.close()
    _leave_with_a_log(database)
    (tmp_path / ".live.db.restoring-wal").write_text("of a restore that was killed")

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed), restored_sqlite(backup, url):
        patch.setattr(Path, "replace", die)
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT x FROM t").fetchall() == [(1,)]
    with restored_sqlite(backup, url):
        pass
    with closing(sqlite3.connect(database)) as opened:
        assert opened.execute("SELECT x FROM t").fetchall() == []
    assert {path.name for path in tmp_path.iterdir()} == {"live.db", "backup"}
    assert database.stat().st_mode & 0o077 == 0


def test_a_database_that_somebody_has_open_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database, backup = tmp_path / "live.db", tmp_path / "backup"
    monkeypatch.setattr("appliance.db.backup.BUSY_TIMEOUT_MS", 20)
    with closing(sqlite3.connect(backup)) as backing:
        backing.executescript("CREATE TABLE t (x)")
    with closing(sqlite3.connect(database, isolation_level=None)) as opened:
        opened.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1)")
        with pytest.raises(BackupError, match="open"), restored_sqlite(backup, f"sqlite+aiosqlite:///{database}"):
            pass
        assert opened.execute("SELECT x FROM t").fetchall() == [(1,)]
    with closing(sqlite3.connect(database)) as again:
        assert again.execute("SELECT x FROM t").fetchall() == [(1,)]


def _leave_with_a_log(database: Path) -> None:
    """A database whose server was killed: a committed row is in its log alone."""
    code = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode=WAL'); db.execute('CREATE TABLE t (x)'); db.execute('INSERT INTO t VALUES (1)')\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(database)], check=True)
    assert database.with_name(database.name + "-wal").stat().st_size > 0


def test_a_backup_that_does_not_fit_is_refused_and_the_database_left_alone(on: Fairlane, settings: Settings, tmp_path: Path) -> None:
    run(on, "tenant", "create", "acme")
    url = sqlalchemy_url(settings)
    head = asyncio.run(schema_of(url)).head
    asyncio.run(execute(url, "UPDATE alembic_version SET version_num = '9999'"))
    newer = tmp_path / "newer"
    run(on, "backup", str(newer))
    asyncio.run(execute(url, f"UPDATE alembic_version SET version_num = '{head}'"))
    text = tmp_path / "text"
    text.write_text("not a database at all")
    for file, word in ((newer, "9999"), (text, "no backup made by"), (tmp_path / "missing", "can not be read")):
        refused = on("restore", str(file), "--force")
        assert refused.exit_code == 1 and word in refused.stderr, refused.output
        assert "acme" in run(on, "tenant", "list")


def test_a_database_is_not_replaced_under_a_running_server(on: Fairlane, settings: Settings, tmp_path: Path) -> None:
    run(on, "migrate")
    file = tmp_path / "backup"
    run(on, "backup", str(file))
    with only_server_of(Path(settings.data_dir)):
        refused = on("restore", str(file), "--force")
    assert refused.exit_code == 2 and "in use by a running server" in refused.stderr
    if is_sqlite(sqlalchemy_url(settings)):  # from another data directory
        with only_server_on(sqlite_path(sqlalchemy_url(settings))):
            refused = on("restore", str(file), "--force")
        assert refused.exit_code == 2 and "is in use by a running server" in refused.stderr


async def test_connections_of_a_server_elsewhere_are_seen_on_postgresql(on: Fairlane, settings: Settings, tmp_path: Path) -> None:
    if settings.database_url.startswith("sqlite"):
        return
    control = await open_control(settings)
    file = tmp_path / "backup"
    assert (await asyncio.to_thread(on, "backup", str(file))).exit_code == 0, "a backup is taken while servers run"
    refused = await asyncio.to_thread(on, "restore", str(file), "--force")
    assert refused.exit_code == 1 and "running Fairlane processes" in refused.stderr
    await control.close()
    assert (await asyncio.to_thread(on, "restore", str(file), "--force")).exit_code == 0


def test_a_backup_of_the_other_kind_is_told_from_a_damaged_one(fairlane: Fairlane, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"PGDMP\x01\x0e\x00")
    refused = fairlane("restore", str(dump))
    assert refused.exit_code == 1 and "backup of PostgreSQL, and the database is SQLite" in refused.stderr
    run(fairlane, "migrate")
    whole = tmp_path / "whole"
    run(fairlane, "backup", str(whole))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    refused = fairlane("restore", str(damaged), "--force")
    assert refused.exit_code == 1 and "Traceback" not in refused.output
    assert "standard" in run(fairlane, "tier", "list")


def test_a_missing_program_is_told_with_what_to_install(fairlane: Fairlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("FAIRLANE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    refused = fairlane("backup", str(tmp_path / "file"))
    assert refused.exit_code == 1 and "pg_dump is missing" in refused.stderr and "apt install" in refused.stderr


def test_a_backup_of_an_older_version_is_restored_and_migrated(fairlane: Fairlane, tmp_path: Path) -> None:
    run(fairlane, "migrate")
    older = tmp_path / "older"
    run(fairlane, "backup", str(older))
    with sqlite3.connect(older) as database:
        database.execute("UPDATE alembic_version SET version_num = '0001'")
    database.close()
    assert "at revision 0001; next: fairlane migrate" in run(fairlane, "restore", str(older), "--force")


async def schema_of(url: str):
    database = Database(url)
    found = await read_schema(database, Base.metadata)
    await database.close()
    assert found.state is SchemaState.CURRENT
    return found
