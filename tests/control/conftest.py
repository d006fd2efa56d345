"""Databases for the control plane's tests: real SQLite files always, a real PostgreSQL where there is one."""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest
from click.testing import CliRunner, Result

from appliance.cli.main import cli
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.settings import Settings
from tests.control.postgres import running_postgres

ADMIN_TOKEN = "admin-token-for-tests"
API_KEY = "api-key-for-tests-0001"

type Fairlane = Callable[..., Result]
"""A command line, run in this process on a data directory of its own."""

_names = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
async def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'test.db'}"
        return
    server: str = request.getfixturevalue("postgres_server")
    name = f"fairlane_test_{next(_names)}"
    admin = await asyncpg.connect(f"{server}/postgres")
    try:
        await admin.execute(f"DROP DATABASE IF EXISTS {name}")
        await admin.execute(f"CREATE DATABASE {name}")
        yield f"{server}/{name}"
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


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
