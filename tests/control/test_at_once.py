"""What happens while something else does: editors of one version, pages while rows come and go, a key in use while it is rotated."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx import AsyncClient

from appliance.domain.tenants.bootstrap import Control
from appliance.errors import Unauthenticated
from tests.control.admin_api import ADMIN, api_client, make_admin, ok

EDITORS = 6


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    async with api_client(control) as opened:
        opened.headers.update(ADMIN)
        yield opened


async def things(client: AsyncClient) -> dict[str, tuple[dict[str, Any], str]]:
    """One of each kind that has a version, by path: as it is shown, and a field to change."""
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    key = await ok(await client.post("/tenants/acme/keys", json={"name": "k"}))
    admin_id = await make_admin(client, "alice", "viewer", None)
    (shown,) = (await ok(await client.get("/tenants/acme/keys")))["keys"]
    return {
        "/tenants/acme": (await ok(await client.get("/tenants/acme")), "name"),
        "/tiers/batch": (await ok(await client.get("/tiers/batch")), "rpm"),
        f"/tenants/acme/keys/{key['id']}": (shown, "name"),
        f"/admins/{admin_id}": (await ok(await client.get(f"/admins/{admin_id}")), "role"),
    }


async def test_of_editors_who_send_the_same_version_at_once_exactly_one_is_heard(client: AsyncClient) -> None:
    for path, (shown, field) in (await things(client)).items():
        values: list[Any] = [7 + n if field == "rpm" else "operator" if field == "role" else f"name {n}" for n in range(EDITORS)]
        bodies = [{"version": shown["version"], field: value} for value in values]
        answers = await asyncio.gather(*(client.patch(path, json=body) for body in bodies))
        assert Counter(answer.status_code for answer in answers) == {200: 1, 409: EDITORS - 1}, path
        (heard,) = [n for n, answer in enumerate(answers) if answer.status_code == 200]
        now = answers[heard].json()
        assert now["version"] == shown["version"] + 1
        assert (now.get("sla") or now)[field] == values[heard]
        for answer in answers:
            if answer.status_code == 409:
                told = answer.json()["error"]
                assert (told["code"], told["edit_conflict"]["present_version"]) == ("version_conflict", now["version"])


async def test_of_two_who_rotate_a_key_at_once_one_gets_a_new_one_and_whoever_uses_it_is_never_refused(
    client: AsyncClient, control: Control
) -> None:
    key = await ok(await client.post("/tenants/default/keys", json={"name": "k"}))
    over = asyncio.Event()
    used = [key["key"]]

    async def use() -> int:
        number = 0
        while not over.is_set():
            for each in used:
                control.directory.authenticate(each, None)
                number += 1
            await asyncio.sleep(0)
        return number

    users = [asyncio.create_task(use()) for _ in range(4)]
    for _ in range(3):
        rotated = await asyncio.gather(*(client.post(f"/tenants/default/keys/{key['id']}/rotate") for _ in range(4)))
        assert Counter(answer.status_code for answer in rotated) == {201: 1, 409: 3}
        key = next(answer.json() for answer in rotated if answer.status_code == 201)
        used.append(key["key"])
    over.set()
    assert min(await asyncio.gather(*users)) > 3
    await ok(await client.post(f"/tenants/default/keys/{key['id']}/rotate", json={"grace_s": 0}))
    with pytest.raises(Unauthenticated):
        control.directory.authenticate(key["key"], None)


async def pages(client: AsyncClient, path: str, name: str, cursor: str) -> AsyncIterator[list[dict[str, Any]]]:
    """All pages of a list, three rows each."""
    params: dict[str, Any] = {"limit": 3}
    while True:
        page = await ok(await client.get(path, params=params))
        yield page[name]
        if page["next"] is None:
            return
        params[cursor] = page["next"]


async def test_rows_that_are_there_all_the_time_are_in_exactly_one_page_while_others_come_and_go(client: AsyncClient) -> None:
    rng = random.Random(5)
    slugs = sorted(f"t{number:04d}" for number in rng.sample(range(0, 9_999, 2), 16))
    for slug in slugs:
        await ok(await client.post("/tenants", json={"slug": slug}))
    leaving = set(rng.sample(slugs, 6))
    seen: list[str] = []
    async for page in pages(client, "/tenants", "tenants", "after"):
        seen += [each["slug"] for each in page]
        for gone in [leaving.pop() for _ in range(min(2, len(leaving)))]:  # also the one the next page begins behind
            await ok(await client.delete(f"/tenants/{gone}"))
        await client.post("/tenants", json={"slug": f"t{rng.randrange(1, 9_999, 2):04d}"})
    stayed = [each["slug"] for each in (await ok(await client.get("/tenants")))["tenants"] if each["slug"] in slugs]
    assert [slug for slug in seen if slug in stayed] == stayed and len(seen) == len(set(seen))

    made = [(await ok(await client.post("/tenants/default/keys", json={"name": f"k{n}"})))["id"] for n in range(7)]
    listed: list[str] = []
    async for page in pages(client, "/tenants/default/keys", "keys", "after"):
        listed += [each["id"] for each in page]
        await ok(await client.delete(f"/tenants/default/keys/{listed[-1]}"))
        if len(listed) < 8:
            await ok(await client.post("/tenants/default/keys", json={"name": "later"}))
    assert [each for each in listed if each in made] == made and len(listed) == len(set(listed)) > 8

    before = [each["id"] for each in (await ok(await client.get("/audit", params={"limit": 1_000})))["events"]]
    events: list[int] = []
    async for page in pages(client, "/audit", "events", "before"):
        events += [each["id"] for each in page]
        await ok(await client.patch("/tenants/default", json={"name": f"name {len(events)}"}))
    assert events == before
