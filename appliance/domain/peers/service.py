"""Reading and writing the table of serving processes."""

from collections.abc import Collection

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.state import InstallationState
from appliance.domain.peers.decisions import Member
from appliance.domain.peers.models import ServingProcess

PEERS_LOCK_ID = 7_232_782
"""PostgreSQL's advisory lock that puts joining and beating in order; SQLite's writers are in order anyway."""


JOINED = "processes_joined"


async def join(session: AsyncSession, process_id: str) -> None:
    """Add a process as the newest member."""
    await _in_order(session)
    counter = await session.get(InstallationState, JOINED) or InstallationState(name=JOINED, number=0)
    counter.number += 1  # never used twice, else "knows" of an earlier member would count for a later one
    session.add_all([counter, ServingProcess(id=process_id, joined=counter.number, beats=0, knows=0)])
    await session.flush()


async def beat(session: AsyncSession, process_id: str, knows: int, dead: Collection[str]) -> list[Member]:
    """Show a sign of life and which newest member it divides by, remove the dead; all members. It joins again where it was removed."""
    await _in_order(session)
    signs = {"beats": ServingProcess.beats + 1, "knows": knows}
    found = await session.execute(
        update(ServingProcess).where(ServingProcess.id == process_id).values(**signs).returning(ServingProcess.id)
    )
    if found.first() is None:
        await join(session, process_id)
    if dead:
        await session.execute(delete(ServingProcess).where(ServingProcess.id.in_(dead)))
    rows = await session.execute(select(ServingProcess.id, ServingProcess.joined, ServingProcess.beats, ServingProcess.knows))
    return [Member(*row) for row in rows]


async def leave(session: AsyncSession, process_id: str) -> None:
    """Remove a process: its share is free at once."""
    await session.execute(delete(ServingProcess).where(ServingProcess.id == process_id))


async def _in_order(session: AsyncSession) -> None:
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(PEERS_LOCK_ID)))
