"""Two served processes on one PostgreSQL: a limit is a limit, not twice one; what one is told, the other follows within a second."""

import signal
import time
from pathlib import Path

import httpx

from tests.control.postgres import own_postgres
from tests.inference.test_serve import HEADERS, Served, serving, until
from tests.served.clients import ADMIN_HEADERS, asking, booked

PEPPER = "key_pepper=a-pepper-that-both-share"


def limit(served: Served) -> str:
    """The requests a minute that a process allows now; a refused request costs none of them."""
    answer = httpx.post(served.url + "/v1/completions", json={"prompt": ""}, headers=HEADERS)
    return answer.headers.get("x-ratelimit-limit-requests", "none")


def override(served: Served, **fields: int) -> None:
    body = {"overrides": {"max_concurrency": None, "max_queued": None, **fields}}
    httpx.patch(f"{served.url}/api/v1/tenants/default", json=body, headers=ADMIN_HEADERS).raise_for_status()


def test_two_processes_share_a_limit_follow_each_other_and_survive_each_other(tmp_path: Path, export: Path) -> None:
    with own_postgres() as postgres:
        url = f"database_url={postgres.url}/postgres"
        with serving(tmp_path / "a", export, url, PEPPER) as first:
            override(first, rpm=41)
            assert limit(first) == "41"
            with serving(tmp_path / "b", export, url, PEPPER) as second:
                until(lambda: (limit(first), limit(second)) == ("21", "20"), second.log)
                began_s = time.monotonic()
                with asking(first.url) as at_first, asking(second.url) as at_second:
                    until(lambda: at_first.statuses[429] > 20 and at_second.statuses[429] > 20, second.log)
                allowed = 41 * (1 + (time.monotonic() - began_s) / 60)
                admitted = at_first.statuses[200] + at_second.statuses[200]
                assert 41 <= admitted <= allowed, (at_first, at_second)
                assert set(at_first.statuses) == set(at_second.statuses) == {200, 429}
                until(lambda: booked(second)[1] == at_first.tokens + at_second.tokens, second.log)

                override(second, rpm=101)
                changed_s = time.monotonic()
                until(lambda: int(limit(first)) > 25, first.log)  # about half of it; by demand a little more or less
                assert time.monotonic() - changed_s < 1

                override(first, tokens_per_day=1)  # spent long ago, by both together
                until(lambda: httpx.post(second.url + "/generate", json={"prompt": "x"}, headers=HEADERS).status_code == 429, second.log)
                override(first, rpm=101)
                second.process.send_signal(signal.SIGKILL)
                until(lambda: limit(first) == "101", first.log, timeout_s=15)


def test_a_process_that_all_of_a_tenants_traffic_comes_to_gets_nearly_all_of_its_limit(tmp_path: Path, export: Path) -> None:
    with own_postgres() as postgres:
        url = f"database_url={postgres.url}/postgres"
        with serving(tmp_path / "a", export, url, PEPPER) as busy, serving(tmp_path / "b", export, url, PEPPER) as idle:
            override(busy, rpm=600)
            until(lambda: (limit(busy), limit(idle)) == ("300", "300"), busy.log)
            began_s = time.monotonic()
            with asking(busy.url, 8) as tally:
                until(lambda: limit(busy) == "585", lambda: f"{limit(busy)} {tally}")
                assert limit(idle) == "15"
                before, from_s = tally.statuses[200], time.monotonic()
                until(lambda: time.monotonic() > from_s + 6, busy.log)
                late = tally.statuses[200] - before
            took_s = time.monotonic() - from_s
            assert late > 0.8 * took_s * 585 / 60, "its rate, not the half that would be its even part"
            assert tally.statuses[200] <= 600 * (1 + (time.monotonic() - began_s) / 60)
            with asking(idle.url, 8) as other:  # nothing comes to the first one any more
                until(lambda: int(limit(idle)) > 300, lambda: f"{limit(idle)} {other}", timeout_s=120)
            assert int(limit(busy)) + int(limit(idle)) <= 600
            assert tally.statuses[200] + other.statuses[200] <= 600 * (1 + (time.monotonic() - began_s) / 60)
