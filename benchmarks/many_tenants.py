"""A database of many tenants, each with a key, and what a snapshot of them costs."""

import time
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import insert

from appliance.db.state import bump_version
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Scope
from appliance.domain.audit.service import Actor
from appliance.domain.slas.service import find_tier
from appliance.domain.tenants.bootstrap import Store, open_store
from appliance.domain.tenants.models import Tenant
from appliance.domain.tenants.service import DatabaseSource, update_tenant
from appliance.settings import Settings

ACTOR = Actor("benchmark", "benchmark")
OVERRIDES_EVERY = 10
"""One tenant of so many differs from its tier."""


@dataclass(frozen=True, slots=True)
class Reloads:
    """Seconds that reading a snapshot takes."""

    cold_s: float
    """With nothing read before."""
    changed_s: float
    """After one tenant changed."""


def slug_of(number: int) -> str:
    """In the order of the list page."""
    return f"customer-{number:05d}"


def tenant_rows(number: int, tier_id: int) -> list[dict[str, object]]:
    """So many tenants as rows of the table."""
    return [
        {
            "id": 1_000 + n,
            "slug": slug_of(n),
            "name": f"Customer {n}",
            "tier_id": tier_id,
            "overrides": {} if n % OVERRIDES_EVERY else {"rpm": 600 + n, "max_concurrency": 8},
        }
        for n in range(number)
    ]


def key_rows(number: int) -> list[dict[str, object]]:
    """A key of each tenant; nobody knows the keys themselves."""
    return [
        {
            "id": f"key_{n:016x}",
            "tenant_id": 1_000 + n,
            "name": "benchmark",
            "prefix": "fl-",
            "last4": f"{n % 10_000:04d}",
            "digest": sha256(f"key {n}".encode()).digest(),
            "scopes": [Scope.INFERENCE.value],
        }
        for n in range(number)
    ]


async def fill(store: Store, number: int) -> None:
    """Add so many tenants under the tier `interactive`."""
    async with store.database.write() as session:
        await bump_version(session)
        tier = await find_tier(session, "interactive")
        await session.execute(insert(Tenant), tenant_rows(number, tier.id))
        await session.execute(insert(ApiKey), key_rows(number))


async def reloads(store: Store) -> Reloads:
    """Read a snapshot, change a tenant, read it again."""
    source = DatabaseSource(store.database, store.pepper, None)
    began_s = time.perf_counter()
    before = await source.load()
    cold_s = time.perf_counter() - began_s
    async with store.database.write() as session:
        await update_tenant(session, slug_of(7), {"overrides": {"rpm": 777}}, None, ACTOR)
    began_s = time.perf_counter()
    after = await source.load()
    assert before.policies[slug_of(7)].rpm != after.policies[slug_of(7)].rpm == 777
    return Reloads(cold_s, time.perf_counter() - began_s)


async def prepare(settings: Settings, number: int) -> Reloads:
    """Make the database of these settings, fill it, and time its snapshots."""
    store = await open_store(settings)
    try:
        await fill(store, number)
        return await reloads(store)
    finally:
        await store.database.close()
