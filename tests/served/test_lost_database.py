"""The database goes away under a served process: inference goes on, usage is spooled, admins hear 503, nobody 401; it recovers."""

import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.control.postgres import PostgresServer, own_postgres
from tests.inference.test_serve import Served, serving, until
from tests.served.clients import Tally, asking, booked, new_tenant


@dataclass(frozen=True)
class House:
    """A served process and its PostgreSQL, which is well again after each test."""

    postgres: PostgresServer
    served: Served

    @contextmanager
    def under_load(self) -> Iterator[Tally]:
        """Clients that ask meanwhile: all are answered, and the books have each answer once."""
        before = booked(self.served)
        with asking(self.served.url) as tally:
            until(lambda: tally.number > 10, self.served.log)
            yield tally
        assert set(tally.statuses) == {200}, tally.statuses
        all_of_it = (before[0] + tally.number, before[1] + tally.tokens)
        until(lambda: booked(self.served) == all_of_it, lambda: f"{booked(self.served)} {all_of_it}")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, export: Path) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("lost")
    with own_postgres() as postgres, serving(folder, export, f"database_url={postgres.url}/postgres") as served:
        yield House(postgres, served)


def is_spooling(data_dir: Path) -> bool:
    return any((data_dir / "usage-spool").glob("*.jsonl"))


def test_a_postgresql_that_only_reads_shows_as_degraded_and_costs_no_request_and_no_usage(house: House) -> None:
    served, postgres = house.served, house.postgres
    with house.under_load():
        postgres.say("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        until(lambda: served.ready() == (200, "degraded"), served.log)
        refused = new_tenant(served, "acme")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
        postgres.say("SET default_transaction_read_only = off", "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
        until(lambda: served.ready() == (200, "ready"), served.log)
    assert "database_lost" not in served.log()


def test_a_postgresql_that_is_killed_in_mid_load_costs_no_request_and_no_usage(house: House) -> None:
    served, postgres, logged = house.served, house.postgres, len(house.served.log())
    with house.under_load() as tally:
        postgres.stop(signal.SIGQUIT)
        until(lambda: served.ready() == (200, "degraded"), served.log)
        refused = new_tenant(served, "globex")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
        before = tally.number
        until(lambda: tally.number > before + 40 and is_spooling(served.data_dir), served.log)
        postgres.start()
        until(lambda: served.ready() == (200, "ready"), served.log)
        assert new_tenant(served, "globex").status_code == 201
        lines = [json.loads(line) for line in served.log()[logged:].splitlines() if '"event":"database_' in line]
        told = [(line["event"], line["of"]) for line in lines if "of" in line]
        assert Counter(told) == Counter((f"database_{state}", of) for state in ("unavailable", "available") for of in ("reads", "writes"))
        before = tally.number
        until(lambda: tally.number > before + 10, served.log)
    until(lambda: not is_spooling(served.data_dir), served.log)


def test_a_postgresql_that_hangs_is_noticed_within_seconds_and_holds_up_no_request(house: House) -> None:
    served, postgres = house.served, house.postgres
    with house.under_load() as tally:
        postgres.hang()
        try:
            until(lambda: served.ready() == (200, "degraded"), served.log, timeout_s=8)
            before = tally.number
            until(lambda: tally.number > before + 40, served.log, timeout_s=8)
        finally:
            postgres.go_on()
        until(lambda: served.ready() == (200, "ready"), served.log)


def test_a_locked_sqlite_file_costs_no_request_and_no_usage(tmp_path: Path, export: Path) -> None:
    path = tmp_path / "fairlane.db"
    with serving(tmp_path, export, f"database_url=sqlite:///{path}?timeout=1") as served:
        with asking(served.url) as tally:
            until(lambda: tally.number > 5, served.log)
            lock = sqlite3.connect(path, isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
            before = tally.number
            refused = new_tenant(served, "acme")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
            assert tally.number > before + 10, "requests do not wait for the lock"
            until(lambda: is_spooling(tmp_path) and served.ready() == (200, "degraded"), served.log)
            assert "takes no writes" in httpx.get(served.url + "/readyz").json()["reason"]
            lock.execute("ROLLBACK")
            assert new_tenant(served, "acme").status_code == 201
            until(lambda: served.ready() == (200, "ready"), served.log)
        assert set(tally.statuses) == {200}, tally.statuses
        until(lambda: booked(served) == (tally.number, tally.tokens), lambda: f"{booked(served)} {tally}")
        lock.execute("BEGIN IMMEDIATE")
        until(lambda: served.ready() == (200, "degraded"), served.log)  # though nobody writes anything
        lock.close()
        until(lambda: served.ready() == (200, "ready"), served.log)
