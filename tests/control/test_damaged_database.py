"""A database file that is none any more."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from appliance.domain.slas.decisions import SEED_TIERS
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.bootstrap import open_control, open_store
from appliance.errors import Unavailable
from appliance.settings import Settings


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
    with closing(sqlite3.connect(tmp_path / "fairlane.db")) as file, file:  # as infinity was once stored
        file.execute("""UPDATE sla_tier SET tpot_ms = '{"fast": null}' WHERE name = 'standard'""")
    control = await open_control(settings)
    try:
        async with control.store.database.read() as session:
            tiers = {row.name: sla_of(row) for row in await list_tiers(session)}
        assert tiers["standard"].tpot_ms is None and tiers["standard"].ttft_ms == SEED_TIERS["standard"].ttft_ms
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
        assert "does not answer" in control.directory.flaw
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
