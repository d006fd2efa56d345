"""Tables of usage. Tenants and keys are named, not referred to: usage outlives them."""

from datetime import datetime

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime


class _Usage:
    """What a row counts: all requests of a span of time that had the same tenant, key, model, lane and outcome."""

    began_at: Mapped[datetime] = mapped_column(UtcDateTime, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(63), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(40), primary_key=True)
    model: Mapped[str] = mapped_column(String(255), primary_key=True)
    lane: Mapped[str] = mapped_column(String(16), primary_key=True)
    outcome: Mapped[str] = mapped_column(String(16), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    generated_tokens: Mapped[int] = mapped_column(BigInteger)


class UsageMinute(_Usage, Base):
    """By the minute in which requests ended."""

    __tablename__ = "usage_minute"


class UsageHour(_Usage, Base):
    """By the hour in which requests ended."""

    __tablename__ = "usage_hour"


class UsageWriter(Base):
    """The last batch of each process that is in the tables: a batch that comes again is not counted again."""

    __tablename__ = "usage_writer"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    last_batch: Mapped[int] = mapped_column(BigInteger)
