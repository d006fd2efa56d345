"""Logging in with a browser's session: cookie, CSRF, how sessions end, throttling, and the first owner."""

import asyncio
import dataclasses
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from httpx import AsyncClient
from sqlalchemy import event, func, select

from appliance.db.backup import sqlite_path
from appliance.domain.admins.models import AdminSession, AdminUser
from appliance.domain.admins.passwords import MAX_AT_ONCE, MAX_WAITING, Passwords
from appliance.domain.admins.sessions import SessionRules
from appliance.domain.admins.throttle import FREE_OF_ACCOUNT, FREE_OF_ADDRESS, LoginThrottle
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.errors import Unavailable
from appliance.settings import Settings, SettingsError, sqlalchemy_url
from tests.control.admin_api import ADMIN, PASSWORD, api_client, log_in, make_admin, ok, refused
from tests.control.conftest import ADMIN_TOKEN, API_KEY


class FakeClock:
    """Wall and monotonic time in one."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite alone: test_admins.py runs the same statements on PostgreSQL too."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timed(control: Control, clock: FakeClock) -> Control:
    """The control plane with a clock that tests move, sessions of an hour and ten minutes idle."""
    rules = SessionRules(ttl_s=3600, idle_s=600)
    gatekeeper = dataclasses.replace(control.gatekeeper, rules=rules, wall_s=clock)
    return dataclasses.replace(
        control, gatekeeper=gatekeeper, logins=dataclasses.replace(control.logins, rules=rules, monotonic_s=clock, wall_s=clock)
    )


@pytest.fixture
async def client(timed: Control) -> AsyncIterator[AsyncClient]:
    async with api_client(timed) as opened:
        yield opened


async def test_a_session_reads_with_its_cookie_and_changes_with_its_csrf_token(client):
    admin_id = await make_admin(client, "alice", "operator")
    answer = await client.post("/login", json={"name": "alice", "password": PASSWORD})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=lax" in cookie and "path=/" in cookie and "secure" not in cookie
    assert answer.headers["cache-control"] == "no-store" and PASSWORD not in answer.text
    me = await ok(await client.get("/me"))
    assert (me["actor"], me["admin_id"], me["scopes"]) == ("admin:alice", admin_id, ["admin:read", "admin:write"])
    assert me["csrf_token"] == answer.json()["csrf_token"]
    csrf = {"x-csrf-token": me["csrf_token"]}
    for headers in ({}, {"x-csrf-token": "0" * 64}, {"x-csrf-token": "é".encode()}):
        assert "GET /api/v1/me" in refused(await client.post("/tenants", json={"slug": "acme"}, headers=headers), 403, "csrf_failed")
    await ok(await client.post("/tenants", json={"slug": "acme"}, headers=csrf))
    refused(await client.post("/admins", json={"name": "bob"}, headers=csrf), 403, "missing_scope")
    event = (await ok(await client.get("/audit", params={"target": "tenant:acme"})))["events"][0]
    assert (event["actor"], event["actor_id"], event["source"]) == ("admin:alice", admin_id, "203.0.113.7")


async def test_over_tls_the_cookie_is_secure(control):
    async with api_client(control, scheme="https") as client:
        await make_admin(client, "alice", "viewer")
        answer = await client.post("/login", json={"name": "alice", "password": PASSWORD})
        assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_form_of_another_site_can_not_log_a_browser_in(client):
    await make_admin(client, "alice", "viewer")
    assert (await client.post("/login", data={"name": "alice", "password": PASSWORD})).status_code == 415
    assert (await client.post("/login", content=b'{"name":"alice"}', headers={"content-type": "text/plain"})).status_code == 415


async def test_logging_out_ends_the_session_and_takes_the_cookie_away(client):
    await make_admin(client, "alice", "viewer")
    csrf = await log_in(client, "alice")
    stolen = {"Cookie": f"fairlane_session={client.cookies['fairlane_session']}"}
    answer = await client.post("/logout", headers=csrf)
    assert answer.status_code == 204 and "max-age=0" in answer.headers["set-cookie"].lower()
    refused(await client.get("/me", headers=stolen), 401, "session_expired")
    assert (await client.post("/logout", headers=ADMIN)).status_code == 204, "with a token nothing ends"


async def test_each_login_has_a_session_of_its_own(client):
    await make_admin(client, "alice", "viewer")
    ids = set()
    for _ in range(3):
        await log_in(client, "alice")
        ids.add(client.cookies["fairlane_session"])
    assert len(ids) == 3


async def test_a_session_ends_at_its_time_and_earlier_when_it_is_idle(client, clock, timed):
    await make_admin(client, "alice", "viewer")
    await log_in(client, "alice")
    for _ in range(6):  # used, it lives on
        clock.now_s += 590
        await ok(await client.get("/me"))
    clock.now_s += 61
    refused(await client.get("/me"), 401, "session_expired")
    await log_in(client, "alice")
    clock.now_s += 600
    refused(await client.get("/me"), 401, "session_expired")
    await log_in(client, "alice")
    async with timed.store.database.read() as session:
        assert (await session.execute(select(func.count()).select_from(AdminSession))).scalar_one() == 1, "ended ones are cleared away"


@pytest.mark.parametrize("change", [{"role": "owner"}, {"password": PASSWORD + "!"}, {"disabled": True}, None])
async def test_sessions_end_when_role_password_or_access_change(client, change):
    await make_admin(client, "boss", "owner")
    admin_id = await make_admin(client, "alice", "viewer")
    await log_in(client, "alice")
    path = f"/admins/{admin_id}"
    await ok(await client.patch(path, json={"role": "viewer"}, headers=ADMIN))
    await ok(await client.get("/me"))  # no change, no end
    await ok(await (client.delete(path, headers=ADMIN) if change is None else client.patch(path, json=change, headers=ADMIN)))
    refused(await client.get("/me"), 401, "session_expired")


async def test_a_disabled_administrator_can_not_log_in_until_enabled(client):
    admin_id = await make_admin(client, "alice", "viewer")
    await ok(await client.patch(f"/admins/{admin_id}", json={"disabled": True}, headers=ADMIN))
    refused(await client.post("/login", json={"name": "alice", "password": PASSWORD}), 401, "login_failed")
    await ok(await client.patch(f"/admins/{admin_id}", json={"disabled": False}, headers=ADMIN))
    await log_in(client, "alice")


async def test_ones_own_password_needs_the_present_one_and_ends_ones_sessions(client):
    await make_admin(client, "alice", "viewer")
    csrf = await log_in(client, "alice")
    wrong = {"present_password": "not the present one", "password": PASSWORD + "!"}
    refused(await client.post("/me/password", json=wrong, headers=csrf), 401, "login_failed")
    weak = {"present_password": PASSWORD, "password": "short"}
    refused(await client.post("/me/password", json=weak, headers=csrf), 400, "weak_password")
    await ok(await client.post("/me/password", json={**wrong, "present_password": PASSWORD}, headers=csrf))
    refused(
        await client.get("/me", headers={"Cookie": f"fairlane_session={client.cookies.get('fairlane_session', 'x')}"}),
        401,
        "session_expired",
    )
    refused(await client.post("/login", json={"name": "alice", "password": PASSWORD}), 401, "login_failed")
    await log_in(client, "alice", PASSWORD + "!")
    refused(await client.post("/me/password", json=wrong, headers=ADMIN), 403, "no_password")


async def test_a_password_is_one_text_however_a_keyboard_composes_it(client):
    await make_admin(client, "alice", "viewer", "grüne Pferde 7 mal")
    await log_in(client, "alice", "gru\u0308ne Pferde 7 mal")


async def test_a_wrong_name_and_a_wrong_password_are_told_apart_by_nothing(client, timed):
    await make_admin(client, "alice", "viewer")
    await make_admin(client, "robot", "viewer", None)
    passwords = timed.logins.passwords
    verified: list[str] = []
    original = passwords._verify
    passwords._verify = lambda stored, password: verified.append(stored) or original(stored, password)
    answers = [await client.post("/login", json={"name": name, "password": "wrong wrong wrong"}) for name in ("alice", "nobody", "robot")]
    assert len({(answer.status_code, answer.text) for answer in answers}) == 1 and answers[0].status_code == 401
    assert len(verified) == 3 and len({stored.rpartition("$")[0].rpartition("$")[0] for stored in verified}) == 1, "as much work each time"


async def test_where_there_is_no_password_none_is_right():
    passwords = Passwords()
    passwords._nobodys_hash = await passwords.hash(PASSWORD)
    assert await passwords.verify(await passwords.hash(PASSWORD), PASSWORD)
    assert not await passwords.verify(None, PASSWORD)


async def test_logins_are_audited_failed_ones_too_and_a_name_that_nobody_has_is_not_kept(client):
    admin_id = await make_admin(client, "alice", "viewer")
    await client.post("/login", json={"name": "alice", "password": "wrong wrong wrong"})
    await client.post("/login", json={"name": "my secret password", "password": "oops"})
    await log_in(client, "alice")
    answer = await client.get("/audit", headers=ADMIN)
    events = [(event["action"], event["target"], event["actor"], event["actor_id"]) for event in answer.json()["events"][:3]]
    assert events == [
        ("login", "admin:alice", "admin:alice", admin_id),
        ("login.fail", "admin:(unknown)", "anonymous", ""),
        ("login.fail", "admin:alice", "anonymous", ""),
    ]
    assert "secret" not in answer.text


async def test_failed_logins_make_the_account_wait_twice_as_long_each_time(client, clock):
    await make_admin(client, "alice", "viewer")

    async def attempt(password: str) -> tuple[int, int]:
        answer = await client.post("/login", json={"name": "alice", "password": password})
        return answer.status_code, int(answer.headers.get("retry-after", 0))

    for _ in range(FREE_OF_ACCOUNT):
        assert await attempt("wrong wrong wrong") == (401, 0)
    for wait_s in (1, 2, 4, 8):
        assert await attempt(PASSWORD) == (429, wait_s), "also the right one waits"
        clock.now_s += wait_s
        assert (await attempt("wrong wrong wrong"))[0] == 401
    clock.now_s += 16
    assert await attempt(PASSWORD) == (200, 0)
    assert await attempt("wrong wrong wrong") == (401, 0), "a right one makes all good"


async def test_an_address_that_tries_many_names_waits_and_another_address_does_not(timed, client):
    await make_admin(client, "alice", "viewer")
    for number in range(FREE_OF_ADDRESS):
        refused(await client.post("/login", json={"name": f"n{number}", "password": "x"}), 401, "login_failed")
    refused(await client.post("/login", json={"name": "alice", "password": PASSWORD}), 429, "rate_limit_exceeded")
    async with api_client(timed, address="198.51.100.1") as elsewhere:
        await log_in(elsewhere, "alice")


async def test_parallel_guesses_do_not_slip_past_the_throttle(client):
    await make_admin(client, "alice", "viewer")
    guesses = [client.post("/login", json={"name": "alice", "password": f"guess {number} guess"}) for number in range(12)]
    statuses = [answer.status_code for answer in await asyncio.gather(*guesses)]
    assert sorted(statuses) == [401] * FREE_OF_ACCOUNT + [429] * (12 - FREE_OF_ACCOUNT)


async def test_more_hashes_than_wait_are_refused_and_the_loop_goes_on():
    passwords, running, most = Passwords(), 0, 0

    def slow(stored: str, password: str) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.02)  # in its thread
        running -= 1
        return True

    passwords._verify = slow
    attempts = [asyncio.create_task(passwords.verify("hash", "password")) for _ in range(MAX_WAITING + 5)]
    ticks = 0
    while not all(attempt.done() for attempt in attempts):
        await asyncio.sleep(0.002)
        ticks += 1
    refusals = [attempt.exception() for attempt in attempts if attempt.exception()]
    assert len(refusals) == 5 and all(isinstance(error, Unavailable) for error in refusals)
    assert most == MAX_AT_ONCE and ticks > 10


async def test_a_login_that_could_not_be_judged_is_no_failed_one(timed, client, clock):
    await make_admin(client, "alice", "viewer")
    throttle = timed.logins.throttle

    async def busy(stored: str | None, password: str) -> bool:
        raise Unavailable("too many logins at once", reason="login_busy", retry_after_s=1.0)

    real = timed.logins.passwords.verify
    timed.logins.passwords.verify = busy
    for _ in range(FREE_OF_ACCOUNT + 1):
        refused(await client.post("/login", json={"name": "alice", "password": PASSWORD}), 503, "login_busy")
    timed.logins.passwords.verify = real
    assert throttle._accounts["alice"].number == 0
    await log_in(client, "alice")


async def test_a_hash_with_older_parameters_is_renewed_at_the_next_login(client, timed):
    await make_admin(client, "alice", "viewer")
    weaker = Passwords()
    weaker._argon2 = type(weaker._argon2)(time_cost=1, memory_cost=8192, parallelism=1)
    async with timed.store.database.write() as session:
        (await session.scalars(select(AdminUser))).one().password_hash = await weaker.hash(PASSWORD)
    await log_in(client, "alice")
    async with timed.store.database.read() as session:
        assert "m=19456,t=2" in (await session.scalars(select(AdminUser))).one().password_hash
    await log_in(client, "alice")


async def test_the_settings_say_how_long_sessions_live(tmp_path):
    control = await open_control(msgspec.structs.replace(settings_for(tmp_path), session_ttl_s=100.0, session_idle_s=60.0))
    assert control.gatekeeper.rules == control.logins.rules == SessionRules(ttl_s=100, idle_s=60)
    await control.close()


async def test_a_wrong_login_counts_also_while_the_database_takes_no_writes(client, timed, settings):
    await make_admin(client, "alice", "viewer")
    holder = sqlite3.connect(sqlite_path(sqlalchemy_url(settings)), isolation_level=None)
    engine = timed.store.database.engine
    await engine.dispose()
    event.listen(engine.sync_engine, "connect", lambda connection, _: connection.cursor().execute("PRAGMA busy_timeout=20"))
    holder.execute("BEGIN IMMEDIATE")
    try:
        for _ in range(FREE_OF_ACCOUNT):
            refused(await client.post("/login", json={"name": "alice", "password": "wrong wrong wrong"}), 401, "login_failed")
        refused(await client.post("/login", json={"name": "alice", "password": PASSWORD}), 429, "rate_limit_exceeded")
    finally:
        holder.close()


# ---- the first owner --------------------------------------------------------------------------------------------


def settings_for(folder: Path, **fields: str) -> Settings:
    return Settings(data_dir=str(folder), bootstrap_api_key=API_KEY, bootstrap_admin_token=ADMIN_TOKEN, **fields)


async def test_the_setup_token_makes_one_owner_and_no_second(control, settings):
    token = control.logins.setup_token
    assert token is not None and token == (Path(settings.data_dir) / "setup-token").read_text().strip()
    async with api_client(control) as client:
        body = {"token": token, "name": "alice", "password": PASSWORD}
        refused(await client.post("/setup", json={**body, "token": "guess"}), 401, "wrong_setup_token")
        refused(await client.post("/setup", json={**body, "password": "short"}), 400, "weak_password")
        refused(await client.post("/setup", json={**body, "name": "A"}), 400, "invalid_name")
        newest = (await ok(await client.get("/audit", headers=ADMIN)))["events"][0]
        assert (newest["action"], newest["actor"], newest["source"]) == ("setup.fail", "anonymous", "203.0.113.7")
        first, second = await asyncio.gather(client.post("/setup", json=body), client.post("/setup", json={**body, "name": "bob"}))
        assert sorted((first.status_code, second.status_code)) == [201, 409]
        winner = "alice" if first.status_code == 201 else "bob"
        await log_in(client, winner)
        assert (await ok(await client.get("/me")))["scopes"] == ["admin:manage", "admin:read", "admin:write"]
    assert not (Path(settings.data_dir) / "setup-token").exists(), "it is good for nothing any more"
    again = await open_control(settings)
    assert again.logins.setup_token is None and not (Path(settings.data_dir) / "setup-token").exists()
    async with api_client(again) as client:
        refused(await client.post("/setup", json=body), 401, "wrong_setup_token")
    await again.close()


async def test_a_bootstrap_password_makes_the_owner_admin_once_and_is_no_default(tmp_path):
    control = await open_control(settings_for(tmp_path, bootstrap_admin_password=PASSWORD))
    assert control.logins.setup_token is None and not (tmp_path / "setup-token").exists()
    async with api_client(control) as client:
        await log_in(client, "admin")
    await control.close()
    again = await open_control(settings_for(tmp_path, bootstrap_admin_password="another password"))
    async with api_client(again) as client:
        refused(await client.post("/login", json={"name": "admin", "password": "another password"}), 401, "login_failed")
        await log_in(client, "admin")
    await again.close()


async def test_a_weak_bootstrap_password_does_not_start(tmp_path):
    with pytest.raises(SettingsError, match="FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD"):
        await open_control(settings_for(tmp_path, bootstrap_admin_password="adminadminadmin"))


def test_throttled_addresses_are_networks_and_the_oldest_are_forgotten():
    throttle = LoginThrottle()
    for number in range(10_050):
        throttle.begin(f"n{number}", f"2001:db8:{number % 60_000:x}::1", 0.0)
    assert len(throttle._accounts) == len(throttle._addresses) == 10_000
    assert "2001:db8:2700::/64" in throttle._addresses and "n0" not in throttle._accounts
