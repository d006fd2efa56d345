"""The server is killed without a word: what its clients were answered is in the books all the same."""

import sqlite3
from pathlib import Path

import httpx

from tests.inference.test_serve import HEADERS, serving, until
from tests.served.clients import booked


def test_a_killed_server_has_booked_every_request_it_settled_though_the_database_had_not_taken_them(tmp_path: Path, export: Path) -> None:
    tokens = 0
    with serving(tmp_path, export) as served:
        lock = sqlite3.connect(tmp_path / "fairlane.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for number in range(1, 21):
            body = {"prompt": "x", "max_tokens": number}
            tokens += httpx.post(served.url + "/v1/completions", json=body, headers=HEADERS).json()["usage"]["total_tokens"]
        until(lambda: served.log().count('"event":"request"') == 20, served.log)
        served.process.kill()
        served.process.wait(10)
        lock.close()
    (tmp_path / "run.json").unlink()  # of the dead one
    with serving(tmp_path, export) as served:
        assert booked(served) == (20, tokens)
        assert not any((tmp_path / "usage-spool").iterdir())
