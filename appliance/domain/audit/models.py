"""Table of audit events. Triggers in the database refuse to change or delete a row."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime, utc_now


class AuditEvent(Base):
    """One change by an administrator. `before` and `after` hold what differs, never a secret."""

    __tablename__ = "audit_event"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, index=True)
    actor: Mapped[str] = mapped_column(String(100))
    actor_id: Mapped[str] = mapped_column(String(100), default="")
    """Id of the administrator, with a slash that of its token, or of the key."""
    source: Mapped[str] = mapped_column(String(100))
    """Where from: an address, or `cli`."""
    request_id: Mapped[str] = mapped_column(String(40), default="")
    action: Mapped[str] = mapped_column(String(40))
    target: Mapped[str] = mapped_column(String(200), index=True)
    before: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    after: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
