"""Databases for the control plane's tests: real SQLite files always, a real PostgreSQL where there is one."""

import asyncio
import contextlib
import itertools
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from appliance.cli.main import cli
from appliance.db.revision import migrate
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.settings import Settings
from tests.control.postgres import running_postgres

ADMIN_TOKEN = "admin-token-for-tests"
TEMPLATE = "fairlane_test_migrated"
COPY = "STRATEGY FILE_COPY"
"""A quarter of the time that PostgreSQL (15 and later) takes by default, which is to log every page."""
API_KEY = "api-key-for-tests-0001"

type Fairlane = Callable[..., Result]
"""A command line, run in this process on a data directory of its own."""

_names = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our schema and nothing in it, to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("migrated") / "template.db"
    asyncio.run(migrate(f"sqlite+aiosqlite:///{path}"))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=DELETE")  # one file
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    """The name of such a database."""

    async def make() -> None:
        await _say(postgres_server, f"DROP DATABASE IF EXISTS {TEMPLATE}", f"CREATE DATABASE {TEMPLATE}")
        await migrate(f"{postgres_server.replace('postgresql', 'postgresql+asyncpg', 1)}/{TEMPLATE}")

    asyncio.run(make())
    return TEMPLATE


async def _say(server: str, *statements: str) -> None:
    admin = await asyncpg.connect(f"{server}/postgres")
    try:
        for statement in statements:
            await admin.execute(statement)
    finally:
        await admin.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_or_migrated(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The kind of database, and what to copy: nothing, or for an open control plane what a migration leaves."""
    copied = f"migrated_{'sqlite' if request.param == 'sqlite' else 'postgres'}"
    return request.param, str(request.getfixturevalue(copied)) if "control" in request.fixturenames else ""


@pytest.fixture
async def database_url(request: pytest.FixtureRequest, empty_or_migrated: tuple[str, str], tmp_path: Path) -> AsyncIterator[str]:
    """URL of a database of each kind."""
    kind, template = empty_or_migrated
    if kind == "sqlite":
        path = tmp_path / "test.db"
        if template:
            shutil.copy(template, path)
        yield f"sqlite:///{path}"
        return
    server: str = request.getfixturevalue("postgres_server")
    name = f"fairlane_test_{next(_names)}"
    await _say(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} {COPY}" + (f" TEMPLATE {template}" if template else ""))
    yield f"{server}/{name}"
    await _say(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(data_dir=str(tmp_path / "var"), database_url=database_url, bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN)


@pytest.fixture
async def control(settings: Settings) -> AsyncIterator[Control]:
    """An open control plane on each kind of database."""
    opened = await open_control(settings)
    yield opened
    await opened.close()


@pytest.fixture
def fairlane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fairlane:
    """Runs a command line on a data directory of its own."""
    for name in [name for name in os.environ if name.startswith("FAIRLANE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FAIRLANE_DATA_DIR", str(tmp_path))

    def run(*arguments: str, given: str | None = None) -> Result:
        result = CliRunner().invoke(cli, arguments, prog_name="fairlane", input=given)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run
