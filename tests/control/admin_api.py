"""The admin API over HTTP in this process, for tests: who logs in, and with what."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from httpx import ASGITransport, AsyncClient
from litestar import Litestar

from appliance.domain.tenants.bootstrap import Control
from appliance.domain.tenants.routes import admin_router
from appliance.problems import EXCEPTION_HANDLERS
from tests.control.conftest import ADMIN_TOKEN

ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
PASSWORD = "a horse, a staple"


@asynccontextmanager
async def api_client(control: Control, *, scheme: str = "http", address: str = "203.0.113.7") -> AsyncIterator[AsyncClient]:
    """A client without credentials, whose requests come from `address`."""
    app = Litestar([admin_router(control)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    transport = ASGITransport(app, raise_app_exceptions=False, client=(address, 1234))  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url=f"{scheme}://test/api/v1") as client:
        yield client


async def ok(response: Any) -> Any:
    assert response.status_code < 300, response.text
    return response.json() if response.content else None


def by_hand(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Audit events but those of the first start."""
    return [event for event in events if event["actor"] != "bootstrap"]


def refused(response: Any, status: int, code: str) -> str:
    """The message of a refusal."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), response.text
    return error["message"]


async def make_admin(client: AsyncClient, name: str, role: str, password: str | None = PASSWORD) -> str:
    """An administrator made with the bootstrap token; its id."""
    made = await ok(await client.post("/admins", json={"name": name, "role": role, "password": password}, headers=ADMIN))
    return made["id"]


async def make_token(client: AsyncClient, admin_id: str, **fields: Any) -> tuple[str, dict[str, str]]:
    """A token of an administrator: its id, and the header that carries it."""
    made = await ok(await client.post(f"/admins/{admin_id}/tokens", json={"name": "t", **fields}, headers=ADMIN))
    return made["id"], {"Authorization": f"Bearer {made['token']}"}


async def log_in(client: AsyncClient, name: str, password: str = PASSWORD) -> dict[str, str]:
    """Log in; the client keeps the cookie. The header that changes need."""
    answer = await ok(await client.post("/login", json={"name": name, "password": password}))
    return {"x-csrf-token": answer["csrf_token"]}
