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
                until(lambda: limit(first) in ("50", "51"), first.log)
                assert time.monotonic() - changed_s < 1

                override(first, tokens_per_day=1)  # spent long ago, by both together
                until(lambda: httpx.post(second.url + "/generate", json={"prompt": "x"}, headers=HEADERS).status_code == 429, second.log)
                override(first, rpm=101)
                second.process.send_signal(signal.SIGKILL)
                until(lambda: limit(first) == "101", first.log, timeout_s=15)
