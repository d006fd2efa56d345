"""Texts that PostgreSQL can not store are refused alike on both databases, and none of a request's texts gets into an error."""

from collections.abc import AsyncIterator

import pytest
from httpx import AsyncClient
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from appliance.db.database import Database
from appliance.domain.tenants.bootstrap import Control
from appliance.errors import Invalid
from appliance.settings import Settings, sqlalchemy_url
from tests.control.admin_api import ADMIN, PASSWORD, api_client, make_admin, refused


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    async with api_client(control) as opened:
        opened.headers.update(ADMIN)
        yield opened


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/tenants/a%00b", None),
        ("GET", "/tenants/a%00b/keys", None),
        ("GET", "/tenants/default/keys?after=a%00b", None),
        ("DELETE", "/tenants/default/keys/a%00b", None),
        ("GET", "/tenants?search=a%00b", None),
        ("GET", "/tiers/a%00b", None),
        ("GET", "/admins/a%00b", None),
        ("GET", "/usage?tenant=a%00b", None),
        ("GET", "/audit?target=a%00b", None),
        ("POST", "/tenants", {"slug": "a\0b"}),
        ("POST", "/tenants", {"slug": "acme", "tier": "a\0b"}),
        ("POST", "/tenants", {"slug": "acme", "trust_group": "a\0b"}),
        ("POST", "/tenants/default/keys", {"name": "a\0b"}),
        ("POST", "/tenants/default/keys", {"name": "k", "models": ["a\0b"]}),
        ("POST", "/admins", {"name": "a\0b"}),
    ],
)
async def test_nul_is_refused_wherever_it_stands(client, method, path, body):
    answer = await client.request(method, path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", answer.text


async def test_a_login_with_nul_is_an_ordinary_wrong_one(client):
    await make_admin(client, "alice", "viewer")
    refused(await client.post("/login", json={"name": "alice\0", "password": PASSWORD}), 401, "login_failed")
    refused(await client.post("/login", json={"name": "alice", "password": PASSWORD + "\0"}), 401, "login_failed")


async def test_the_database_gets_neither_nul_nor_half_a_character(settings: Settings):
    database = Database(sqlalchemy_url(settings))
    try:
        for unstorable in ("a\0b", "a\ud800b", "\udfff"):
            with pytest.raises(Invalid, match="NUL"):
                async with database.read() as session:
                    await session.execute(text("SELECT :given"), {"given": unstorable})
    finally:
        await database.close()


async def test_an_error_of_a_statement_does_not_show_its_parameters(settings: Settings):
    database = Database(sqlalchemy_url(settings))
    try:
        with pytest.raises(DBAPIError) as failed:
            async with database.read() as session:
                await session.execute(text("SELECT 1 FROM nowhere WHERE name = :name"), {"name": "MyRealPassw0rd!"})
        assert "MyRealPassw0rd" not in str(failed.value)
    finally:
        await database.close()
