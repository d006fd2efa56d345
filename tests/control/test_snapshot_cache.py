"""A snapshot that is read again looks only at rows that moved, and is the same as one read from nothing."""

import random
from datetime import UTC, datetime

from appliance.domain.access.principal import Limits
from appliance.domain.access.service import KeySpec
from appliance.domain.audit.service import Actor
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.key_service import create_tenant_key, revoke_tenant_key, update_tenant_key
from appliance.domain.tenants.service import DatabaseSource, create_tenant, delete_tenant, update_tenant
from appliance.domain.tenants.tier_service import update_tier

ACTOR = Actor("test", "test")


async def change_something(control: Control, rng: random.Random, slugs: list[str], keys: list[tuple[str, str]]) -> None:
    """One change of any kind by an administrator."""
    store = control.store
    async with store.database.write() as session:
        match rng.choice(["tenant", "tenant", "key", "key", "override", "suspend", "tier", "limit", "revoke", "delete"]):
            case "tenant":
                slug = f"t{rng.randrange(10**9)}"
                await create_tenant(session, slug=slug, name=slug, tier="standard", overrides={}, actor=ACTOR)
                slugs.append(slug)
            case "key" if slugs:
                slug = rng.choice(slugs)
                row, _ = await create_tenant_key(session, slug, KeySpec("k", limits=Limits(rpm=5)), store.pepper, ACTOR)
                keys.append((slug, row.id))
            case "override" if slugs:
                await update_tenant(session, rng.choice(slugs), {"overrides": {"rpm": rng.randrange(1, 99)}}, None, ACTOR)
            case "suspend" if slugs:
                await update_tenant(session, rng.choice(slugs), {"status": rng.choice(["active", "suspended"])}, None, ACTOR)
            case "tier":
                await update_tier(session, "standard", {"tpm": rng.randrange(1, 999)}, None, ACTOR)
            case "limit" if keys:
                await update_tenant_key(session, *rng.choice(keys), {"expires_at": datetime(2099, 1, 1, tzinfo=UTC)}, None, ACTOR)
            case "revoke" if keys:
                await revoke_tenant_key(session, *keys.pop(rng.randrange(len(keys))), ACTOR)
            case "delete" if len(slugs) > 3:
                slug = slugs.pop(rng.randrange(len(slugs)))
                await delete_tenant(session, slug, ACTOR)
                keys[:] = [key for key in keys if key[0] != slug]
            case _:
                pass


async def test_a_reloaded_snapshot_is_the_one_that_is_read_from_nothing(control: Control) -> None:
    rng = random.Random(3)
    slugs: list[str] = []
    keys: list[tuple[str, str]] = []
    for _ in range(60):
        await change_something(control, rng, slugs, keys)
        if rng.random() < 0.5:
            await control.directory.refresh()
            fresh = await DatabaseSource(control.store.database, control.store.pepper, control.directory.snapshot.admin_digest).load()
            assert control.directory.snapshot == fresh
            assert list(fresh.policies) == sorted(fresh.policies)
    assert len(slugs) > 3
