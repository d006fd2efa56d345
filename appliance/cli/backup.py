"""`fairlane backup` and `fairlane restore`: the database as one file."""

import asyncio
import contextlib
from pathlib import Path

import click
from sqlalchemy import text

from appliance.cli.common import fails_clearly, load, store_options
from appliance.data_lock import only_server_of, only_server_on
from appliance.db.backup import (
    BackupError,
    back_up,
    check_backup,
    is_sqlite,
    postgres_backup_revision,
    restore_postgres,
    restored_sqlite,
    sqlite_path,
)
from appliance.db.base import Base
from appliance.db.database import APPLICATION, Database
from appliance.db.revision import Schema, SchemaError, SchemaState, decide_schema, known_revisions, read_schema, refuse_unless_current
from appliance.domain.tenants.bootstrap import make_data_dir, require_database
from appliance.domain.tenants.pepper import pepper_fault, pepper_path
from appliance.settings import Settings, sqlalchemy_url


@click.command("backup", short_help="Copy the database to a file.")
@click.argument("file", type=click.Path(path_type=Path))
@store_options
@fails_clearly
def backup_command(file: Path, data_dir: str | None, database_url: str | None, config: str | None) -> None:
    """Write the database to the new FILE, consistent, also while a server runs.

    Digests of keys only fit the pepper they were made with: keep the data directory's `key-pepper` (or FAIRLANE_KEY_PEPPER), too.
    """
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    require_database(settings)
    back_up(sqlalchemy_url(settings), file)
    pepper = "the value of FAIRLANE_KEY_PEPPER" if settings.key_pepper else str(pepper_path(settings))
    click.echo(f"the database was written to {file}; keep {pepper} with it: without it no key of the backup is valid")


@click.command("restore", short_help="Put a backup in the database's place.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace a database that has something in it.")
@store_options
@fails_clearly
def restore_command(file: Path, force: bool, data_dir: str | None, database_url: str | None, config: str | None) -> None:
    """Fill the database from FILE, all of it or nothing. Servers on it must be stopped.

    A database with something in it is only replaced with --force. A backup of an older version is migrated afterwards by
    `fairlane migrate`; one of a newer version is refused.
    """
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    folder = make_data_dir(settings)
    url = sqlalchemy_url(settings)
    with only_server_of(folder), only_server_on(sqlite_path(url)) if is_sqlite(url) else contextlib.nullcontext():
        check_backup(file, url)
        present = asyncio.run(_schema(url)) if not is_sqlite(url) or sqlite_path(url).exists() else None
        is_empty = present is None or present.state is SchemaState.EMPTY
        if not is_empty and not force:
            raise BackupError("the database is not empty: --force replaces it, back it up first")
        found = _restore(file, url)
        fault = asyncio.run(_pepper_fault(settings))
    behind = "; next: fairlane migrate" if found.state is SchemaState.BEHIND else ""
    click.echo(f"the database is as in {file}, at revision {found.revision}{behind}")
    if fault:
        click.echo(f"Warning: nothing will start on it yet: {fault}", err=True)


async def _pepper_fault(settings: Settings) -> str | None:
    async with Database(sqlalchemy_url(settings)) as database, database.read() as session:
        return await pepper_fault(session, settings)


def _restore(file: Path, url: str) -> Schema:
    """Restore, after a look at the backup's revision: one that we can not run on is not put in place."""
    if is_sqlite(url):
        with restored_sqlite(file, url) as draft:
            found = asyncio.run(_schema(draft))
            _refuse_unusable(found)
        return found
    revision = postgres_backup_revision(file)
    _refuse_unusable(decide_schema((revision,) if revision else (), known_revisions(), (), has_tables=True))
    asyncio.run(_refuse_while_used(url))
    restore_postgres(file, url)
    return asyncio.run(_schema(url))


def _refuse_unusable(schema: Schema) -> None:
    """A backup of an older version is fine: `fairlane migrate` brings it on."""
    if schema.state is not SchemaState.BEHIND:
        try:
            refuse_unless_current(schema)
        except SchemaError as error:
            raise BackupError(f"the backup can not be used: {error}".replace("the database is", "it is")) from error


async def _refuse_while_used(url: str) -> None:
    """Other Fairlane processes on a PostgreSQL database, on whatever machine, would go on with what they have read."""
    others = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = :name "
                  "AND pid <> pg_backend_pid()")  # fmt: skip
    async with Database(url) as database, database.read() as session:
        number = (await session.execute(others, {"name": APPLICATION})).scalar_one()
    if number:
        raise BackupError(f"{number} connections of running Fairlane processes are open on this database: stop them first")


async def _schema(url: str) -> Schema:
    async with Database(url) as database:
        return await read_schema(database, Base.metadata)
