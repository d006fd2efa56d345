"""Reading and writing the tables of serving processes and of their plan."""

from collections.abc import Collection

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.state import InstallationState
from appliance.domain.peers.decisions import NO_PLAN, Member, Plan, Wants, next_plan
from appliance.domain.peers.models import LimitPlan, ServingProcess

PEERS_LOCK_ID = 7_232_782
"""PostgreSQL's advisory lock that puts joining and beating in order; SQLite's writers are in order anyway."""
PLAN_ID = 1


JOINED = "processes_joined"


async def join(session: AsyncSession, process_id: str) -> None:
    """Add a process as the newest member."""
    await _in_order(session)
    counter = await session.get(InstallationState, JOINED) or InstallationState(name=JOINED, number=0)
    counter.number += 1
    session.add_all([counter, ServingProcess(id=process_id, joined=counter.number, beats=0, plan=0, wants={})])
    await session.flush()


async def beat(
    session: AsyncSession, process_id: str, plan_number: int, wants: Wants, capacity_tpm: int, dead: Collection[str]
) -> tuple[list[Member], Plan, bool]:
    """Show a sign of life, which plan it heeds, what it is asked for and can do, remove the dead, make the next plan where it is time.

    All members, the plan that holds now, and whether the process had to join again because others had removed it.
    """
    await _in_order(session)
    signs = {"beats": ServingProcess.beats + 1, "plan": plan_number, "wants": dict(wants), "capacity_tpm": capacity_tpm}
    found = await session.execute(
        update(ServingProcess).where(ServingProcess.id == process_id).values(**signs).returning(ServingProcess.id)
    )
    was_removed = found.first() is None
    if was_removed:
        await join(session, process_id)
    if dead:
        await session.execute(delete(ServingProcess).where(ServingProcess.id.in_(dead)))
    columns = [getattr(ServingProcess, name) for name in ("id", "joined", "beats", "plan", "wants", "capacity_tpm")]
    members = [Member(*row) for row in await session.execute(select(*columns))]
    plan = await _read_plan(session)
    following = next_plan(plan, members)
    if following is not None:
        await session.merge(
            LimitPlan(
                id=PLAN_ID,
                number=following.number,
                members=list(following.members),
                bounds={tenant_id: list(bounds) for tenant_id, bounds in following.bounds.items()},
            )
        )
    return members, following or plan, was_removed


async def leave(session: AsyncSession, process_id: str) -> None:
    """Remove a process: its share is free at once."""
    await session.execute(delete(ServingProcess).where(ServingProcess.id == process_id))


async def _read_plan(session: AsyncSession) -> Plan:
    row = await session.get(LimitPlan, PLAN_ID)
    if row is None:
        return NO_PLAN
    return Plan(row.number, tuple(row.members), {tenant_id: tuple(bounds) for tenant_id, bounds in row.bounds.items()})


async def _in_order(session: AsyncSession) -> None:
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(PEERS_LOCK_ID)))
