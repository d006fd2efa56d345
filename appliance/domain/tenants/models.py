"""Table of tenants."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime, utc_now


class Tenant(Base):
    """A customer of the appliance. The slug never changes: metrics, cache salts and logs carry it."""

    __tablename__ = "tenant"
    __table_args__ = (CheckConstraint("status IN ('active', 'suspended', 'deleted')", name="status_known"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    slug: Mapped[str] = mapped_column(String(63), unique=True)
    name: Mapped[str] = mapped_column(String(200))
    status: Mapped[str] = mapped_column(String(16), default="active")
    tier_id: Mapped[int] = mapped_column(ForeignKey("sla_tier.id", ondelete="RESTRICT"), index=True)
    overrides: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    """Fields of `slas.decisions.Sla` that differ from the tier's."""
    trust_group: Mapped[str] = mapped_column(String(63), default="")
    """Tenants of one group share cached prefixes; empty means alone."""
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, onupdate=utc_now)

    __mapper_args__ = {"version_id_col": version}
