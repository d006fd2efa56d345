"""Tables of the serving processes on a database, and of the plan by which they divide limits."""

from sqlalchemy import JSON, BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base


class ServingProcess(Base):
    """A process that serves, or did until lately. Others tell its death by `beats`, which stands still: no clocks are compared."""

    __tablename__ = "serving_process"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    joined: Mapped[int] = mapped_column(Integer)
    """Number in the order of joining, never used twice."""
    beats: Mapped[int] = mapped_column(BigInteger, default=0)
    plan: Mapped[int] = mapped_column(BigInteger, default=0)
    """Number of the newest plan that it heeds."""
    wants: Mapped[dict[str, float]] = mapped_column(JSON, default=dict)
    """Demand of tenants there."""
    capacity_tpm: Mapped[int] = mapped_column(BigInteger, default=0)
    """Tokens a minute that its engines were measured to do; 0: not yet."""


class LimitPlan(Base):
    """The one plan that holds."""

    __tablename__ = "limit_plan"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    members: Mapped[list[str]] = mapped_column(JSON)
    bounds: Mapped[dict[str, list[int]]] = mapped_column(JSON)
