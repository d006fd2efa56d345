"""Table of API keys."""

from datetime import datetime

from sqlalchemy import JSON, BigInteger, ForeignKey, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime, utc_now


class ApiKey(Base):
    """A key of a tenant. The key itself is not here: only its digest, and what may be shown of it."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    prefix: Mapped[str] = mapped_column(String(16))
    last4: Mapped[str] = mapped_column(String(4))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    scopes: Mapped[list[str]] = mapped_column(JSON)
    models: Mapped[list[str]] = mapped_column(JSON, default=list)
    """Models it may use; empty means all."""
    lanes: Mapped[list[str]] = mapped_column(JSON, default=list)
    """Lanes it may ask for; empty means the tenant's."""
    tpm: Mapped[int | None] = mapped_column(BigInteger)
    rpm: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_month: Mapped[int | None] = mapped_column(BigInteger)
    """Its own ceilings beneath the tenant's; None means only the tenant's."""
    lineage_id: Mapped[str | None] = mapped_column(String(40))
    """The first key of its row of rotations, whose counts it continues; None: it is that one itself."""
    granted_by: Mapped[str | None] = mapped_column(String(100))
    """The administrator (`ADMIN`), or the token (`ADMIN/TOKEN`), that gave it its scopes of administration and whose end is theirs."""
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    grace_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)

    __mapper_args__ = {"version_id_col": version}
