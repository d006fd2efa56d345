"""The admin routes over HTTP, on both databases."""

from collections.abc import AsyncIterator

import pytest
from httpx import ASGITransport, AsyncClient
from litestar import Litestar

from appliance.domain.access.principal import Scope
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.domain.tenants.routes import admin_router
from appliance.errors import Unauthenticated
from appliance.problems import EXCEPTION_HANDLERS
from tests.control.conftest import ADMIN_TOKEN, API_KEY

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    app = Litestar([admin_router(control)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    transport = ASGITransport(app, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url="http://test", headers=ADMIN) as opened:
        yield opened


async def test_a_tenant_is_created_and_listed_with_its_effective_sla(client):
    body = {"slug": "acme", "name": "Acme Inc.", "tier": "interactive", "overrides": {"rpm": 60, "max_concurrency": None}}
    created = await client.post("/api/v1/tenants", json=body)
    assert created.status_code == 201, created.text
    listed = {tenant["slug"]: tenant for tenant in (await client.get("/api/v1/tenants")).json()["tenants"]}
    assert sorted(listed) == ["acme", "default"]
    assert listed["acme"] == created.json() == (await client.get("/api/v1/tenants/acme")).json()
    effective = listed["acme"]["effective"]
    assert (effective["rpm"], effective["max_concurrency"], effective["weight"]) == (60, None, 4.0)


async def test_a_slug_alone_makes_a_tenant_under_the_standard_tier(client):
    created = (await client.post("/api/v1/tenants", json={"slug": "acme"})).json()
    assert (created["name"], created["tier"], created["overrides"]) == ("acme", "standard", {})


async def test_a_key_works_at_once_is_shown_once_and_is_refused_at_once_when_revoked(client, control):
    await client.post("/api/v1/tenants", json={"slug": "acme", "overrides": {"rpm": 7}})
    made = await client.post("/api/v1/tenants/acme/keys", json={"name": "ci", "scopes": ["inference", "metrics"]})
    assert made.status_code == 201, made.text
    key_id, key = made.json()["id"], made.json()["key"]
    principal = control.directory.authenticate(key, None)
    assert (principal.tenant_id, principal.key_id, principal.policy.rpm) == ("acme", key_id, 7)
    assert principal.scopes == {Scope.INFERENCE, Scope.METRICS}
    listed = await client.get("/api/v1/tenants/acme/keys")
    assert key not in listed.text
    assert [(each["id"], each["last4"]) for each in listed.json()["keys"]] == [(key_id, key[-4:])]
    for _ in range(2):  # again is no error
        assert (await client.delete(f"/api/v1/tenants/acme/keys/{key_id}")).status_code == 204
    with pytest.raises(Unauthenticated, match="revoked"):
        control.directory.authenticate(key, None)


async def test_a_key_of_another_tenant_is_not_found_and_stays_valid(client, control):
    await client.post("/api/v1/tenants", json={"slug": "acme"})
    key_id = control.directory.authenticate(API_KEY, None).key_id
    assert (await client.delete(f"/api/v1/tenants/acme/keys/{key_id}")).status_code == 404
    assert control.directory.authenticate(API_KEY, None).key_id == key_id


async def test_a_wrong_tenant_is_refused_by_name_and_changes_nothing(client):
    for body, status, code, message in (
        ({"slug": "default"}, 409, "tenant_exists", "'default' already"),
        ({"slug": "Acme"}, 400, "invalid_slug", "a-z"),
        ({"slug": "acme", "tier": "gold"}, 400, "unknown_tier", "batch, interactive, standard"),
        ({"slug": "acme", "overrides": {"rmp": 1}}, 400, "invalid_value", "the fields are weight"),
        ({"slug": "acme", "overrides": {"kv_reserve": 0.9, "kv_cap": 0.1}}, 400, "invalid_value", "above kv_cap"),
        ({"slug": "acme", "overrides": []}, 400, "invalid_request", "overrides"),
        ({"slug": "acme", "status": "deleted"}, 400, "invalid_request", "status: there is no such field"),
        ({"slug": "acme", "trust_group": "A B"}, 400, "invalid_slug", "trust_group"),
        ({"name": "acme"}, 400, "invalid_request", "slug: is required"),
    ):
        refused = await client.post("/api/v1/tenants", json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (status, code), error
        assert message in error["message"]
    assert [tenant["slug"] for tenant in (await client.get("/api/v1/tenants")).json()["tenants"]] == ["default"]


async def test_a_wrong_key_is_refused_by_name_and_changes_nothing(client):
    for body, param in (({}, "name"), ({"name": "k", "scopes": ["root"]}, "scopes"), ({"name": "k", "digest": "x"}, "digest")):
        refused = await client.post("/api/v1/tenants/default/keys", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    assert len((await client.get("/api/v1/tenants/default/keys")).json()["keys"]) == 1


async def test_an_unknown_tenant_is_not_found(client):
    for response in (
        await client.get("/api/v1/tenants/nobody"),
        await client.get("/api/v1/tenants/nobody/keys"),
        await client.post("/api/v1/tenants/nobody/keys", json={"name": "k"}),
        await client.delete("/api/v1/tenants/nobody/keys/key_1"),
    ):
        assert (response.status_code, response.json()["error"]["code"]) == (404, "tenant_not_found")


async def test_the_tiers_show_every_field(client):
    tiers = (await client.get("/api/v1/tiers")).json()["tiers"]
    assert [tier["name"] for tier in tiers] == ["batch", "interactive", "standard"]
    assert tiers[2]["sla"]["max_concurrency"] == 64
    assert "shadow_mode" in tiers[2]["sla"]


async def test_a_reading_key_reads_and_does_not_write(client, control):
    made = await client.post("/api/v1/tenants/default/keys", json={"name": "auditor", "scopes": ["admin:read"]})
    reader = {"Authorization": f"Bearer {made.json()['key']}"}
    assert (await client.get("/api/v1/tenants", headers=reader)).status_code == 200
    assert (await client.post("/api/v1/tenants", json={"slug": "acme"}, headers=reader)).status_code == 403
    assert "acme" not in control.directory.snapshot.policies


async def test_a_form_is_no_json(client):
    refused = await client.post("/api/v1/tenants", data={"slug": "acme"})
    assert refused.status_code == 415


async def test_errors_are_documented_in_the_shape_they_have(client):
    document = (await client.get("/schema/openapi.json")).json()
    responses = document["paths"]["/api/v1/tenants"]["post"]["responses"]
    assert {"201", "400", "401", "403", "409", "415", "503"} <= set(responses)
    assert all("ErrorBody" in str(response["content"]) for status, response in responses.items() if status != "201")


async def test_a_write_by_another_process_is_followed_by_the_next_poll(client, settings):
    other = await open_control(settings)
    await client.post("/api/v1/tenants", json={"slug": "acme"})
    assert "acme" not in other.directory.snapshot.policies
    await other.directory.poll()
    assert "acme" in other.directory.snapshot.policies
    key = (await client.post("/api/v1/tenants/acme/keys", json={"name": "k"})).json()
    await other.directory.poll()
    assert other.directory.authenticate(key["key"], None).tenant_id == "acme"
    await client.delete(f"/api/v1/tenants/acme/keys/{key['id']}")
    await other.directory.poll()
    with pytest.raises(Unauthenticated, match="revoked"):
        other.directory.authenticate(key["key"], None)
    await other.close()


async def test_an_end_of_time_beyond_utc_and_endless_nesting_are_refused(client):
    body = {"name": "k", "scopes": ["inference"], "expires_at": "9999-12-31T23:59:59-14:00"}
    refused = await client.post("/api/v1/tenants/default/keys", json=body)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "expires_at"
    nested = b'{"slug": "acme", "overrides": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001
    refused = await client.post("/api/v1/tenants", content=nested, headers={"content-type": "application/json"})
    assert refused.status_code == 400 and "nested" in refused.json()["error"]["message"]
