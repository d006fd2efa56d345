"""Two served processes on one PostgreSQL: a limit is a limit, not twice one; what one is told, the other follows within a second."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control.postgres import own_postgres
from tests.inference.test_serve import HEADERS, Served, serving, until
from tests.served.clients import ADMIN_HEADERS, asking, booked, new_tenant

PEPPER = "key_pepper=a-pepper-that-both-share"

type Headers = dict[str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, export: Path) -> Iterator[tuple[Served, Served]]:
    """Both, the second one joined later."""
    folder = tmp_path_factory.mktemp("pair")
    with own_postgres() as postgres:
        url = f"database_url={postgres.url}/postgres"
        with serving(folder / "a", export, url, PEPPER) as first:
            override(first, "default", rpm=41)
            assert limit(first) == "41"
            with serving(folder / "b", export, url, PEPPER) as second:
                yield first, second


def limit(served: Served, headers: Headers = HEADERS) -> str:
    """The requests a minute that a process allows now; a refused request costs none of them."""
    answer = httpx.post(served.url + "/v1/completions", json={"prompt": ""}, headers=headers)
    return answer.headers.get("x-ratelimit-limit-requests", "none")


def override(served: Served, slug: str, **fields: int) -> None:
    body = {"overrides": {"max_concurrency": None, "max_queued": None, **fields}}
    httpx.patch(f"{served.url}/api/v1/tenants/{slug}", json=body, headers=ADMIN_HEADERS).raise_for_status()


def test_a_process_that_all_of_a_tenants_traffic_comes_to_gets_nearly_all_of_its_limit(pair: tuple[Served, Served]) -> None:
    busy, idle = pair
    new_tenant(busy, "loaded").raise_for_status()
    key = httpx.post(f"{busy.url}/api/v1/tenants/loaded/keys", json={"name": "k"}, headers=ADMIN_HEADERS).raise_for_status().json()["key"]
    mine = {"Authorization": f"Bearer {key}"}
    override(busy, "loaded", rpm=600)
    until(lambda: (limit(busy, mine), limit(idle, mine)) == ("300", "300"), busy.log)
    began_s = time.monotonic()
    with asking(busy.url, 8, mine) as tally:
        until(lambda: limit(busy, mine) == "585", lambda: f"{limit(busy, mine)} {tally}")
        assert limit(idle, mine) == "15"
        before, from_s = tally.statuses[200], time.monotonic()
        until(lambda: time.monotonic() > from_s + 3, busy.log)
        late = tally.statuses[200] - before
    took_s = time.monotonic() - from_s
    assert late > 0.8 * took_s * 585 / 60, "its rate, not the half that would be its even part"
    assert tally.statuses[200] <= 600 * (1 + (time.monotonic() - began_s) / 60)
    with asking(idle.url, 8, mine) as other:  # nothing comes to the first one any more
        until(lambda: int(limit(idle, mine)) > 60, lambda: f"{limit(idle, mine)} {other}", timeout_s=120)
    assert int(limit(busy, mine)) + int(limit(idle, mine)) <= 600
    assert tally.statuses[200] + other.statuses[200] <= 600 * (1 + (time.monotonic() - began_s) / 60)


def test_two_processes_share_a_limit_follow_each_other_and_survive_each_other(pair: tuple[Served, Served]) -> None:
    first, second = pair
    until(lambda: (limit(first), limit(second)) == ("21", "20"), second.log)
    began_s = time.monotonic()
    with asking(first.url) as at_first, asking(second.url) as at_second:
        until(lambda: at_first.statuses[429] > 20 and at_second.statuses[429] > 20, second.log)
    allowed = 41 * (1 + (time.monotonic() - began_s) / 60)
    admitted = at_first.statuses[200] + at_second.statuses[200]
    assert 41 <= admitted <= allowed, (at_first, at_second)
    assert set(at_first.statuses) == set(at_second.statuses) == {200, 429}
    until(lambda: booked(second)[1] == at_first.tokens + at_second.tokens, second.log)

    override(second, "default", rpm=101)
    changed_s = time.monotonic()
    until(lambda: int(limit(first)) > 25, first.log)  # about half of it; by demand a little more or less
    assert time.monotonic() - changed_s < 1

    override(first, "default", tokens_per_day=1)  # spent long ago, by both together
    until(lambda: httpx.post(second.url + "/generate", json={"prompt": "x"}, headers=HEADERS).status_code == 429, second.log)
    override(first, "default", rpm=101)
    second.process.send_signal(signal.SIGKILL)
    until(lambda: limit(first) == "101", first.log, timeout_s=15)
