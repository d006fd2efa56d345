"""A database file that is none any more."""

from pathlib import Path

import pytest

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
