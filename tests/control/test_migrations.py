"""Every revision up, down and up again with data, on both databases; and what the server refuses to run on."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DBAPIError

from appliance.db.base import Base
from appliance.db.database import Database
from appliance.db.revision import BASE, MIGRATIONS_DIR, SchemaError, SchemaState, decide_schema, migrate, read_schema, refuse_unless_current
from appliance.db.state import bump_version, read_version
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Scope
from appliance.domain.access.service import KeySpec
from appliance.domain.audit.service import Actor
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.bootstrap import open_store
from appliance.domain.tenants.key_service import create_tenant_key, update_tenant_key
from appliance.domain.tenants.models import Tenant
from appliance.domain.tenants.service import find_tenant
from appliance.domain.tenants.tier_service import create_tier
from appliance.domain.usage.models import UsageHour
from appliance.settings import Settings, sqlalchemy_url

REVISIONS = tuple(sorted(path.name.partition("_")[0] for path in MIGRATIONS_DIR.glob("versions/*.py")))


def usage_row() -> dict[str, object]:
    keys = {
        "began_at": datetime(2026, 1, 1, tzinfo=UTC),
        "tenant": "t",
        "key_id": "k",
        "model": "m",
        "lane": "fast",
        "outcome": "completed",
    }
    return {**keys, "requests": 1, "prompt_tokens": 2, "cached_tokens": 0, "generated_tokens": 3}


async def execute(url: str, *statements: str) -> None:
    database = Database(url, enforce_foreign_keys=False)
    try:
        async with database.connect() as connection:
            for statement in statements:
                await connection.execute(text(statement))
    finally:
        await database.close()


async def state_of(url: str) -> SchemaState:
    database = Database(url)
    schema = await read_schema(database, Base.metadata)
    await database.close()
    return schema.state


async def test_the_schema_goes_up_and_down_and_up_again_with_data(settings):
    url = sqlalchemy_url(settings)
    for _ in range(2):
        store = await open_store(settings)  # migrates the empty database and seeds it
        async with store.database.write() as session:
            tenant = (await session.scalars(select(Tenant))).one()
            session.add(ApiKey(id="key_1", tenant_id=tenant.id, name="n", prefix="p", last4="l", digest=b"d" * 32, scopes=["inference"]))
            session.add(UsageHour(**usage_row()))
        await store.database.close()
        assert await state_of(url) is SchemaState.CURRENT
        await migrate(url, BASE)
        assert await state_of(url) is SchemaState.EMPTY


async def test_each_revision_is_left_and_reached_again_with_the_data_of_the_first(settings):
    url = sqlalchemy_url(settings)
    store = await open_store(settings)
    async with store.database.write() as session:
        session.add(UsageHour(**usage_row()))
    await store.database.close()
    for revision in REVISIONS[:-1]:
        await migrate(url, revision)
        assert await state_of(url) is SchemaState.BEHIND
        await migrate(url)
        assert await state_of(url) is SchemaState.CURRENT
    store = await open_store(settings)
    async with store.database.read() as session:
        assert (await session.scalars(select(Tenant))).one().slug == "default"
    await store.database.close()


async def test_a_removed_tier_and_objectives_by_lane_survive_the_way_to_the_revision_before_them(settings):
    url = sqlalchemy_url(settings)
    store = await open_store(settings)
    async with store.database.write() as session:
        await create_tier(session, "gold", {"objective": {"fast": 0.999, "slow": 0.9}}, Actor("test", "here"))
        await create_tier(session, "plain", {"objective": 0.5}, Actor("test", "here"))
    await store.database.close()
    await migrate(url, "0003")
    await execute(url, "INSERT INTO tenant SELECT 77, 'acme', 'a', 'active', id, '{}', '', 1, created_at, updated_at FROM sla_tier LIMIT 1")
    with pytest.raises(DBAPIError, match="objective_ratio"):
        await execute(url, "UPDATE sla_tier SET objective = 2")
    await migrate(url)
    with pytest.raises(DBAPIError, match="weight_positive"):
        await execute(url, "UPDATE sla_tier SET weight = 0")
    store = await open_store(settings)
    async with store.database.read() as session:
        objectives = {tier.name: sla_of(tier).objective for tier in await list_tiers(session)}
        assert (await find_tenant(session, "acme")).tenant.id == 77
    await store.database.close()
    assert objectives == {"batch": 0.9, "gold": 0.999, "interactive": 0.99, "plain": 0.5, "standard": 0.95}


async def test_keys_of_administration_made_before_end_with_who_made_them_too(settings):
    url = sqlalchemy_url(settings)
    store = await open_store(settings)
    async with store.database.write() as session:
        for actor_id, scope in (("adm_1", Scope.ADMIN_READ), ("adm_2/adt_1", Scope.INFERENCE), ("", Scope.ADMIN_WRITE)):
            row, _ = await create_tenant_key(session, "default", KeySpec("k", (scope,)), b"pepper", Actor("a", "here", id=actor_id))
            await update_tenant_key(session, "default", row.id, {"name": f"of {actor_id or 'nobody'}"}, None, Actor("b", "here", id="c"))
    await store.database.close()
    await migrate(url, "0010")
    await migrate(url)
    store = await open_store(settings)
    async with store.database.read() as session:
        found = {row.name: row.granted_by for row in await session.scalars(select(ApiKey))}
    await store.database.close()
    assert found == {"of adm_1": "adm_1", "of adm_2/adt_1": None, "of nobody": None}


async def test_a_database_file_is_its_owners_alone(tmp_path):
    settings = Settings(data_dir=str(tmp_path), database_url=f"sqlite:///{tmp_path / 'private.db'}")
    store = await open_store(settings)
    async with store.database.write() as session:
        await bump_version(session)
        files = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("private.db*")}
    await store.database.close()
    assert files == dict.fromkeys(("private.db", "private.db-wal", "private.db-shm"), 0o600)


async def test_the_models_are_what_the_migrations_make(settings):
    store = await open_store(settings)
    async with store.database.connect() as connection:

        def unnamed(sync_connection) -> list[str]:
            inspector = inspect(sync_connection)
            names = {name: inspector.get_unique_constraints(name) + inspector.get_foreign_keys(name) for name in Base.metadata.tables}
            return [table for table, constraints in names.items() for constraint in constraints if not constraint["name"]]

        assert await connection.run_sync(unnamed) == []
    await store.database.close()


async def test_migrating_twice_changes_nothing(settings):
    url = sqlalchemy_url(settings)
    store = await open_store(settings)
    async with store.database.read() as session:
        version = await read_version(session)
    await migrate(url)
    async with store.database.read() as session:
        assert await read_version(session) == version
    await store.database.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "9999, which this version .* does not know"),
        ("ALTER TABLE api_key DROP COLUMN last4", "half-migrated: it lacks api_key.last4"),
        ("DROP TABLE api_key", "half-migrated: it lacks api_key"),
        ("DELETE FROM alembic_version", "half-migrated: it has Fairlane's tables but no revision"),
        ("INSERT INTO alembic_version VALUES ('0000')", "half-migrated: it carries several revisions"),
    ],
)
async def test_a_database_that_does_not_fit_is_refused_and_left_alone(settings, damage, message):
    await (await open_store(settings)).database.close()
    url = sqlalchemy_url(settings)
    await execute(url, damage)
    before = await state_of(url)
    with pytest.raises(SchemaError, match=message):
        await open_store(settings)
    assert await state_of(url) is before


def test_a_database_that_is_behind_is_refused_with_the_command_to_run():
    schema = decide_schema(("0001",), ("0002", "0001"), (), has_tables=True)
    assert schema.state is SchemaState.BEHIND
    with pytest.raises(SchemaError, match=r"at revision 0001, this version needs 0002.*fairlane migrate"):
        refuse_unless_current(schema)


async def test_a_failed_migration_leaves_nothing_behind(settings):
    url = sqlalchemy_url(settings)
    database = Database(url)
    async with database.connect() as connection:
        await connection.execute(text("CREATE TABLE tenant (id INTEGER PRIMARY KEY)"))  # in the way of revision 0001
    with pytest.raises(SchemaError, match=r"nothing was changed: .*tenant"):
        await migrate(url)
    async with database.connect() as connection:
        tables = await connection.run_sync(lambda sync_connection: inspect(sync_connection).get_table_names())
    assert tables == ["tenant"]
    await database.close()


def kill_while_migrating(url: str, *places: str) -> None:
    subprocess.run([sys.executable, "-m", "tests.control.killed_migration", url, *places], check=True, timeout=60)


async def test_a_migration_that_is_killed_anywhere_has_changed_nothing_and_the_next_one_goes_all_the_way(settings):
    url = sqlalchemy_url(settings)
    kill_while_migrating(url, "12")
    assert await state_of(url) is SchemaState.EMPTY, "an empty database is as empty as before: the next start fills it"
    store = await open_store(settings)
    async with store.database.write() as session:
        session.add(UsageHour(**usage_row()))
    await store.database.close()
    await migrate(url, REVISIONS[0])
    kill_while_migrating(url, "20", "commit")
    assert await state_of(url) is SchemaState.BEHIND
    with pytest.raises(SchemaError, match="back it up and run `fairlane migrate`"):
        await open_store(settings)
    await migrate(url)
    store = await open_store(settings)
    async with store.database.read() as session:
        assert (await session.scalars(select(Tenant))).one().slug == "default"
        assert {tier.name for tier in await list_tiers(session)} == {"batch", "interactive", "standard"}
    await store.database.close()


async def test_a_failed_write_leaves_nothing_behind_not_even_the_version(control):
    database = control.store.database
    async with database.read() as session:
        version = await read_version(session)

    async def fail_after_writing() -> None:
        async with database.write() as session:
            await bump_version(session)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail_after_writing()
    async with database.read() as session:
        assert await read_version(session) == version


async def test_sqlite_enforces_foreign_keys_and_writes_ahead(tmp_path):
    store = await open_store(Settings(data_dir=str(tmp_path)))
    async with store.database.read() as session:
        assert (await session.execute(text("PRAGMA foreign_keys"))).scalar_one() == 1
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
        assert (await session.execute(text("PRAGMA busy_timeout"))).scalar_one() == 5000
    await store.database.close()


async def test_times_come_back_in_utc(control):
    async with control.store.database.read() as session:
        tenant = (await session.scalars(select(Tenant))).one()
    assert tenant.created_at.tzinfo is UTC
    assert abs((datetime.now(UTC) - tenant.created_at).total_seconds()) < 60


async def test_output_caps_that_were_always_held_still_are(settings):
    url = sqlalchemy_url(settings)
    await (await open_store(settings)).database.close()
    await migrate(url, "0004")
    await execute(
        url,
        "UPDATE sla_tier SET output_caps = '{\"chat\": 5}' WHERE name = 'standard'",
        "UPDATE tenant SET overrides = '{\"output_caps\": 7}'",
    )
    await migrate(url)
    database = Database(url)
    async with database.read() as session:
        modes = dict((await session.execute(select(SlaTier.name, SlaTier.output_cap_mode))).all())
        overrides = (await session.scalars(select(Tenant))).one().overrides
    await database.close()
    assert modes == {"standard": "clamp", "interactive": "fill", "batch": "fill"}
    assert overrides == {"output_caps": 7, "output_cap_mode": "clamp"}
