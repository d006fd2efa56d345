"""Declarative base of all models, with a full naming convention, so that migrations can name every constraint."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Each domain's `models.py` derives its tables from this."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite forgets the zone, so it is put back on reading. Naive values are refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        assert value is None or value.tzinfo is not None, "naive time"
        return value if value is None else value.astimezone(UTC)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return value if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


LAST_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The last whole second that a `datetime` has."""


def utc_of(wall_s: float) -> datetime:
    """Seconds of the wall clock as a time; those past the last one there is (a float rounds the last microseconds up) as that."""
    return datetime.fromtimestamp(min(wall_s, LAST_S), UTC)


def utc_now() -> datetime:
    """The wall clock, for columns that say when a row was made or changed."""
    return datetime.now(UTC)
