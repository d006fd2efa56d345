"""Alembic's entry: uses the connection it is handed (`fairlane migrate`), else opens the settings' database (`alembic ...`)."""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection

from appliance.db.base import Base
from appliance.db.database import Database
from appliance.domain.models import MODELS
from appliance.settings import load_settings, sqlalchemy_url

assert all(model.metadata is Base.metadata for model in MODELS)


def run(connection: Connection) -> None:
    """Migrate on an open connection; the caller's transaction makes the whole upgrade one piece, on SQLite too."""
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_on_settings() -> None:
    database = Database(sqlalchemy_url(load_settings({}, os.environ).settings), enforce_foreign_keys=False)
    async with database.connect() as connection:
        await connection.run_sync(run)
    await database.close()


handed = context.config.attributes.get("connection")
if handed is not None:
    run(handed)
else:
    asyncio.run(run_on_settings())
