"""Every route of the application, and who may use it."""

import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient
from litestar import Litestar, Router, get
from prometheus_client import CollectorRegistry
from sqlalchemy import update

from appliance.app import Parts, create_app
from appliance.asgi import ADMIN_CONTROLLERS
from appliance.dashboards.own import OwnMetrics
from appliance.dashboards.viewer import Viewer
from appliance.db.base import utc_now
from appliance.domain.admins.models import AdminToken
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.service import Admission
from appliance.domain.explain.debug import DebugController
from appliance.domain.explain.pages import DebugPages
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.backend import Backend
from appliance.domain.inference.backpressure import Patience
from appliance.domain.inference.cancelling import Canceller
from appliance.domain.inference.doorstep import Doorstep
from appliance.domain.inference.service import Clocks, InferenceService
from appliance.domain.system.health import Health
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.domain.tenants.routes import admin_router, guarded_router
from appliance.domain.usage.recorder import UsageRecorder
from appliance.engines import Engines
from appliance.logs import LogLevel
from appliance.problems import EXCEPTION_HANDLERS
from appliance.route_access import PUBLIC, Access, UndeclaredRoutes, refuse_undeclared, routes_of
from appliance.settings import Settings
from appliance.telemetry.flight.recorder import FlightRecorder, Sources
from appliance.telemetry.history import History
from appliance.telemetry.hub import Telemetry
from appliance.ui.parts import House
from appliance.ui.pulse import Pulse
from appliance.ui.routes import build_ui, ui_router
from appliance.ui.start_log import StartLog
from tests.control.admin_api import ADMIN, PASSWORD
from tests.control.conftest import ADMIN_TOKEN, API_KEY

ROUTES = """
public   GET /, GET /livez, GET /readyz, GET /health, GET /schema, GET /schema/openapi.json, GET /schema/{path:str}
public   POST /api/v1/login, POST /api/v1/setup
inference  POST /v1/completions, POST /v1/chat/completions, POST /generate, POST /tokenize, GET /v1/models, GET /v1/models/{model_id:path}
tenant-or-admin  GET /v1/requests/{request_id:str}/explain
metrics  GET /metrics, GET /load
admin:read  GET /api/v1/me, POST /api/v1/me/password, POST /api/v1/logout
admin:read  GET /api/v1/tenants, GET /api/v1/tenants/{slug:str}, GET /api/v1/tenants/{slug:str}/keys
admin:read  GET /api/v1/config, POST /api/v1/config/plan, GET /api/v1/lanes, GET /api/v1/log-level
admin:read  GET /api/v1/slow, GET /api/v1/tail, GET /api/v1/slo, GET /debug/{name:str}
admin:write  POST /api/v1/dump
admin:write  POST /api/v1/requests/{request_id:str}/cancel, POST /api/v1/config/apply, PUT /api/v1/log-level
admin:read  GET /api/v1/tiers, GET /api/v1/tiers/{name:str}, GET /api/v1/usage, GET /api/v1/audit
admin:write  POST /api/v1/tenants, PATCH /api/v1/tenants/{slug:str}, DELETE /api/v1/tenants/{slug:str}
admin:write  POST /api/v1/tenants/{slug:str}/keys, PATCH /api/v1/tenants/{slug:str}/keys/{key_id:str}
admin:write  DELETE /api/v1/tenants/{slug:str}/keys/{key_id:str}, POST /api/v1/tenants/{slug:str}/keys/{key_id:str}/rotate
admin:write  POST /api/v1/tiers, PATCH /api/v1/tiers/{name:str}, DELETE /api/v1/tiers/{name:str}
admin:manage  GET /api/v1/admins, POST /api/v1/admins, PATCH /api/v1/admins/{admin_id:str}, DELETE /api/v1/admins/{admin_id:str}
admin:self  GET /api/v1/admins/{admin_id:str}, GET /api/v1/admins/{admin_id:str}/tokens, POST /api/v1/admins/{admin_id:str}/tokens
admin:self  DELETE /api/v1/admins/{admin_id:str}/tokens/{token_id:str}
public  GET /ui, POST /ui/login, GET /ui/setup, POST /ui/setup, GET /ui/static/{name:path}
admin:read  GET /ui/dashboards, GET /ui/dashboards/{uid:str}, GET /ui/dashboards/{uid:str}/data
admin:read  GET /ui/audit, GET /ui/engine, GET /ui/health, GET /ui/keys, GET /ui/live/engine, GET /ui/live/overview
admin:read  GET /ui/live/requests, GET /ui/live/scheduler, GET /ui/live/slow, GET /ui/live/status, POST /ui/logout, GET /ui/requests
admin:read  GET /ui/requests/{request_id:str}, GET /ui/requests/{request_id:str}/timeline, GET /ui/scheduler, GET /ui/settings
admin:read  POST /ui/settings/password, GET /ui/slow, GET /ui/tenants, GET /ui/tenants/{slug:str}, GET /ui/tenants/{slug:str}/audit
admin:read  GET /ui/tenants/{slug:str}/keys, GET /ui/tenants/{slug:str}/live, GET /ui/tenants/{slug:str}/usage, POST /ui/theme
admin:read  GET /ui/tiers, GET /ui/tiers/{name:str}, GET /ui/usage, GET /ui/{lost:path}
admin:write  POST /ui/requests/{request_id:str}/cancel, POST /ui/settings/log-level, POST /ui/tenants, GET /ui/new-tenant
admin:write  GET /ui/tenants/{slug:str}/delete, POST /ui/tenants/{slug:str}/delete, GET /ui/tenants/{slug:str}/edit
admin:write  POST /ui/tenants/{slug:str}/edit, POST /ui/tenants/{slug:str}/keys, GET /ui/tenants/{slug:str}/keys/{key_id:str}
admin:write  POST /ui/tenants/{slug:str}/keys/{key_id:str}, POST /ui/tenants/{slug:str}/keys/{key_id:str}/disable
admin:write  POST /ui/tenants/{slug:str}/keys/{key_id:str}/rotate, GET /ui/tenants/{slug:str}/try, POST /ui/tenants/{slug:str}/try
admin:write  POST /ui/tenants/{slug:str}/try/stream, POST /ui/tiers, GET /ui/new-tier, POST /ui/tiers/{name:str}
admin:write  GET /ui/tiers/{name:str}/delete, POST /ui/tiers/{name:str}/delete
admin:manage  POST /ui/settings/admins, POST /ui/settings/admins/{admin_id:str}, POST /ui/settings/admins/{admin_id:str}/delete
admin:manage  POST /ui/settings/backup
admin:self  GET /ui/settings/admins/{admin_id:str}, POST /ui/settings/admins/{admin_id:str}/tokens
admin:self  POST /ui/settings/admins/{admin_id:str}/tokens/{token_id:str}/revoke
"""
"""All there are. Who adds one says here again who may use it."""

READERS = {"key with admin:read", "key with admin:write", "viewer", "operator", "owner", "bootstrap token", "session of a viewer"}
LET_IN = {
    Access.PUBLIC: {*READERS, "nobody", "inference key", "metrics key", "revoked token", "expired token", "revoked key", "garbage"},
    Access.INFERENCE: {"inference key"},
    Access.TENANT_OR_ADMIN: {"inference key", *READERS} - {"session of a viewer"},
    Access.METRICS: {"metrics key"},
    Access.ADMIN_READ: READERS,
    Access.ADMIN_WRITE: {"key with admin:write", "operator", "owner", "bootstrap token"},
    Access.ADMIN_MANAGE: {"owner", "bootstrap token"},
    Access.ADMIN_SELF: {"owner", "bootstrap token"},
}
UNKNOWN_TO_ADMIN_ROUTES = {"nobody", "revoked token", "expired token", "revoked key", "garbage"}
"""Answered 401 there; whoever else is not let in, 403."""
KNOWN_TO_KEY_ROUTES = {"inference key", "metrics key", "key with admin:read", "key with admin:write"}
"""Answered 403 where keys are asked for and this one lacks the scope; whoever else is not let in, 401."""


def expected_routes() -> Iterator[tuple[str, str, Access]]:
    for line in ROUTES.strip().splitlines():
        access, _, routes = line.partition(" ")
        for route in routes.split(","):
            method, path = route.split()
            yield method, path, Access(access)


def parts_of(control: Control, data_dir: Path) -> Parts:
    gate, backend, telemetry = Gate(), Backend(), Telemetry(CollectorRegistry())
    clocks = Clocks(monotonic_ns=time.monotonic_ns, wall_s=time.time)
    admission, health = Admission(gate, 8), Health(gate, control.directory, lambda: 0.0)
    doorstep = Doorstep(0.0, 1 << 20, gate.require_open)
    inference = InferenceService(control.directory, admission, backend, telemetry, clocks, random.Random(0), Patience(0, 30.0), doorstep)
    explainer = ExplainService(telemetry, backend.report_of, names_tenants=False)
    house = House(
        settings=Settings(data_dir=str(data_dir)),
        control=control,
        telemetry=telemetry,
        health=health,
        admission=admission,
        backend=backend,
        inference=inference,
        explainer=explainer,
        debug=DebugPages(telemetry, backend.reports),
        canceller=Canceller(backend, control.store.database),
        viewer=Viewer(OwnMetrics(History(15.0), {}, 15.0)),
        usage=UsageRecorder(control.store.database, data_dir / "spool", clocks.wall_s, lambda: "m"),
        log_level=LogLevel("info"),
        engines=Engines([]),
        starts=StartLog(),
        version="test",
    )
    ui = build_ui(house, Pulse(telemetry))
    return Parts(
        inference=inference,
        health=health,
        telemetry=telemetry,
        directory=control.directory,
        explainer=explainer,
        admission=admission,
        max_body_bytes=1 << 20,
        body_deadline_s=30.0,
        metrics_need_key=True,
        log_level=LogLevel("info"),
        canceller=house.canceller,
        recorder=FlightRecorder(telemetry, Sources(house.settings, "test", dict, backend.reports), data_dir / "flight"),
        pages=house.debug,
        debug=guarded_router(control, DebugController),
        admin=admin_router(control, *ADMIN_CONTROLLERS),
        ui=ui_router(ui),
    )


TOLD = {
    Access.INFERENCE: "no API key",
    Access.TENANT_OR_ADMIN: "or an administrator's token",
    Access.METRICS: "metrics_key",
    Access.ADMIN_READ: "'admin:read'",
    Access.ADMIN_WRITE: "'admin:write'",
    Access.ADMIN_MANAGE: "no tenant's key will do",
    Access.ADMIN_SELF: "an administrator's token",
}


@dataclass
class Door:
    client: AsyncClient
    app: Litestar
    credentials: dict[str, dict[str, str]]


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    control = await open_control(Settings(data_dir=str(tmp_path), bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN))
    whole = create_app(parts_of(control, tmp_path))
    transport = ASGITransport(whole, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url="http://test") as client:
        yield Door(client, whole.litestar, await make_credentials(client, control))
    await control.close()


async def make_credentials(client: AsyncClient, control: Control) -> dict[str, dict[str, str]]:
    """A header by the name of each kind of caller."""

    async def made(path: str, **body: object) -> dict[str, str]:
        answer = await client.post(f"/api/v1{path}", json=body, headers=ADMIN)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def carrying(secret: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {secret}"}

    credentials = {"nobody": {}, "garbage": carrying("x" * 40), "inference key": carrying(API_KEY), "bootstrap token": ADMIN}
    for name, scope in (("metrics key", "metrics"), ("key with admin:read", "admin:read"), ("key with admin:write", "admin:write")):
        credentials[name] = carrying((await made("/tenants/default/keys", name="k", scopes=[scope]))["key"])
    revoked = await made("/tenants/default/keys", name="k", scopes=["inference", "metrics", "admin:write"])
    await client.delete(f"/api/v1/tenants/default/keys/{revoked['id']}", headers=ADMIN)
    credentials["revoked key"] = carrying(revoked["key"])
    for role in ("viewer", "operator", "owner"):
        admin = await made("/admins", name=role, role=role, password=PASSWORD)
        credentials[role] = carrying((await made(f"/admins/{admin['id']}/tokens", name="t"))["token"])
    owner_tokens = f"/admins/{admin['id']}/tokens"
    token = await made(owner_tokens, name="t")
    await client.delete(f"/api/v1{owner_tokens}/{token['id']}", headers=ADMIN)
    credentials["revoked token"] = carrying(token["token"])
    token = await made(owner_tokens, name="t")
    async with control.store.database.write() as session:
        await session.execute(update(AdminToken).where(AdminToken.id == token["id"]).values(expires_at=utc_now()))
    await control.directory.refresh()
    credentials["expired token"] = carrying(token["token"])
    session = await client.post("/api/v1/login", json={"name": "viewer", "password": PASSWORD})
    cookie = f"fairlane_session={client.cookies['fairlane_session']}"
    client.cookies.clear()
    credentials["session of a viewer"] = {"Cookie": cookie, "X-CSRF-Token": session.json()["csrf_token"]}
    return credentials


def test_every_route_is_listed_here_with_who_may_use_it(tmp_path: Path, door: Door) -> None:
    assert sorted(routes_of(door.app)) == sorted(expected_routes())


def test_the_documentation_lists_every_admin_route_with_what_it_needs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()
    documented = re.findall(r"^\| `([A-Z]+) (/api/v1/\S+)` \| (\S+) \|", text, re.MULTILINE)
    wanted = [
        (method, path.replace(":str", ""), "nothing" if access is Access.PUBLIC else access.value)
        for method, path, access in expected_routes()
        if path.startswith("/api/v1")
    ]
    assert sorted(documented) == sorted(wanted)


async def test_every_route_lets_in_whom_it_should_and_nobody_else(door: Door) -> None:
    for method, path, access in expected_routes():
        if path == "/api/v1/logout" or path.startswith("/ui"):
            continue  # tests of their own: the first would end the session that is used here, the others are for sessions only
        url = (
            path.replace("{model_id:path}", "m")
            .replace(":str", "")
            .replace("{path}", "none")
            .format(slug="none", key_id="k", name="none", admin_id="a", token_id="t", request_id="r")
        )
        for caller, headers in door.credentials.items():
            answer = await door.client.request(method, url, headers=headers, json=None if method == "GET" else {})
            status = answer.status_code
            if caller in LET_IN[access]:
                assert status not in (401, 403, 500), (method, path, caller, answer.text)
            elif access in (Access.INFERENCE, Access.METRICS, Access.TENANT_OR_ADMIN):
                assert status == (403 if caller in KNOWN_TO_KEY_ROUTES else 401), (method, path, caller, answer.text)
            else:
                assert status == (401 if caller in UNKNOWN_TO_ADMIN_ROUTES else 403), (method, path, caller, answer.text)
            if caller == "nobody" and status == 401:
                assert TOLD[access] in answer.json()["error"]["message"], "which credentials the route takes"
            assert (status == 401) == (answer.headers.get("www-authenticate") == "Bearer")


async def test_pages_let_in_sessions_by_their_role_and_send_everybody_else_to_the_login_form(door: Door) -> None:
    session = door.credentials.pop("session of a viewer")
    for method, path, access in expected_routes():
        if not path.startswith("/ui") or access is Access.PUBLIC:
            continue
        url = re.sub(r"{\w+(:\w+)?}", "none", path)
        for caller, headers in door.credentials.items():
            answer = await door.client.request(method, url, headers=headers, data=None if method == "GET" else {"x": "y"})
            assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/ui/"), (method, path, caller)
        door.client.cookies.clear()
        if method == "POST":
            without_token = await door.client.post(url, headers={"Cookie": session["Cookie"]}, data={"x": "y"})
            assert without_token.status_code == 403, (path, without_token.text)
        if access is not Access.ADMIN_READ:
            form = {"csrf_token": session["X-CSRF-Token"]}
            refused = await door.client.request(method, url, headers={"Cookie": session["Cookie"]}, data=form if method == "POST" else None)
            assert refused.status_code == 403, (method, path)


def test_the_documentation_lists_every_page_with_what_it_needs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "ui.md").read_text()
    documented = re.findall(r"^\| `([A-Z]+) (/ui\S*)` \| (\S+) \|", text, re.MULTILINE)
    wanted = [
        (method, re.sub(r":\w+", "", path), "nothing" if access is Access.PUBLIC else access.value)
        for method, path, access in expected_routes()
        if path.startswith("/ui")
    ]
    assert sorted(documented) == sorted(wanted)


async def test_options_and_unknown_routes_tell_nobody_anything(door: Door) -> None:
    options = await door.client.options("/api/v1/admins")
    assert (options.status_code, options.content) == (204, b"")
    assert (await door.client.get("/api/v1/nothing")).status_code == 404


async def test_a_route_without_a_declaration_does_not_start_and_is_refused_to_everybody_all_the_same(tmp_path: Path) -> None:
    @get("/forgotten")
    async def forgotten() -> str:
        return "secret"

    for app in (Litestar([forgotten], openapi_config=None), Litestar([Router("/v1", route_handlers=[forgotten])], openapi_config=None)):
        with pytest.raises(UndeclaredRoutes, match=r"GET (/v1)?/forgotten"):
            refuse_undeclared(app)
    control = await open_control(Settings(data_dir=str(tmp_path), bootstrap_admin_token=ADMIN_TOKEN))
    parts = parts_of(control, tmp_path)
    assert parts.admin is not None
    parts.admin.register(forgotten)
    with pytest.raises(UndeclaredRoutes, match="GET /api/v1/forgotten"):
        create_app(parts)
    router: Router = admin_router(control)
    router.register(forgotten)
    app = Litestar([router], exception_handlers=EXCEPTION_HANDLERS, openapi_config=None)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:  # pyright: ignore[reportArgumentType]
        answer = await client.get("/api/v1/forgotten", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "undeclared_access")
    await control.close()


async def test_a_public_declaration_under_the_admin_guard_stays_public(tmp_path: Path) -> None:
    control = await open_control(Settings(data_dir=str(tmp_path)))

    @get("/open", opt=PUBLIC)
    async def open_to_all() -> str:
        return "hello"

    router: Router = admin_router(control)
    router.register(open_to_all)
    app = Litestar([router], exception_handlers=EXCEPTION_HANDLERS, openapi_config=None)
    async with AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:  # pyright: ignore[reportArgumentType]
        assert (await client.get("/api/v1/open")).text == "hello"
    await control.close()
