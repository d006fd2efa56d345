"""Facts of the installation that live in the database, one row each; among them the version that snapshots follow."""

from sqlalchemy import Integer, String, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Mapped, mapped_column

from appliance.db.base import Base


class InstallationState(Base):
    """`number` or `text` by name."""

    __tablename__ = "installation_state"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, default=0)
    text: Mapped[str] = mapped_column(String(255), default="")


ACCESS_VERSION = "access_version"
"""Row made by revision 1; grows in the same transaction as every change of tenants, tiers or keys."""


CAPACITY_TPM = "capacity_tpm"
"""Tokens a minute that the engines of the processes which serve, or served last, were measured to do together."""


async def bump_version(session: AsyncSession) -> int:
    """Count up the access version. Its row lock also puts admin writes of several processes in order."""
    raised = (
        update(InstallationState)
        .where(InstallationState.name == ACCESS_VERSION)
        .values(number=InstallationState.number + 1)
        .returning(InstallationState.number)
    )
    return (await session.execute(raised)).scalar_one()


async def take_version_back(session: AsyncSession) -> None:
    """Undo this transaction's `bump_version`: it turned out to change nothing."""
    back = update(InstallationState).where(InstallationState.name == ACCESS_VERSION).values(number=InstallationState.number - 1)
    await session.execute(back)


async def read_version(session: AsyncSession) -> int:
    """The access version."""
    return (await session.execute(select(InstallationState.number).where(InstallationState.name == ACCESS_VERSION))).scalar_one()


async def read_text(session: AsyncSession, name: str) -> str | None:
    """A fact by name; None when it was never written."""
    return (await session.execute(select(InstallationState.text).where(InstallationState.name == name))).scalar_one_or_none()


async def read_capacity_tpm(session: AsyncSession) -> int:
    """Tokens a minute that were measured; 0 where nothing was yet."""
    return int(await read_text(session, CAPACITY_TPM) or 0)


async def write_text(session: AsyncSession, name: str, text: str) -> None:
    """Set a fact."""
    await session.merge(InstallationState(name=name, number=0, text=text))
