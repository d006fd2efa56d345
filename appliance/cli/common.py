"""What the commands share: options, running on the database, tables, and errors as exit codes (2 usage, 1 failure)."""

import asyncio
import functools
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.backup import BackupError
from appliance.db.revision import SchemaError
from appliance.domain.audit.service import Actor
from appliance.domain.tenants.bootstrap import Store, open_existing, open_store, require_database
from appliance.errors import ApplianceError, Invalid
from appliance.settings import Loaded, Settings, SettingsError, default_database_path, load_settings

SEEN_AT_ONCE = "A running server follows within a quarter of a second."
CONFIG_HELP = "Settings file, TOML or YAML. [FAIRLANE_CONFIG]"


def fails_clearly[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """Turn the appliance's errors into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (SettingsError, Invalid) as error:
            raise click.UsageError(str(error)) from error
        except (SchemaError, BackupError, ApplianceError) as error:
            raise click.ClickException(str(error)) from error

    return run


def store_options[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """The options that find the database; the command gets them as `data_dir`, `database_url`, `config`."""
    for option in (
        click.option("--config", metavar="FILE", help=CONFIG_HELP),
        click.option(
            "--database-url", metavar="URL", help="SQLAlchemy URL; default: SQLite in the data directory. [FAIRLANE_DATABASE_URL]"
        ),
        click.option("--data-dir", metavar="DIR", help="The appliance's data directory; default: var. [FAIRLANE_DATA_DIR]"),
    ):
        command = option(command)
    return command


def load(flags: dict[str, Any], config: str | None) -> Loaded:
    """Settings from flags, this process's environment and the file; warnings go to stderr."""
    loaded = load_settings(flags, os.environ, config)
    warn(loaded.warnings)
    return loaded


def read_database[R](data_dir: str | None, database_url: str | None, config: str | None, work: Callable[[AsyncSession], Awaitable[R]]) -> R:
    """Look at the database; nothing is made or changed. Raises `SchemaError` where there is none."""
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings

    async def run() -> R:
        async with await open_existing(settings) as database, database.read() as session:
            return await work(session)

    return asyncio.run(run())


def run_on_store[R](data_dir: str | None, database_url: str | None, config: str | None, work: Callable[[Store], Awaitable[R]]) -> R:
    """Change the database; a running server follows within 250 ms. Raises `SchemaError` where there is none."""
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    require_database(settings)
    return asyncio.run(_on_store(settings, work))


def make_store_and_run[R](data_dir: str | None, database_url: str | None, config: str | None, work: Callable[[Store], Awaitable[R]]) -> R:
    """The same; a database that is not there is made first."""
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    path = default_database_path(settings)
    is_new = not settings.database_url and not path.exists()

    async def run(store: Store) -> R:
        if is_new:
            click.echo(f"Note: there was no database; made {path} (a server with another data directory does not see it)", err=True)
        return await work(store)

    return asyncio.run(_on_store(settings, run))


async def _on_store[R](settings: Settings, work: Callable[[Store], Awaitable[R]]) -> R:
    store = await open_store(settings)
    async with store.database:
        return await work(store)


def parse_time(option: str, text: str | None) -> datetime | None:
    """A time as ISO 8601 writes it. Raises `click.UsageError`, naming the option."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r} is no time: write it like 2030-01-31T12:00:00Z") from error


def cli_actor() -> Actor:
    """Who runs this command, as the audit names it."""
    try:
        user = getpass.getuser()
    except OSError:
        user = str(os.getuid())  # a container's user without a name
    return Actor(f"cli:{user}", "cli")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for people; wide where the output is no terminal, so that lines stay whole."""
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 240, highlight=False, markup=False).print(table)


def print_json(value: object) -> None:
    """One JSON document for programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def warn(warnings: Sequence[str]) -> None:
    """What a command found worth a second look."""
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)


def compact(value: object) -> str:
    """A table or a number as it fits into a column."""
    return msgspec.json.encode(value).decode() if value else "-"


def in_json(value: object) -> str | None:
    """A field's value; None where there is none."""
    return None if value is None else msgspec.json.encode(value).decode()


def sla_field(item: str) -> tuple[str, Any]:
    """`rpm=600` as a field and its value: JSON where it is JSON, else text. Raises `click.UsageError`."""
    field, equals, value = item.partition("=")
    if not equals:
        raise click.UsageError(f"--set {item!r} is not FIELD=VALUE")
    try:
        return field, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return field, value
