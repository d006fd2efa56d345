"""What a first start makes, and what later starts do with it."""

import asyncio
import contextlib
import sqlite3
import stat

import msgspec
import pytest
from sqlalchemy import delete, func, select, text

from appliance.asgi import first_secrets
from appliance.db.database import Database
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Scope
from appliance.domain.audit.service import Actor, list_events
from appliance.domain.slas.decisions import SEED_TIERS
from appliance.domain.slas.models import SlaTier
from appliance.domain.tenants.bootstrap import Control, open_control, open_existing, open_store
from appliance.domain.tenants.key_service import revoke_tenant_key, rotate_tenant_key
from appliance.domain.tenants.service import create_tenant, delete_tenant
from appliance.errors import Unauthenticated, Unavailable
from appliance.settings import Settings, SettingsError
from tests.control.conftest import ADMIN_TOKEN, API_KEY


async def opened_and_closed(settings: Settings) -> Control:
    """The control plane after a start; its snapshot stays readable."""
    control = await open_control(settings)
    await control.close()
    return control


async def test_a_first_start_seeds_tiers_and_an_unlimited_default_tenant_with_the_bootstrap_key(control):
    principal = control.directory.authenticate(API_KEY, None)
    assert (principal.tenant_id, principal.scopes) == ("default", {Scope.INFERENCE})
    assert (principal.policy.tier, principal.policy.max_concurrency, principal.policy.max_queued) == ("standard", None, None)
    assert control.directory.authenticate_admin(ADMIN_TOKEN, Scope.ADMIN_WRITE)
    async with control.store.database.read() as session:
        assert list(await session.scalars(select(SlaTier.name).order_by(SlaTier.name))) == ["batch", "interactive", "standard"]


async def test_nothing_in_the_database_is_a_key(control):
    async with control.store.database.read() as session:
        row = (await session.scalars(select(ApiKey))).one()
    assert API_KEY.encode() not in row.digest
    assert (row.prefix, row.last4) == ("api-ke", "0001")


async def test_keys_made_at_the_first_start_are_stored_for_their_owner_only_and_stay(tmp_path):
    settings = Settings(data_dir=str(tmp_path))
    first = await opened_and_closed(settings)
    assert first.api_key is not None
    assert first.api_key.startswith("fl-")
    assert (first.api_key_path, first.admin_token_path) == (tmp_path / "bootstrap-key", tmp_path / "bootstrap-admin-token")
    for name in ("bootstrap-key", "bootstrap-admin-token", "key-pepper"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    second = await opened_and_closed(settings)
    assert second.api_key == first.api_key == (tmp_path / "bootstrap-key").read_text().strip()
    token = (tmp_path / "bootstrap-admin-token").read_text().strip()
    assert second.directory.authenticate_admin(token, Scope.ADMIN_WRITE).actor == "bootstrap-admin"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


async def test_keys_that_the_settings_give_are_not_written_to_files(tmp_path):
    given = Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN)
    control = await opened_and_closed(given)
    assert (control.api_key, control.api_key_path, control.admin_token_path) == (API_KEY, None, None)
    assert [path.name for path in tmp_path.glob("bootstrap*")] == []


async def test_shares_of_the_settings_win_over_the_weights_in_the_database(tmp_path):
    control = await open_control(Settings(data_dir=str(tmp_path), tenant_shares="default=3.5, acme=2"))
    try:
        async with control.store.database.write() as session:
            for slug in ("acme", "beta"):
                await create_tenant(session, slug=slug, name=slug, tier="standard", overrides={}, actor=Actor("test", "here"))
        await control.directory.refresh()
        weights = {slug: policy.weight for slug, policy in control.directory.snapshot.policies.items()}
    finally:
        await control.close()
    assert weights == {"default": 3.5, "acme": 2.0, "beta": 1.0}


async def test_the_metrics_key_of_the_settings_opens_metrics_and_nothing_else(tmp_path):
    directory = (await opened_and_closed(Settings(data_dir=str(tmp_path), metrics_key="a-key-for-prometheus"))).directory
    directory.require_metrics("a-key-for-prometheus")
    for refused in (None, "", "another-key-for-prometheus"):
        with pytest.raises(Unauthenticated):
            directory.require_metrics(refused)
    with pytest.raises(Unauthenticated):
        directory.authenticate("a-key-for-prometheus", None)
    with pytest.raises(Unauthenticated):
        directory.authenticate_admin("a-key-for-prometheus", Scope.ADMIN_READ)


async def test_a_changed_bootstrap_key_replaces_the_old_one(tmp_path):
    old = (await opened_and_closed(Settings(data_dir=str(tmp_path)))).api_key
    new = await opened_and_closed(Settings(data_dir=str(tmp_path), bootstrap_api_key="the-newer-bootstrap-key"))
    assert new.directory.authenticate("the-newer-bootstrap-key", None).tenant_id == "default"
    with pytest.raises(Unauthenticated):
        new.directory.authenticate(old, None)
    database = await open_existing(Settings(data_dir=str(tmp_path)))
    async with database.read() as session:
        newest = (await list_events(session, None, 1))[0]
    await database.close()
    assert (newest.action, newest.source, newest.after) == (
        "key.replace",
        "settings",
        {"prefix": "the-ne", "last4": "-key", "value": "(changed)"},
    )
    assert not (tmp_path / "bootstrap-key").exists()


async def test_a_revoked_bootstrap_key_stays_revoked_after_a_restart(settings):
    control = await open_control(settings)
    async with control.store.database.write() as session:
        await revoke_tenant_key(session, "default", control.directory.authenticate(API_KEY, None).key_id, Actor("test", "here"))
    await control.close()
    again = await opened_and_closed(settings)
    assert again.api_key is None
    with pytest.raises(Unauthenticated, match="revoked"):
        again.directory.authenticate(API_KEY, None)


@pytest.mark.parametrize("is_given", [True, False])
async def test_a_removed_default_tenant_leaves_starts_without_a_first_key(tmp_path, is_given):
    settings = Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY if is_given else "")
    control = await open_control(settings)
    async with control.store.database.write() as session:
        await delete_tenant(session, "default", Actor("test", "here"))
    await control.close()
    again = await opened_and_closed(settings)
    assert (again.api_key, again.api_key_path) == (None, None)


async def test_a_default_tenant_that_was_removed_before_the_first_start_does_not_prevent_it(settings):
    store = await open_store(settings)
    async with store.database.write() as session:
        await delete_tenant(session, "default", Actor("test", "here"))
    await store.database.close()
    assert (await opened_and_closed(settings)).api_key is None


async def test_a_rotated_first_key_is_not_shown_once_its_grace_is_over(settings):
    control = await open_control(settings)
    key_id = control.directory.authenticate(API_KEY, None).key_id
    async with control.store.database.write() as session:
        await rotate_tenant_key(session, "default", key_id, 0.0, b"pepper", Actor("test", "here"))
    await control.close()
    assert (await opened_and_closed(settings)).api_key is None


async def test_a_tier_that_was_removed_is_not_seeded_again(settings):
    store = await open_store(settings)
    async with store.database.write() as session:
        await session.execute(delete(SlaTier).where(SlaTier.name == "batch"))
    await store.database.close()
    store = await open_store(settings)
    async with store.database.read() as session:
        assert (await session.execute(select(func.count()).select_from(SlaTier))).scalar_one() == 2
    await store.database.close()


async def test_another_pepper_is_refused_instead_of_making_every_key_wrong(settings, tmp_path):
    await opened_and_closed(settings)
    with pytest.raises(SettingsError, match="FAIRLANE_KEY_PEPPER is another one"):
        await open_control(msgspec.structs.replace(settings, key_pepper="another"))
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(SettingsError, match=r"there is none in .*elsewhere/key-pepper, nor in FAIRLANE_KEY_PEPPER"):
        await open_control(msgspec.structs.replace(settings, data_dir=str(elsewhere)))
    assert not (elsewhere / "key-pepper").exists(), "a new one would be taken for the right one next time"
    (elsewhere / "key-pepper").write_text("another")
    with pytest.raises(SettingsError, match=r"the one in .*elsewhere/key-pepper is another one"):
        await open_control(msgspec.structs.replace(settings, data_dir=str(elsewhere)))
    await opened_and_closed(settings)


async def test_what_a_first_start_makes_is_audited(settings):
    control = await open_control(msgspec.structs.replace(settings, bootstrap_admin_password="a horse, a staple"))
    async with control.store.database.read() as session:
        events = await list_events(session, None, 20)
    await control.close()
    assert {(event.action, event.target.partition("/")[0], event.actor) for event in events} == {
        *(("tier.create", f"tier:{name}", "bootstrap") for name in SEED_TIERS),
        ("tenant.create", "tenant:default", "bootstrap"),
        ("key.create", "tenant:default", "bootstrap"),
        ("admin.create", "admin:admin", "bootstrap"),
    }


async def test_an_owner_made_during_warm_up_is_known_to_the_banner_and_ends_the_setup_tokens_file(settings):
    control = await open_control(settings)
    try:
        token, path = first_secrets(settings, control).setup_token, first_secrets(settings, control).setup_token_path
        assert token is not None and path.exists()
        await control.logins.set_up(token, "alice", "a horse, a staple", "here", "")
        await control.directory.poll()
        assert first_secrets(settings, control).setup_token is None and not path.exists()
    finally:
        await control.close()


async def test_two_processes_that_start_at_once_on_an_empty_database_make_one_key(settings):
    first, second = await asyncio.gather(open_control(settings), open_control(settings))
    async with first.store.database.read() as session:
        assert (await session.execute(select(func.count()).select_from(ApiKey))).scalar_one() == 1
    assert first.directory.authenticate(API_KEY, None).key_id == second.directory.authenticate(API_KEY, None).key_id
    await first.close()
    await second.close()


async def test_processes_that_open_a_new_database_file_at_once_wait_for_each_other(tmp_path):
    """SQLite itself fails one of two that set its journal's mode at once, without waiting: about one time in four here."""

    async def opened(url: str) -> str:
        async with Database(url) as database, database.write() as session:
            return str(await session.scalar(text("PRAGMA journal_mode")))

    for number in range(20):
        url = f"sqlite+aiosqlite:///{tmp_path}/new-{number}.db"
        assert await asyncio.gather(*(opened(url) for _ in range(4))) == ["wal"] * 4


async def test_a_lock_that_stays_on_a_new_database_is_given_up_after_the_timeout(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "locked.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="does not answer"):
            async with Database(f"sqlite+aiosqlite:///{tmp_path}/locked.db?timeout=0.05") as database, database.read() as session:
                await session.execute(text("SELECT 1"))


async def test_a_database_that_does_not_answer_is_said_so(tmp_path):
    with pytest.raises(Unavailable, match="does not answer"):
        await open_control(Settings(data_dir=str(tmp_path), database_url="postgresql://nobody@127.0.0.1:1/none"))


async def test_a_data_directory_that_can_not_be_made_is_said_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="FAIRLANE_DATA_DIR"):
        await open_control(Settings(data_dir=str(tmp_path / "file" / "below")))
