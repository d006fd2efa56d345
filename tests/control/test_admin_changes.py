"""Changes of tenants, tiers and keys over HTTP, on both databases: versions, sources, pages, and the audit of it all."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from litestar import Litestar
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from appliance.db.base import utc_now
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import Scope
from appliance.domain.configuration.controller import ConfigurationController
from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.key_service import KeySearch, find_keys
from appliance.domain.tenants.routes import admin_router
from appliance.domain.tenants.service import read_contract_warnings
from appliance.errors import NotFound, Unauthenticated
from appliance.problems import EXCEPTION_HANDLERS
from tests.control.admin_api import by_hand
from tests.control.conftest import ADMIN_TOKEN, API_KEY

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    app = Litestar([admin_router(control, ConfigurationController)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    transport = ASGITransport(app, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url="http://test/api/v1", headers=ADMIN) as opened:
        yield opened


async def ok(response: Any) -> Any:
    assert response.status_code < 300, response.text
    return response.json() if response.content else None


async def test_a_changed_tenant_is_judged_by_the_change_at_once(client, control):
    await ok(await client.post("/tenants", json={"slug": "acme", "overrides": {"rpm": 5}}))
    key = (await ok(await client.post("/tenants/acme/keys", json={"name": "k"})))["key"]
    changes = {"tier": "interactive", "overrides": {"tpm": 100}, "trust_group": "partners", "name": "Acme"}
    changed = await ok(await client.patch("/tenants/acme", json=changes))
    policy = control.directory.authenticate(key, None).policy
    assert (policy.rpm, policy.tpm, policy.tier, policy.trust_group, policy.weight) == (None, 100, "interactive", "partners", 4.0)
    assert (changed["sources"]["tpm"], changed["sources"]["rpm"], changed["name"]) == ("override", "tier", "Acme")
    assert changed == await ok(await client.get("/tenants/acme"))
    await ok(await client.patch("/tenants/acme", json={"status": "suspended"}))
    assert "acme" in control.directory.snapshot.suspended


async def test_of_two_who_edit_the_same_version_the_second_is_refused_with_the_present_one(client):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    assert (await ok(await client.patch("/tenants/acme", json={"version": 1, "name": "One"})))["version"] == 2
    refused = await client.patch("/tenants/acme", json={"version": 1, "name": "Two"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_conflict")
    assert "at version 2" in refused.json()["error"]["message"]
    assert (await ok(await client.get("/tenants/acme")))["name"] == "One"
    assert (await ok(await client.patch("/tiers/standard", json={"version": 1, "rpm": 9})))["version"] == 2
    assert (await client.patch("/tiers/standard", json={"version": 1, "rpm": 10})).status_code == 409
    assert (await ok(await client.patch("/tiers/standard", json={"rpm": 11})))["sla"]["rpm"] == 11


async def test_the_second_of_two_editors_is_shown_both_versions(client):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    key = await ok(await client.post("/tenants/acme/keys", json={"name": "k"}))
    for path, first, second in (
        ("/tiers/standard", {"rpm": 9}, {"rpm": 10}),
        ("/tenants/acme", {"name": "One"}, {"name": "Two"}),
        (f"/tenants/acme/keys/{key['id']}", {"rpm": 9}, {"rpm": 10}),
    ):
        await ok(await client.patch(path, json={"version": 1, **first}))
        refused = await client.patch(path, json={"version": 1, **second})
        conflict = refused.json()["error"]["edit_conflict"]
        assert (refused.status_code, conflict["given_version"], conflict["present_version"]) == (409, 1, 2)
        assert first.items() <= conflict["present"].items(), conflict
        await ok(await client.patch(path, json={"version": 2, **second}))


async def test_a_tier_is_made_used_and_removed_when_nobody_is_under_it(client, control):
    made = await ok(await client.post("/tiers", json={"name": "gold", "weight": 8, "objective": {"fast": 0.999}, "ttft_ms": 300}))
    assert made == await ok(await client.get("/tiers/gold"))
    assert (made["version"], made["sla"]["weight"], made["sla"]["rpm"]) == (1, 8.0, None)
    await ok(await client.post("/tenants", json={"slug": "acme", "tier": "gold"}))
    policy = control.directory.snapshot.policies["acme"]
    assert [policy.objective_of(lane) for lane in ("fast", "slow")] == [0.999, 0.99]
    refused = await client.delete("/tiers/gold")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "tier_in_use") and "acme" in refused.text
    await ok(await client.delete("/tenants/acme"))
    await ok(await client.delete("/tiers/gold"))
    assert (await client.get("/tiers/gold")).status_code == (await client.delete("/tiers/gold")).status_code == 404
    assert (await client.post("/tenants", json={"slug": "globex", "tier": "gold"})).json()["error"]["code"] == "unknown_tier"
    assert (await client.patch("/tiers/gold", json={"rpm": 1})).status_code == 404
    anew = await ok(await client.post("/tiers", json={"name": "gold"}))
    assert (anew["sla"]["weight"], anew["sla"]["objective"], anew["version"] > made["version"]) == (1.0, 0.99, True)
    events = (await ok(await client.get("/audit", params={"target": "tier:gold"})))["events"]
    assert [event["action"] for event in events] == ["tier.create", "tier.delete", "tier.create"]


async def test_a_wrong_tier_is_refused_by_name(client):
    for body, status, word in (
        ({}, 400, "name"),
        ({"name": 5}, 400, "name"),
        ({"name": "Größe"}, 400, "a-z"),
        ({"name": "standard"}, 409, "already"),
        ({"name": "gold", "version": 7}, 400, "tier.version"),
        ({"name": "gold", "deleted_at": None}, 400, "tier.deleted_at"),
        ({"name": "gold", "kv_reserve": 1, "kv_cap": 0.5}, 400, "kv_cap"),
    ):
        refused = await client.post("/tiers", json=body)
        assert refused.status_code == status and word in refused.json()["error"]["message"], refused.text
    assert [tier["name"] for tier in (await ok(await client.get("/tiers")))["tiers"]] == ["batch", "interactive", "standard"]


async def test_a_changed_tier_holds_for_its_tenants_but_not_over_their_overrides(client, control):
    for slug, overrides in (("acme", {}), ("globex", {"rpm": 7})):
        await ok(await client.post("/tenants", json={"slug": slug, "overrides": overrides}))
    await ok(await client.patch("/tiers/standard", json={"rpm": 5, "max_concurrency": None, "shadow_mode": True}))
    policies = control.directory.snapshot.policies
    assert [policies[slug].rpm for slug in ("acme", "globex")] == [5, 7]
    assert policies["acme"].max_concurrency is None and policies["acme"].shadow_mode


async def test_a_wrong_change_is_refused_by_name_and_changes_nothing(client, control):
    await ok(await client.post("/tenants", json={"slug": "acme", "overrides": {"default_lane": "fast"}}))
    before = control.directory.snapshot.policies
    for path, body, status, word in (
        ("/tenants/acme", {"slug": "other"}, 400, "slug: there is no such field"),
        ("/tenants/acme", {"status": "deleted"}, 400, "status"),
        ("/tenants/acme", {"overrides": {"rmp": 1}}, 400, "rmp"),
        ("/tenants/acme", {"tier": "gold"}, 400, "gold"),
        ("/tenants/acme", {"tier": "batch"}, 400, "default_lane"),
        ("/tenants/nobody", {"name": "x"}, 404, "nobody"),
        ("/tiers/gold", {"rpm": 1}, 404, "gold"),
        ("/tiers/standard", {"rmp": 1}, 400, "rmp"),
        ("/tiers/standard", {"rpm": "many"}, 400, "rpm"),
        ("/tiers/standard", {"lanes": ["slow"]}, 400, "tenant acme"),
        ("/tiers/standard", {"version": "1"}, 400, "version"),
    ):
        refused = await client.patch(path, json=body)
        assert refused.status_code == status and word in refused.json()["error"]["message"], refused.text
    assert control.directory.snapshot.policies == before


async def test_a_removed_tenant_is_gone_its_keys_refused_and_its_slug_taken(client, control):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    key = (await ok(await client.post("/tenants/acme/keys", json={"name": "k"})))["key"]
    await ok(await client.delete("/tenants/acme"))
    with pytest.raises(Unauthenticated):
        control.directory.authenticate(key, None)
    assert (await client.get("/tenants/acme")).status_code == (await client.delete("/tenants/acme")).status_code == 404
    assert (await client.post("/tenants", json={"slug": "acme"})).status_code == 409


async def test_tenants_come_in_pages_and_by_status_and_tier(client):
    for slug, tier in (("a", "batch"), ("b", "standard"), ("c", "batch")):
        await ok(await client.post("/tenants", json={"slug": slug, "tier": tier}))
    await ok(await client.patch("/tenants/c", json={"status": "suspended"}))

    async def slugs(**params: Any) -> tuple[list[str], str | None]:
        page = await ok(await client.get("/tenants", params=params))
        return [tenant["slug"] for tenant in page["tenants"]], page["next"]

    assert await slugs(limit=2) == (["a", "b"], "b")
    assert await slugs(limit=2, after="b") == (["c", "default"], None)
    assert await slugs(tier="batch") == (["a", "c"], None)
    assert await slugs(tier="batch", status="active") == (["a"], None)
    await ok(await client.patch("/tenants/b", json={"name": "100 % Böhm_"}))
    assert await slugs(search="DEF") == (["default"], None)
    assert await slugs(search="% böhm_") == await slugs(search="0 %") == (["b"], None)
    assert await slugs(search="_%") == await slugs(search="' OR 1=1 --") == ([], None)
    assert (await client.get("/tenants", params={"limit": 0})).status_code == 400


async def test_keys_come_in_pages_oldest_first(client):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    made = [(await ok(await client.post("/tenants/acme/keys", json={"name": f"k{n}"})))["id"] for n in range(5)]
    seen, after, pages = [], "", 0
    while after is not None:
        page = await ok(await client.get("/tenants/acme/keys", params={"limit": 2, "after": after}))
        seen += [key["id"] for key in page["keys"]]
        after, pages = page["next"], pages + 1
    assert (seen, pages) == (made, 3)
    of_another = (await ok(await client.get("/tenants/default/keys")))["keys"][0]["id"]
    assert (await client.get("/tenants/acme/keys", params={"after": of_another})).status_code == 404


async def test_pages_of_keys_for_people_keep_their_places_while_keys_are_made_and_end(client, control):
    async def make(name: str) -> str:
        return (await ok(await client.post("/tenants/acme/keys", json={"name": name})))["id"]

    async def page_of(**place: str) -> tuple[list[str], int, int, int]:
        wanted = KeySearch(now=utc_now(), tenant="acme", with_ended=with_ended)
        async with control.store.database.read() as session:
            page = await find_keys(session, wanted, 2, **place)
        return [found.key.name for found in page.keys], page.first, page.end, page.total

    with_ended = True
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    ids = {name: await make(name) for name in "abcde"}
    async with control.store.database.write() as session:  # made at once: their ids tell them apart
        moment = (await session.get_one(ApiKey, ids["c"])).created_at
        (await session.get_one(ApiKey, ids["b"])).created_at = moment
    c, b = sorted("bc", key=lambda name: ids[name], reverse=True)
    assert await page_of() == (["e", "d"], 0, 2, 5)
    assert await page_of(after=ids["d"]) == ([c, b], 2, 4, 5)
    assert await page_of(after=ids[c]) == ([b, "a"], 3, 5, 5)
    ids["f"] = await make("f")
    assert await page_of(after=ids["d"]) == ([c, b], 3, 5, 6), "where pages are counted, d comes again"
    assert await page_of(before=ids[c]) == (["e", "d"], 1, 3, 6)
    assert await page_of(before=ids["e"]) == (["f", "e"], 0, 2, 6), "a whole page, where fewer are in front"
    assert await page_of(after=ids["a"]) == (["f", "e"], 0, 2, 6), "nothing is behind it"
    with_ended = False
    await ok(await client.delete(f"/tenants/acme/keys/{ids['d']}"))
    assert await page_of(after=ids["d"]) == ([c, b], 2, 4, 5), "a key that has ended keeps its place"
    with pytest.raises(NotFound, match="no key 'key_none'"):
        await page_of(before="key_none")


async def test_a_rotated_key_works_for_its_grace_time_and_the_new_one_is_like_it(client, control):
    made = await ok(await client.post("/tenants/default/keys", json={"name": "ci", "rpm": 3, "lanes": ["fast"]}))
    rotated = await ok(await client.post(f"/tenants/default/keys/{made['id']}/rotate", json={"grace_s": 600}))
    old, new = (control.directory.authenticate(key, None) for key in (made["key"], rotated["key"]))
    assert (new.limits.rpm, new.lanes) == (old.limits.rpm, old.lanes) == (3, {"fast"}) and new.key_id != old.key_id
    again = await ok(await client.post(f"/tenants/default/keys/{rotated['id']}/rotate", json={"grace_s": 0}))
    with pytest.raises(Unauthenticated, match="expired"):
        control.directory.authenticate(rotated["key"], None)
    assert control.directory.authenticate(again["key"], None)
    assert (await client.post(f"/tenants/default/keys/{again['id']}/rotate", json={"grace_s": 1e9})).status_code == 400
    hour = await ok(await client.post(f"/tenants/default/keys/{again['id']}/rotate"))
    replaced = next(key for key in (await ok(await client.get("/tenants/default/keys")))["keys"] if key["id"] == again["id"])
    left_s = (datetime.fromisoformat(replaced["grace_until"]) - datetime.now(UTC)).total_seconds()
    assert hour["key"] and 3_500 < left_s <= 3_600, "without a body"
    await ok(await client.delete(f"/tenants/default/keys/{again['id']}"))
    assert (await client.post(f"/tenants/default/keys/{again['id']}/rotate", json={})).status_code == 409


async def test_a_replaced_key_is_not_replaced_again_and_comes_back_by_no_second_grace_time(client, control):
    made = await ok(await client.post("/tenants/default/keys", json={"name": "leaked"}))
    await ok(await client.post(f"/tenants/default/keys/{made['id']}/rotate", json={"grace_s": 0}))
    again = await client.post(f"/tenants/default/keys/{made['id']}/rotate", json={"grace_s": 600})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "replaced_api_key")
    with pytest.raises(Unauthenticated, match="expired"):
        control.directory.authenticate(made["key"], None)


async def test_a_key_of_administration_neither_widens_itself_nor_makes_or_changes_one_of_its_kind(client):
    made = await ok(await client.post("/tenants/default/keys", json={"name": "robot", "scopes": ["admin:read", "admin:write"], "rpm": 1}))
    robot = {"Authorization": f"Bearer {made['key']}"}
    path = f"/tenants/default/keys/{made['id']}"
    refused = [
        await client.patch(path, json={"rpm": None}, headers=robot),
        await client.post(f"{path}/rotate", json={}, headers=robot),
        await client.post("/tenants/default/keys", json={"name": "child", "scopes": ["admin:read"]}, headers=robot),
    ]
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [
        (403, "own_key"), (403, "own_key"), (403, "missing_scope")
    ]  # fmt: skip
    plain = await ok(await client.post("/tenants/default/keys", json={"name": "worker"}, headers=robot))
    widened = await client.patch(f"/tenants/default/keys/{plain['id']}", json={"scopes": ["admin:write"]}, headers=robot)
    assert widened.status_code == 403


async def test_a_suspended_tenants_key_of_administration_is_refused_as_well(client):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    made = await ok(await client.post("/tenants/acme/keys", json={"name": "robot", "scopes": ["admin:read", "admin:write"]}))
    await ok(await client.patch("/tenants/acme", json={"status": "suspended"}))
    robot = {"Authorization": f"Bearer {made['key']}"}
    freed = await client.patch("/tenants/acme", json={"status": "active"}, headers=robot)
    assert (freed.status_code, freed.json()["error"]["code"]) == (403, "tenant_suspended")


async def test_a_keys_expiry_and_limits_change_at_once(client, control):
    made = await ok(await client.post("/tenants/default/keys", json={"name": "k", "tokens_per_day": 100, "tpm": 10}))
    path = f"/tenants/default/keys/{made['id']}"
    changed = await ok(await client.patch(path, json={"tpm": None, "rpm": 5}))
    assert (changed["tpm"], changed["rpm"], changed["tokens_per_day"], changed["version"]) == (None, 5, 100, 2)
    limits = control.directory.authenticate(made["key"], None).limits
    assert (limits.rpm, limits.tpm, limits.tokens_per_day) == (5, None, 100)
    assert (await client.patch(path, json={"rpm": 6, "version": 1})).status_code == 409
    await ok(await client.patch(path, json={"expires_at": "2020-01-01T00:00:00Z"}))
    with pytest.raises(Unauthenticated, match="expired"):
        control.directory.authenticate(made["key"], None)
    await ok(await client.patch(path, json={"expires_at": None}))
    assert control.directory.authenticate(made["key"], None)
    assert (await client.patch(path, json={"expires_at": "2020-01-01T00:00:00"})).status_code == 400
    assert (await client.patch(path, json={"expires_at": "9999-12-31T23:59:59-14:00"})).status_code == 400
    await ok(await client.patch(path, json={"name": " ci ", "lanes": ["fast", "fast"], "models": ["m"], "scopes": ["gateway"]}))
    principal = control.directory.authenticate(made["key"], "default")
    assert (principal.lanes, principal.models, principal.scopes) == ({"fast"}, {"m"}, {Scope.GATEWAY})
    for field, wrong in (("name", ""), ("scopes", []), ("scopes", ["root"]), ("lanes", ["express"]), ("models", [""]), ("name", None)):
        refused = await client.patch(path, json={field: wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field), refused.text


async def test_every_change_is_audited_with_what_differs_and_no_secret(client):
    await ok(await client.post("/tenants", json={"slug": "acme"}))
    key = await ok(await client.post("/tenants/acme/keys", json={"name": "k"}))
    target = f"tenant:acme/key:{key['id']}"
    await ok(await client.patch("/tenants/acme", json={"overrides": {"rpm": 5}, "name": "acme"}))
    await ok(await client.patch("/tenants/acme", json={"name": "acme"}))  # no change, no event
    await ok(await client.patch("/tiers/batch", json={"weight": 0.25}))
    await ok(await client.post(f"/tenants/acme/keys/{key['id']}/rotate", json={}))
    await ok(await client.delete(f"/tenants/acme/keys/{key['id']}"))
    await ok(await client.delete("/tenants/acme"))
    await client.patch("/tiers/batch", json={"weight": -1})  # refused, no event
    answer = await client.get("/audit")
    events = by_hand(answer.json()["events"])
    assert [event["action"] for event in reversed(events)] == [
        "tenant.create", "key.create", "tenant.update", "tier.update", "key.rotate", "key.create", "key.revoke", "tenant.delete"
    ]  # fmt: skip
    by_action = {event["action"]: event for event in events}
    assert (by_action["tenant.update"]["before"], by_action["tenant.update"]["after"]) == ({"overrides": {}}, {"overrides": {"rpm": 5}})
    assert by_action["tier.update"]["after"] == {"weight": 0.25} and by_action["tier.update"]["target"] == "tier:batch"
    assert by_action["key.revoke"]["target"] == target and list(by_action["key.revoke"]["after"]) == ["disabled_at"]
    assert {event["actor"] for event in events} == {"bootstrap-admin"} and {event["source"] for event in events} == {"127.0.0.1"}
    assert key["key"] not in answer.text
    first = (await client.get("/audit", params={"limit": 3})).json()
    second = (await client.get("/audit", params={"limit": 100, "before": first["next"]})).json()
    assert by_hand([*first["events"], *second["events"]]) == events and second["next"] is None
    of_key = (await client.get("/audit", params={"target": target})).json()["events"]
    assert [event["action"] for event in of_key] == ["key.revoke", "key.rotate", "key.create"]
    of_tenant = (await client.get("/audit", params={"target": "tenant:acme"})).json()["events"]
    assert [event for event in events if event["target"] != "tier:batch"] == of_tenant, "its keys belong to it"


async def test_a_change_that_changes_nothing_raises_no_version_and_is_no_event(client, control):
    await ok(await client.post("/tenants", json={"slug": "acme", "overrides": {"rpm": 5}}))
    key = await ok(await client.post("/tenants/acme/keys", json={"name": "k", "rpm": 3}))
    bob = await ok(await client.post("/admins", json={"name": "bob", "role": "viewer", "password": "a horse, a staple"}))
    await client.delete(f"/tenants/acme/keys/{(await ok(await client.post('/tenants/acme/keys', json={'name': 'gone'})))['id']}")
    version, events = control.directory.snapshot.version, (await client.get("/audit")).json()
    for path, change in (
        ("/tenants/acme", {"name": "acme", "tier": "standard", "overrides": {"rpm": 5}, "status": "active"}),
        ("/tiers/batch", {"priority": (await ok(await client.get("/tiers/batch")))["sla"]["priority"]}),
        (f"/tenants/acme/keys/{key['id']}", {"rpm": 3, "scopes": ["inference"], "expires_at": None}),
        (f"/admins/{bob['id']}", {"role": "viewer", "disabled": False}),
    ):
        for body in ({}, {"version": 1}, change):
            assert (await ok(await client.patch(path, json=body)))["version"] == 1, (path, body)
    gone = next(each["id"] for each in (await client.get("/tenants/acme/keys")).json()["keys"] if each["disabled_at"])
    assert (await client.delete(f"/tenants/acme/keys/{gone}")).status_code == 204
    assert control.directory.snapshot.version == version
    assert (await client.get("/audit")).json() == events


REPLACEMENT = (
    "INTO audit_event (id, at, actor, actor_id, source, request_id, action, target) "
    "SELECT id, at, 'nobody', actor_id, source, request_id, action, target FROM audit_event WHERE true"
)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_event SET actor = 'nobody'",
        "DELETE FROM audit_event",
        f"INSERT {REPLACEMENT} ON CONFLICT (id) DO UPDATE SET actor = 'nobody'",
        f"INSERT OR REPLACE {REPLACEMENT}",
        f"REPLACE {REPLACEMENT}",
        "TRUNCATE audit_event",
    ],
)
async def test_the_database_itself_refuses_to_change_the_audit(client, control, change):
    await ok(await client.post("/tenants", json={"slug": "acme"}))

    async def meddle() -> None:
        async with control.store.database.write() as session:
            await session.execute(text(change))

    spoken_by_both = "REPLACE" not in change and "TRUNCATE" not in change
    with pytest.raises(DBAPIError, match="append only" if spoken_by_both else "append only|syntax error"):
        await meddle()
    assert len(by_hand((await client.get("/audit")).json()["events"])) == 1


async def test_the_actor_of_a_key_is_the_key(client):
    made = await ok(await client.post("/tenants/default/keys", json={"name": "robot", "scopes": ["admin:write"]}))
    robot = {"Authorization": f"Bearer {made['key']}"}
    await ok(await client.patch("/tiers/batch", json={"rpm": 8}, headers=robot))
    assert (await client.get("/audit")).json()["events"][0]["actor"] == f"key:{made['id']}"
    assert (await client.get("/audit", headers={"Authorization": f"Bearer {API_KEY}"})).status_code == 403


async def test_contracts_beyond_the_measured_capacity_are_taken_with_a_warning_by_how_much(client, control):
    none = await ok(await client.post("/tenants", json={"slug": "free"}))
    assert none["warnings"] == []
    (unknown,) = (await ok(await client.post("/tenants", json={"slug": "first", "overrides": {"committed_tpm": 700}})))["warnings"]
    assert "700 tokens a minute" in unknown and "not known" in unknown, "no engine has measured anything yet"
    control.directory.capacity.own_tpm = 1_000
    await control.directory.keep_capacity()
    fits = await ok(await client.post("/tenants", json={"slug": "second", "overrides": {"committed_tpm": 300}}))
    assert fits["warnings"] == []
    (warning,) = (await ok(await client.patch("/tenants/second", json={"overrides": {"committed_tpm": 550}})))["warnings"]
    assert "1250 tokens a minute, 250 more than the 1000" in warning
    (warning,) = (await ok(await client.patch("/tiers/batch", json={"rpm": 5})))["warnings"]
    assert "250 more" in warning, "a change of a tier says so too"
    applied = {"config": {"tenants": {"third": {"overrides": {"committed_tpm": 1}}}}}
    (planned,) = (await ok(await client.post("/config/plan", json=applied)))["warnings"]
    assert "1251 tokens a minute, 251 more" in planned, "before it is applied"
    (warning,) = (await ok(await client.post("/config/apply", json=applied)))["warnings"]
    assert "1251 tokens a minute, 251 more" in warning
    async with control.store.database.read() as session:
        assert await read_contract_warnings(session) == [warning], "the command line and the next start know what was measured"
    control.directory.capacity.others_tpm = 251
    assert (await ok(await client.patch("/tiers/batch", json={"rpm": 6})))["warnings"] == [], "another process can do the rest"
