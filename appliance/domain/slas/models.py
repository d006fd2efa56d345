"""Table of SLA tiers."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, CheckConstraint, Float, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime, utc_now


class SlaTier(Base):
    """A reusable SLA. Columns are the fields of `decisions.Sla`, which says what each means."""

    __tablename__ = "sla_tier"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight_positive"),
        CheckConstraint("kv_reserve >= 0 AND kv_reserve <= kv_cap AND kv_cap <= 1", name="kv_ratios"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    weight: Mapped[float] = mapped_column(Float)
    priority: Mapped[int] = mapped_column(Integer)
    lanes: Mapped[list[str]] = mapped_column(JSON)
    default_lane: Mapped[str] = mapped_column(String(16))
    ttft_ms: Mapped[Any] = mapped_column(JSON)
    tpot_ms: Mapped[Any] = mapped_column(JSON)
    objective: Mapped[Any] = mapped_column(JSON)
    committed_tpm: Mapped[int | None] = mapped_column(BigInteger)
    tpm: Mapped[int | None] = mapped_column(BigInteger)
    rpm: Mapped[int | None] = mapped_column(BigInteger)
    max_concurrency: Mapped[int | None] = mapped_column(BigInteger)
    max_queued: Mapped[int | None] = mapped_column(BigInteger)
    queue_ttl_ms: Mapped[int | None] = mapped_column(BigInteger)
    max_context: Mapped[int | None] = mapped_column(BigInteger)
    output_caps: Mapped[Any] = mapped_column(JSON)
    output_cap_mode: Mapped[str] = mapped_column(String(8))
    kv_reserve: Mapped[float] = mapped_column(Float)
    kv_cap: Mapped[float] = mapped_column(Float)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_month: Mapped[int | None] = mapped_column(BigInteger)
    shadow_mode: Mapped[bool] = mapped_column(Boolean)
    version: Mapped[int] = mapped_column(Integer, default=1)
    """Optimistic lock: an update names the version it read."""
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Removed: no tenant is under it any more but removed ones."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, onupdate=utc_now)

    __mapper_args__ = {"version_id_col": version}
