"""Administrators and their tokens over HTTP, on both databases."""

import secrets
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from httpx import AsyncClient
from sqlalchemy import select, update

from appliance.db.base import utc_now
from appliance.domain.admins.models import AdminSession, AdminToken, AdminUser
from appliance.domain.tenants.bootstrap import Control, open_control
from tests.control.admin_api import ADMIN, PASSWORD, api_client, by_hand, log_in, make_admin, make_token, ok, refused

SCOPES = ["admin:read", "admin:write"]


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    async with api_client(control) as opened:
        yield opened


async def test_an_administrator_is_made_changed_and_removed_and_each_is_audited_without_a_secret(client):
    made = await ok(await client.post("/admins", json={"name": "alice", "role": "operator", "password": PASSWORD}, headers=ADMIN))
    path = f"/admins/{made['id']}"
    assert (made["name"], made["role"], made["has_password"], made["disabled_at"]) == ("alice", "operator", True, None)
    assert made == await ok(await client.get(path, headers=ADMIN))
    assert [each["name"] for each in (await ok(await client.get("/admins", headers=ADMIN)))["admins"]] == ["alice"]
    changed = await ok(await client.patch(path, json={"role": "viewer", "password": PASSWORD + "!", "version": 1}, headers=ADMIN))
    assert (changed["role"], changed["version"]) == ("viewer", 2)
    await ok(await client.delete(path, headers=ADMIN))
    assert refused(await client.get(path, headers=ADMIN), 404, "admin_not_found")
    answer = await client.get("/audit", headers=ADMIN)
    events = by_hand(answer.json()["events"])
    assert [event["action"] for event in events] == ["admin.delete", "admin.update", "admin.create"]
    assert {event["target"] for event in events} == {"admin:alice"} and {event["source"] for event in events} == {"203.0.113.7"}
    assert events[1]["before"] == {"role": "operator", "password": "(hidden)"}
    assert events[1]["after"] == {"role": "viewer", "password": "(hidden)"}
    assert PASSWORD not in answer.text and "argon2" not in answer.text


async def test_nothing_in_the_database_is_a_password_or_a_token(client, control):
    admin_id = await make_admin(client, "alice", "viewer")
    _, header = await make_token(client, admin_id)
    await log_in(client, "alice")
    await ok(await client.get("/me"))
    async with control.store.database.read() as session:
        admin = (await session.scalars(select(AdminUser))).one()
        token = (await session.scalars(select(AdminToken))).one()
        begun = (await session.scalars(select(AdminSession))).one()
    assert admin.password_hash.startswith("$argon2id$v=19$m=19456,t=2,p=1$") and PASSWORD not in admin.password_hash
    assert len(token.digest) == len(begun.digest) == 32
    secret = header["Authorization"].removeprefix("Bearer ")
    assert token.prefix == secret[:6] and token.last4 == secret[-4:] and secret.encode() not in token.digest
    assert client.cookies["fairlane_session"].encode() not in begun.digest


async def test_a_session_is_followed_by_its_requests_and_ended_by_logging_out(client, control):
    await make_admin(client, "alice", "viewer")
    csrf = await log_in(client, "alice")

    async def begun() -> AdminSession | None:
        async with control.store.database.read() as session:
            return (await session.scalars(select(AdminSession))).one_or_none()

    long_ago = utc_now() - timedelta(minutes=5)
    async with control.store.database.write() as session:
        await session.execute(update(AdminSession).values(seen_at=long_ago))
    await ok(await client.get("/me"))
    seen = await begun()
    assert seen is not None and utc_now() - seen.seen_at < timedelta(minutes=1)
    await ok(await client.post("/logout", headers=csrf))
    assert await begun() is None


@pytest.mark.parametrize("change", [{"role": "operator"}, {"disabled": True}, None])
async def test_the_last_owner_can_not_be_demoted_disabled_or_removed(client, change):
    first, second = await make_admin(client, "first", "owner"), await make_admin(client, "second", "owner")

    async def take_away(admin_id: str):
        path = f"/admins/{admin_id}"
        return await (client.delete(path, headers=ADMIN) if change is None else client.patch(path, json=change, headers=ADMIN))

    await ok(await take_away(first))
    assert "make another one first" in refused(await take_away(second), 409, "last_owner")
    _, header = await make_token(client, second)
    assert (await ok(await client.get("/me", headers=header)))["scopes"] == ["admin:manage", "admin:read", "admin:write"]


async def test_a_wrong_administrator_is_refused_by_name_and_changes_nothing(client):
    await make_admin(client, "alice", "owner")
    for body, status, code, word in (
        ({"name": "Alice"}, 400, "invalid_name", "a-z"),
        ({"name": "аlice"}, 400, "invalid_name", "a-z"),  # Cyrillic
        ({"name": "a\nb"}, 400, "invalid_name", "a-z"),
        ({"name": "x" * 65}, 400, "invalid_request", "name"),
        ({"name": "bob", "role": "god"}, 400, "invalid_value", "viewer, operator, owner"),
        ({"name": "bob", "password": "short"}, 400, "weak_password", "12 to 256"),
        ({"name": "bob", "password": "x" * 257}, 400, "invalid_request", "password"),
        ({"name": "bob", "password": "aaaaaaaaaaaaaaaaaa"}, 400, "weak_password", "longer phrase"),
        ({"name": "administrator", "password": "administrator1"}, 400, "weak_password", "name"),
        ({"name": "bob", "password_hash": "x"}, 400, "invalid_request", "password_hash: there is no such field"),
        ({"name": "bob", "id": "adm_1"}, 400, "invalid_request", "id: there is no such field"),
        ({"name": "alice"}, 409, "admin_exists", "already"),
    ):
        assert word in refused(await client.post("/admins", json=body, headers=ADMIN), status, code)
    assert len((await ok(await client.get("/admins", headers=ADMIN)))["admins"]) == 1


async def test_of_two_who_edit_one_administrator_the_second_is_shown_both_versions(client):
    await make_admin(client, "boss", "owner")
    path = f"/admins/{await make_admin(client, 'alice', 'viewer')}"
    await ok(await client.patch(path, json={"role": "operator", "version": 1}, headers=ADMIN))
    answer = await client.patch(path, json={"role": "owner", "version": 1}, headers=ADMIN)
    refused(answer, 409, "version_conflict")
    conflict = answer.json()["error"]["edit_conflict"]
    assert (conflict["given_version"], conflict["present_version"], conflict["present"]["role"]) == (1, 2, "operator")


async def test_a_token_does_what_its_role_and_its_administrators_role_allow_and_ends_when_revoked(client, control, settings):
    admin_id = await make_admin(client, "alice", "operator")
    token_id, wide = await make_token(client, admin_id)
    _, narrow = await make_token(client, admin_id, role="viewer")
    assert (await client.post("/tenants", json={"slug": "acme"}, headers=wide)).status_code == 201
    assert "admin:write" in refused(await client.post("/tenants", json={"slug": "b"}, headers=narrow), 403, "missing_scope")
    created = (await ok(await client.get("/audit", params={"target": "tenant:acme"}, headers=narrow)))["events"][0]
    assert (created["actor"], created["actor_id"]) == ("admin:alice", f"{admin_id}/{token_id}")
    other = await open_control(settings)  # another process on the database
    await ok(await client.patch(f"/admins/{admin_id}", json={"role": "viewer"}, headers=ADMIN))
    refused(await client.post("/tenants", json={"slug": "b"}, headers=wide), 403, "missing_scope")
    await ok(await client.patch(f"/admins/{admin_id}", json={"disabled": True}, headers=ADMIN))
    refused(await client.get("/tenants", headers=wide), 401, "revoked_admin_token")
    await ok(await client.patch(f"/admins/{admin_id}", json={"disabled": False}, headers=ADMIN))
    for _ in range(2):  # again is no error
        await ok(await client.delete(f"/admins/{admin_id}/tokens/{token_id}", headers=ADMIN))
    refused(await client.get("/tenants", headers=wide), 401, "revoked_admin_token")
    await ok(await client.get("/tenants", headers=narrow))
    listed = await client.get(f"/admins/{admin_id}/tokens", headers=ADMIN)
    assert [token["disabled_at"] is None for token in listed.json()["tokens"]] == [False, True]
    assert wide["Authorization"].removeprefix("Bearer ") not in listed.text
    await ok(await client.delete(f"/admins/{admin_id}", headers=ADMIN))
    refused(await client.get("/tenants", headers=narrow), 401, "invalid_api_key")
    await other.directory.poll()
    async with api_client(other) as elsewhere:
        refused(await elsewhere.get("/tenants", headers=narrow), 401, "invalid_api_key")
    await other.close()


async def test_nobody_makes_a_token_that_can_do_or_outlast_more_than_its_maker(client):
    viewer, owner = await make_admin(client, "viewer", "viewer"), await make_admin(client, "owner", "owner")
    soon = (utc_now() + timedelta(hours=1)).isoformat()
    _, of_viewer = await make_token(client, viewer)
    _, of_owner_as_viewer = await make_token(client, owner, role="viewer")
    _, short = await make_token(client, owner, expires_at=soon)
    tokens = f"/admins/{owner}/tokens"
    assert (await client.post(f"/admins/{viewer}/tokens", json={"name": "mine"}, headers=of_viewer)).status_code == 201
    refused(await client.post(f"/admins/{viewer}/tokens", json={"name": "t", "role": "operator"}, headers=of_viewer), 403, "role_too_high")
    refused(await client.post(f"/admins/{viewer}/tokens", json={"name": "t", "role": "owner"}, headers=ADMIN), 403, "role_too_high")
    refused(await client.post(tokens, json={"name": "t"}, headers=of_viewer), 403, "missing_scope")
    refused(await client.post(tokens, json={"name": "t"}, headers=of_owner_as_viewer), 403, "role_too_high")
    assert "outlasts" in refused(await client.post(tokens, json={"name": "t"}, headers=short), 403, "forbidden")
    assert (await client.post(tokens, json={"name": "t", "expires_at": soon}, headers=short)).status_code == 201


async def test_a_token_made_with_a_token_outlives_its_revocation_and_ends_with_the_administrator(client):
    alice = await make_admin(client, "alice", "operator")
    first_id, of_first = await make_token(client, alice)
    made = await ok(await client.post(f"/admins/{alice}/tokens", json={"name": "second"}, headers=of_first))
    of_second = {"Authorization": f"Bearer {made['token']}"}
    await ok(await client.delete(f"/admins/{alice}/tokens/{first_id}", headers=ADMIN))
    refused(await client.get("/me", headers=of_first), 401, "revoked_admin_token")
    await ok(await client.get("/me", headers=of_second))
    (event,) = [each for each in (await ok(await client.get("/audit", headers=ADMIN)))["events"] if each["target"].endswith(made["id"])]
    assert (event["action"], event["actor_id"]) == ("admin.token.create", f"{alice}/{first_id}"), "how it is found after a leak"
    await ok(await client.patch(f"/admins/{alice}", json={"disabled": True}, headers=ADMIN))
    refused(await client.get("/me", headers=of_second), 401, "revoked_admin_token")


async def test_a_token_of_somebody_else_is_not_found_and_stays_valid(client):
    alice, bob = await make_admin(client, "alice", "viewer"), await make_admin(client, "bob", "viewer")
    token_id, of_alice = await make_token(client, alice)
    _, of_bob = await make_token(client, bob)
    refused(await client.delete(f"/admins/{bob}/tokens/{token_id}", headers=of_bob), 404, "token_not_found")
    refused(await client.delete(f"/admins/{alice}/tokens/{token_id}", headers=of_bob), 403, "missing_scope")
    for path in (f"/admins/{alice}", f"/admins/{alice}/tokens"):
        refused(await client.get(path, headers=of_bob), 403, "missing_scope")
        await ok(await client.get(path, headers=of_alice))


async def test_a_key_of_administration_ends_with_who_made_it(client):
    alice, bob = await make_admin(client, "alice", "operator"), await make_admin(client, "bob", "operator")
    token_id, of_token = await make_token(client, alice)
    _, of_bob = await make_token(client, bob)
    csrf = await log_in(client, "alice")

    async def new_key(headers: dict[str, str], **fields: object) -> dict[str, str]:
        made = await ok(await client.post("/tenants/default/keys", json={"name": "k", "scopes": SCOPES, **fields}, headers=headers))
        return {"Authorization": f"Bearer {made['key']}"} | {"id": made["id"]}

    by_session, by_token, by_nobody = await new_key(csrf), await new_key(of_token), await new_key(ADMIN)
    plain = await new_key(ADMIN, scopes=["inference"])
    for key, given in ((plain, {"scopes": SCOPES}), (by_token, {"name": "renamed"})):
        await ok(await client.patch(f"/tenants/default/keys/{key['id']}", json=given, headers=of_bob))
    rotated = await ok(await client.post(f"/tenants/default/keys/{by_token['id']}/rotate", json={}, headers=of_bob))
    of_rotated = {"Authorization": f"Bearer {rotated['key']}"}

    async def change(headers: dict[str, str]) -> str:
        bearer = {"Authorization": headers["Authorization"]}
        answer = await client.patch("/tenants/default", json={"name": secrets.token_hex(4)}, headers=bearer)
        return "" if answer.status_code == 200 else answer.json()["error"]["code"]

    everyone = (by_session, by_token, by_nobody, plain, of_rotated)
    assert [await change(key) for key in everyone] == ["", "", "", "", ""]
    await ok(await client.delete(f"/admins/{alice}/tokens/{token_id}", headers=ADMIN))
    assert [await change(key) for key in everyone] == ["", "grantor_gone", "", "", ""], "bob renamed it, and gave it nothing"
    shown = {key["id"]: key for key in (await ok(await client.get("/tenants/default/keys", headers=ADMIN)))["keys"]}
    assert [shown[key["id"]]["grantor_gone"] for key in (by_session, by_token, by_nobody, plain)] == [False, True, False, False]
    assert [shown[key["id"]]["granted_by"] for key in (by_session, by_token, by_nobody)] == [alice, f"{alice}/{token_id}", None]
    await ok(await client.patch(f"/admins/{alice}", json={"role": "viewer"}, headers=ADMIN))
    assert await change(by_session) == "missing_scope"
    await ok(await client.patch(f"/admins/{alice}", json={"role": "operator", "disabled": True}, headers=ADMIN))
    assert await change(by_session) == "grantor_gone"
    await ok(await client.delete(f"/admins/{alice}", headers=ADMIN))
    assert await change(by_session) == "grantor_gone"
    await ok(await client.delete(f"/admins/{bob}", headers=ADMIN))
    assert [await change(key) for key in everyone] == ["grantor_gone", "grantor_gone", "", "grantor_gone", "grantor_gone"]


async def test_a_key_can_not_be_given_the_scope_of_owners(client):
    answer = await client.post("/tenants/default/keys", json={"name": "k", "scopes": ["admin:manage"]}, headers=ADMIN)
    assert "the scopes are inference, gateway, metrics, admin:read, admin:write" in refused(answer, 400, "invalid_value")


async def test_a_token_revokes_itself_and_none_that_may_do_more(client):
    admin_id = await make_admin(client, "alice", "operator")
    strong_id, _ = await make_token(client, admin_id)
    weak_id, of_weak = await make_token(client, admin_id, role="viewer")
    refused(await client.delete(f"/admins/{admin_id}/tokens/{strong_id}", headers=of_weak), 403, "role_too_high")
    await ok(await client.delete(f"/admins/{admin_id}/tokens/{weak_id}", headers=of_weak))
