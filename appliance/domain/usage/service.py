"""Reading and writing the tables of usage."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import Base
from appliance.domain.usage.decisions import Batch, Counts, UsageKey, by_hour
from appliance.domain.usage.models import UsageHour, UsageMinute, UsageWriter

Resolution = Literal["minute", "hour"]
TABLES: dict[Resolution, type[UsageMinute | UsageHour]] = {"minute": UsageMinute, "hour": UsageHour}
MINUTES_KEPT = timedelta(days=14)
"""Rows by minute are removed after so long; rows by hour stay."""
KEYS = ("began_at", "tenant", "key_id", "model", "lane", "outcome")
SUMS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")


async def add_batch(session: AsyncSession, batch: Batch) -> bool:
    """Count a batch in both tables, in the caller's transaction. False where it had been counted already."""
    writer = await session.get(UsageWriter, batch.writer, with_for_update=True)
    if writer is None:
        session.add(UsageWriter(id=batch.writer, last_batch=batch.number))
    elif writer.last_batch >= batch.number:
        return False
    else:
        writer.last_batch = batch.number
    await _upsert(session, UsageMinute, batch.rows)
    await _upsert(session, UsageHour, by_hour(batch.rows))
    return True


async def remove_old_minutes(session: AsyncSession, now: datetime) -> None:
    """Forget rows by minute past their time."""
    await session.execute(delete(UsageMinute).where(UsageMinute.began_at < now - MINUTES_KEPT))


async def read_usage(
    session: AsyncSession, resolution: Resolution, begin: datetime, end: datetime, tenant: str | None, limit: int
) -> list[UsageMinute | UsageHour]:
    """Rows that began in a span, oldest first, at most so many."""
    table = TABLES[resolution]
    rows = select(table).where(table.began_at >= begin, table.began_at < end)
    if tenant is not None:
        rows = rows.where(table.tenant == tenant)
    return list((await session.scalars(rows.order_by(*(getattr(table, name) for name in KEYS)).limit(limit))).all())


async def group_usage(
    session: AsyncSession, begin: datetime, end: datetime, tenant: str | None, by: Sequence[str]
) -> list[tuple[tuple[Any, ...], Counts]]:
    """Sums over the hours that began in a span, by some of `KEYS`, in their order."""
    keys = [getattr(UsageHour, name) for name in by]
    sums = [func.sum(getattr(UsageHour, name)) for name in SUMS]
    rows = select(*keys, *sums).where(UsageHour.began_at >= begin, UsageHour.began_at < end).group_by(*keys).order_by(*keys)
    if tenant is not None:
        rows = rows.where(UsageHour.tenant == tenant)
    found = await session.execute(rows)
    return [(tuple(row[: len(keys)]), Counts(*(int(number or 0) for number in row[len(keys) :]))) for row in found]


async def read_spent(session: AsyncSession, owner: Literal["tenant", "key_id"], now: datetime) -> dict[str, tuple[int, int]]:
    """Tokens used of this day and of this month (UTC), by tenant or key; not what a clock that was ahead booked later than that."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    first = today.replace(day=1)
    column: ColumnElement[str] = getattr(UsageHour, owner)

    async def between(begin: datetime, end: datetime) -> Mapping[str, int]:
        tokens = func.sum(UsageHour.prompt_tokens + UsageHour.generated_tokens)
        span = (UsageHour.began_at >= begin, UsageHour.began_at < end)
        found = await session.execute(select(column, tokens).where(*span).group_by(column))
        return {name: int(total) for name, total in found}

    of_day = await between(today, today + timedelta(days=1))
    of_month = await between(first, (first + timedelta(days=32)).replace(day=1))
    return {name: (of_day.get(name, 0), total) for name, total in of_month.items()}


async def _upsert(session: AsyncSession, table: type[Base], rows: list[tuple[UsageKey, Counts]]) -> None:
    """Add counts to the rows there are, or begin rows; in order of their keys, so that two processes never wait for each other."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    sums = {name: getattr(table, name) + statement.excluded[name] for name in SUMS}
    values = [_columns(key, counts) for key, counts in sorted(rows, key=lambda row: msgspec.structs.astuple(row[0]))]
    if values:
        await session.execute(statement.on_conflict_do_update(index_elements=KEYS, set_=sums), values)


def _columns(key: UsageKey, counts: Counts) -> dict[str, Any]:
    shared = {name: getattr(key, name) for name in KEYS[1:]}
    return {"began_at": datetime.fromtimestamp(key.minute, UTC), **shared, **msgspec.structs.asdict(counts)}
