"""A first start whose disk takes nothing: full, read-only, or somebody else's. It says which, and what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from appliance.db.state import read_text, write_text
from appliance.domain.tenants.bootstrap import open_control
from appliance.errors import Unavailable
from appliance.settings import Settings, SettingsError
from tests.control.conftest import API_KEY
from tests.small_disk import DISK_BYTES, SmallDisk, small_disk

PAGE_BYTES = 4_096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


def settings_on(folder: Path, **fields: str) -> Settings:
    return Settings(data_dir=str(folder), bootstrap_api_key=API_KEY, **fields)


@pytest.mark.parametrize("free_pages", [0, 1, 2, 3, 10, 20, 40])
async def test_a_first_start_on_a_full_disk_says_that_it_is_full(disk: SmallDisk, free_pages: int):
    disk.fill(free_pages * PAGE_BYTES)
    with pytest.raises(Unavailable, match=r"var/fairlane.db: the disk of the database is full: make room on it"):
        await open_control(settings_on(disk.path / "var"))


async def test_a_full_disk_beside_a_database_elsewhere_names_the_file_that_it_does_not_take(disk: SmallDisk, tmp_path: Path):
    disk.fill(0)
    settings = settings_on(disk.path / "var", database_url=f"sqlite:///{tmp_path}/elsewhere.db")
    with pytest.raises(SettingsError, match=r"var/key-pepper can not be written \(No space left on device\): make room on its disk"):
        await open_control(settings)
    assert list((disk.path / "var").iterdir()) == []
    (disk.path / "filling").unlink()
    await (await open_control(settings)).close()


async def test_a_read_only_disk_is_said_to_be_one(disk: SmallDisk, tmp_path: Path):
    path = disk.path / "fairlane.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    disk.make_read_only()
    with pytest.raises(SettingsError, match=r"can not be written \(its disk is read-only\): name another folder"):
        await open_control(settings_on(disk.path))
    with pytest.raises(SettingsError, match=r"can not be made \(Read-only file system\): name another folder"):
        await open_control(settings_on(disk.path / "var"))
    with pytest.raises(Unavailable, match=r"disk/fairlane.db: the database file can not be (opened|written): its (folder|disk) must"):
        await open_control(settings_on(tmp_path / "var", database_url=f"sqlite:///{path}"))


async def test_a_disk_that_runs_full_later_is_said_to_be_full_and_nothing_else_is_lost(disk: SmallDisk):
    control = await open_control(settings_on(disk.path / "var"))
    disk.fill(0)
    with pytest.raises(Unavailable, match="the disk of the database is full"):
        async with control.store.database.write() as session:
            await write_text(session, "long", "x" * DISK_BYTES)
    (disk.path / "filling").unlink()
    async with control.store.database.write() as session:
        assert await read_text(session, "long") is None
        await write_text(session, "long", "x")
    await control.close()


@pytest.mark.parametrize("name", ["none/fairlane.db", "."])
async def test_a_database_file_that_can_not_be_opened_is_said_so(tmp_path: Path, name: str):
    with pytest.raises(Unavailable, match="the database file can not be opened: its folder must be there"):
        await open_control(settings_on(tmp_path, database_url=f"sqlite:///{tmp_path}/{name}"))


async def test_a_secret_that_can_not_be_read_is_named(tmp_path: Path):
    (tmp_path / "key-pepper").mkdir()
    with pytest.raises(SettingsError, match=r"key-pepper can not be read \(Is a directory\): give it to the user"):
        await open_control(settings_on(tmp_path))
