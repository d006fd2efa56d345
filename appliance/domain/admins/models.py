"""Tables of administrators, their sessions and their tokens. No secret is in them, only digests and slow hashes."""

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base, UtcDateTime, utc_now

ROLE_KNOWN = "role IN ('viewer', 'operator', 'owner')"


class AdminUser(Base):
    """An administrator. The name never changes: the audit carries it."""

    __tablename__ = "admin_user"
    __table_args__ = (CheckConstraint(ROLE_KNOWN, name="role_known"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    password_hash: Mapped[str | None] = mapped_column(String(255))
    """Argon2id with its parameters; None: tokens only, no login."""
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    version: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now, onupdate=utc_now)

    __mapper_args__ = {"version_id_col": version}


class AdminSession(Base):
    """A browser that logged in, by the digest of its cookie."""

    __tablename__ = "admin_session"

    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    admin_id: Mapped[str] = mapped_column(ForeignKey("admin_user.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AdminToken(Base):
    """A token for programs. It may do what both its role and its administrator's role allow."""

    __tablename__ = "admin_token"
    __table_args__ = (CheckConstraint(ROLE_KNOWN, name="role_known"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    admin_id: Mapped[str] = mapped_column(ForeignKey("admin_user.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[str] = mapped_column(String(16))
    prefix: Mapped[str] = mapped_column(String(16))
    last4: Mapped[str] = mapped_column(String(4))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, default=utc_now)
