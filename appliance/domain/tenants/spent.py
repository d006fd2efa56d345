"""What has been used of budgets, as admission counts it: a rotated key goes on with the use of those before it."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.domain.access.models import ApiKey
from appliance.domain.usage.service import read_spent

type Spent = dict[str, tuple[int, int]]
"""Tokens of the present day and month (UTC), by owner."""


async def read_all_spent(session: AsyncSession, now: datetime) -> tuple[Spent, Spent]:
    """By tenant, and by the meter of each key."""
    rotated = select(ApiKey.id, ApiKey.lineage_id).where(ApiKey.lineage_id.is_not(None))
    meter_of = {key_id: str(lineage_id) for key_id, lineage_id in await session.execute(rotated)}
    return await read_spent(session, "tenant", now), by_meter(await read_spent(session, "key_id", now), meter_of)


def by_meter(by_key: Mapping[str, tuple[int, int]], meter_of: Mapping[str, str]) -> Spent:
    """The use of keys that share a meter, together."""
    sums: Spent = defaultdict(lambda: (0, 0))
    for key_id, (today, this_month) in by_key.items():
        meter_id = meter_of.get(key_id, key_id)
        sums[meter_id] = (sums[meter_id][0] + today, sums[meter_id][1] + this_month)
    return dict(sums)
