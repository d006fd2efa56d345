"""Table of the serving processes on a database."""

from sqlalchemy import BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base


class ServingProcess(Base):
    """A process that serves, or did until lately. Others tell its death by `beats`, which stands still: no clocks are compared."""

    __tablename__ = "serving_process"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    joined: Mapped[int] = mapped_column(Integer)
    """Number in the order of joining, never used twice."""
    beats: Mapped[int] = mapped_column(BigInteger, default=0)
    knows: Mapped[int] = mapped_column(Integer, default=0)
    """The newest member it divides limits by."""
