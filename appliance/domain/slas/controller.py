"""`GET /api/v1/tiers` and `/tiers/{name}`. Changing a tier concerns its tenants: `tenants/controller.py`."""

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from appliance.db.database import Database
from appliance.domain.slas.decisions import Sla
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import get_tier, list_tiers, sla_of
from appliance.problems import problem_responses
from appliance.route_access import READS


class TierView(msgspec.Struct, frozen=True, kw_only=True):
    """A tier as the API shows it."""

    name: str
    version: int
    sla: Sla
    warnings: list[str] = []
    """Of a change: accepted, and yet worth a second look."""


class TierList(msgspec.Struct, frozen=True):
    tiers: list[TierView]


def tier_view(row: SlaTier) -> TierView:
    return TierView(name=row.name, version=row.version, sla=sla_of(row))


class TierController(Controller):
    """SLA tiers."""

    path = "/tiers"
    tags = ["SLA tiers"]

    @get(
        summary="List tiers",
        description="Every SLA tier with all its fields; null means no limit or no target.",
        opt=READS,
        responses=problem_responses(401, 403, 503),
    )
    async def list(self, database: NamedDependency[Database]) -> TierList:
        async with database.read() as session:
            return TierList([tier_view(row) for row in await list_tiers(session)])

    @get("/{name:str}", summary="Show a tier", opt=READS, responses=problem_responses(401, 403, 404, 503))
    async def show(self, name: FromPath[str], database: NamedDependency[Database]) -> TierView:
        """A tier with all its fields."""
        async with database.read() as session:
            return tier_view(await get_tier(session, name))
