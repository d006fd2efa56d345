"""A database file that is none any more."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from appliance.db.state import bump_version
from appliance.domain.slas.decisions import SEED_TIERS
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.bootstrap import open_control, open_store
from appliance.errors import Forbidden, Unavailable
from appliance.settings import Settings
from tests.control.conftest import API_KEY


def execute(folder: Path, *statements: str) -> None:
    """Past the server, on its file."""
    with closing(sqlite3.connect(folder / "fairlane.db")) as file, file:
        for statement in statements:
            file.execute(statement)


async def test_a_damaged_database_is_told_in_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    await (await open_control(settings)).close()
    path = tmp_path / "fairlane.db"
    whole = path.read_bytes()
    for damaged in (b"no database " * 1000, whole[: len(whole) // 3]):
        path.write_bytes(damaged)
        for suffix in ("-wal", "-shm"):
            (tmp_path / f"fairlane.db{suffix}").unlink(missing_ok=True)
        with pytest.raises(Unavailable, match=r"damaged.*backup"):
            await open_store(settings)


async def test_one_unreadable_value_keeps_nobody_from_starting_or_from_putting_it_right(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path))
    await (await open_control(settings)).close()
    execute(tmp_path, """UPDATE sla_tier SET tpot_ms = '{"fast": null}' WHERE name = 'standard'""")  # as infinity was once stored
    control = await open_control(settings)
    try:
        async with control.store.database.read() as session:
            tiers = {row.name: sla_of(row) for row in await list_tiers(session)}
        assert tiers["standard"].tpot_ms is None and tiers["standard"].ttft_ms == SEED_TIERS["standard"].ttft_ms
    finally:
        await control.close()


@pytest.mark.parametrize("damage", ["UPDATE tenant SET overrides = '{rpm'", "UPDATE api_key SET scopes = '[\"infe'"])
async def test_a_value_that_is_no_json_is_damage_told_in_one_line_and_requests_go_on_as_last_read(tmp_path: Path, damage: str) -> None:
    settings = Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY)
    control = await open_control(settings)
    try:
        for row in ("tenant", "api_key"):
            execute(tmp_path, f"UPDATE {row} SET version = version + 1")
        execute(tmp_path, damage, "UPDATE installation_state SET number = number + 1 WHERE name = 'access_version'")
        await control.directory.poll()
        assert "damaged" in control.directory.flaw and "as last read" in control.directory.flaw
        assert control.directory.authenticate(API_KEY, None).tenant_id == "default"
    finally:
        await control.close()
    with pytest.raises(Unavailable, match=r"damaged.*backup"):
        await open_control(settings)


async def test_a_file_that_is_overwritten_while_it_is_open_is_told_to_be_damaged(tmp_path: Path) -> None:
    control = await open_control(Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY))
    try:
        execute(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
        path = tmp_path / "fairlane.db"
        with path.open("r+b") as file:
            file.seek(4_096)
            file.write(random.Random(1).randbytes(path.stat().st_size - 4_096))
        await control.directory.poll()
        assert "damaged" in control.directory.flaw
        with pytest.raises(Unavailable, match=r"damaged.*backup"):
            async with control.store.database.write() as session:
                await bump_version(session)
        assert control.directory.authenticate(API_KEY, None).tenant_id == "default"
    finally:
        await control.close()


async def test_a_scope_that_there_is_not_allows_nothing_and_keeps_nobody_from_starting(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY)
    await (await open_control(settings)).close()
    execute(tmp_path, """UPDATE api_key SET scopes = '["of a newer version"]'""")
    control = await open_control(settings)
    try:
        with pytest.raises(Forbidden, match="it has none"):
            control.directory.authenticate(API_KEY, None)
    finally:
        await control.close()


@pytest.mark.parametrize("replacement", [None, b""])
async def test_a_database_file_that_was_removed_or_replaced_takes_nothing_more(tmp_path: Path, replacement: bytes | None) -> None:
    control = await open_control(Settings(data_dir=str(tmp_path)))
    try:
        await control.directory.poll()
        assert control.directory.flaw == ""
        path = tmp_path / "fairlane.db"
        kept = path.rename(tmp_path / "kept.db")
        if replacement is not None:
            path.write_bytes(replacement)
        await control.directory.poll()
        assert "removed or replaced" in control.directory.flaw
        assert str(tmp_path) not in control.directory.flaw, "everybody may read it at /readyz"
        with pytest.raises(Unavailable, match="removed or replaced"):
            async with control.store.database.write():
                pass
        kept.replace(path)
        await control.directory.poll()
        async with control.store.database.write():
            pass
        assert control.directory.flaw == ""
    finally:
        await control.close()
