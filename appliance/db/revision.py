"""Which schema a database has, whether we can run on it, and how to bring it to ours.

SchemaError              the database is half-migrated, behind or newer; the message says which and what to do
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect, text
from sqlalchemy.exc import DBAPIError

from appliance.db.database import Database
from appliance.packed import project_path

MIGRATIONS_DIR = project_path("migrations")
POSTGRES_LOCK_ID = 7_232_781
"""Advisory lock held while migrating, so that two processes starting at once do it one after the other."""
HEAD = "head"
BASE = "base"


class SchemaError(Exception):
    """The appliance can not run on this database as it is."""


class SchemaState(StrEnum):
    EMPTY = "empty"
    CURRENT = "current"
    BEHIND = "behind"
    NEWER = "newer"
    HALF_MIGRATED = "half-migrated"


@dataclass(frozen=True, slots=True)
class Schema:
    """What was found: `revision` is the database's own (None: unstamped), `detail` says why it is half-migrated."""

    state: SchemaState
    revision: str | None
    head: str
    detail: str = ""


def decide_schema(stamps: tuple[str, ...], known: tuple[str, ...], missing: tuple[str, ...], has_tables: bool) -> Schema:
    """The state of a database from its revision stamps, our revisions (newest first) and what our models lack there.

    `missing` lists tables and columns of our models that the database does not have, `has_tables` whether it has any.
    """
    head = known[0]
    if len(stamps) > 1:
        return Schema(SchemaState.HALF_MIGRATED, None, head, f"it carries several revisions: {', '.join(stamps)}")
    if not stamps:
        if has_tables:
            return Schema(SchemaState.HALF_MIGRATED, None, head, "it has Fairlane's tables but no revision")
        return Schema(SchemaState.EMPTY, None, head)
    stamp = stamps[0]
    if stamp not in known:
        return Schema(SchemaState.NEWER, stamp, head)
    if stamp != head:
        return Schema(SchemaState.BEHIND, stamp, head)
    if missing:
        return Schema(SchemaState.HALF_MIGRATED, stamp, head, f"it lacks {', '.join(missing)}")
    return Schema(SchemaState.CURRENT, stamp, head)


def refuse_unless_current(schema: Schema) -> None:
    """Raises `SchemaError` unless the database has exactly our schema."""
    remedies = {
        SchemaState.EMPTY: "the database is empty: run `fairlane migrate`",
        SchemaState.BEHIND: f"the database is at revision {schema.revision}, this version needs {schema.head}: back it up and run "
        "`fairlane migrate`",
        SchemaState.NEWER: f"the database is at revision {schema.revision}, which this version (newest: {schema.head}) does not know: "
        "start the newer Fairlane that migrated it, or restore a backup",
        SchemaState.HALF_MIGRATED: f"the database is half-migrated: {schema.detail}; restore a backup, or point FAIRLANE_DATABASE_URL "
        "at another database",
    }
    if schema.state in remedies:
        raise SchemaError(remedies[schema.state])


def known_revisions() -> tuple[str, ...]:
    """Our revisions, newest first."""
    return tuple(revision.revision for revision in ScriptDirectory.from_config(_config()).walk_revisions())


async def read_schema(database: Database, metadata: MetaData) -> Schema:
    """Compare a database with our revisions and models."""
    known = known_revisions()

    def look(connection: Connection) -> Schema:
        _wait_for_migration(connection, "pg_advisory_xact_lock_shared")  # else we might see half of what another process commits
        inspector = inspect(connection)
        there = {name: {column["name"] for column in inspector.get_columns(name)} for name in inspector.get_table_names()}
        missing = [name for name in metadata.tables if name not in there]
        for name, table in metadata.tables.items():
            missing += [f"{name}.{column.name}" for column in table.columns if name in there and column.name not in there[name]]
        stamps = MigrationContext.configure(connection).get_current_heads()
        return decide_schema(tuple(stamps), known, tuple(missing), any(name in there for name in metadata.tables))

    async with database.read() as session:
        return await (await session.connection()).run_sync(look)


async def migrate(url: str, target: str = HEAD) -> None:
    """Bring a database to a revision in one transaction: all of it or nothing. Down only for developers and tests.

    Raises `SchemaError` when a statement fails, `Unavailable` when the database does not answer.
    """
    database = Database(url, enforce_foreign_keys=False)
    run: Callable[[Config, str], None] = command.upgrade if target == HEAD else command.downgrade

    def step(connection: Connection) -> None:
        _wait_for_migration(connection, "pg_advisory_xact_lock")
        config = _config()
        config.attributes["connection"] = connection
        run(config, target)
        if connection.dialect.name == "sqlite":
            broken = connection.execute(text("PRAGMA foreign_key_check")).all()
            assert not broken, f"a migration left dangling references: {broken[:3]}"

    try:
        async with database.connect() as connection:
            await connection.run_sync(step)
    except DBAPIError as error:
        raise SchemaError(f"the migration failed and nothing was changed: {str(error).partition(chr(10))[0]}") from error
    finally:
        await database.close()


def _wait_for_migration(connection: Connection, lock: str) -> None:
    """Hold a lock until the transaction's end; SQLite needs none, its transactions see one state and write one at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT {lock}(:id)"), {"id": POSTGRES_LOCK_ID})


def _config() -> Config:
    if not (MIGRATIONS_DIR / "env.py").exists():
        raise SchemaError(f"the migrations are missing: {MIGRATIONS_DIR} does not exist beside the package")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIR))
    return config
