"""Sessions that are recalled while the database does not answer: whose they were, and which are not believed."""

from appliance.domain.access.principal import Role
from appliance.domain.access.snapshot import Admin
from appliance.domain.admins.recall import SessionRecall
from appliance.domain.admins.sessions import COOKIE, OpenSession
from tests.control.admin_api import ADMIN, PASSWORD, api_client, log_in, make_admin, ok

ALICE = OpenSession(Admin("admin:alice", Role.VIEWER.scopes, "adm_1", "adm_1"), admin_version=3, ends_s=100.0)


def test_a_session_is_recalled_until_it_would_have_ended_and_its_administrator_is_as_it_was():
    sessions = SessionRecall()
    sessions.note(b"a", ALICE)
    assert sessions.admin(b"a", {"adm_1": 3}, 99.9) == ALICE.admin
    assert sessions.admin(b"a", {"adm_1": 2}, 99.9) == ALICE.admin, "the snapshot is older than the session"
    assert sessions.admin(b"a", {"adm_1": 4}, 99.9) is None, "changed since: its sessions have ended"
    assert sessions.admin(b"a", {}, 99.9) is None, "removed or disabled"
    assert sessions.admin(b"a", {"adm_1": 3}, 100.0) is None
    assert sessions.admin(b"b", {"adm_1": 3}, 0.0) is None
    sessions.note(b"a", None)
    assert sessions.admin(b"a", {"adm_1": 3}, 0.0) is None


def test_the_sessions_that_were_not_used_for_longest_are_forgotten_first():
    sessions = SessionRecall(max_recalled=2)
    for digest in (b"a", b"b", b"a", b"c"):
        sessions.note(digest, ALICE)
    assert [digest for digest in (b"a", b"b", b"c") if sessions.admin(digest, {"adm_1": 3}, 0.0)] == [b"a", b"c"]


async def test_a_session_that_was_ended_or_whose_administrator_was_changed_is_not_recalled(control):
    async with api_client(control) as client:
        alice = await make_admin(client, "alice", "viewer")

        async def seen() -> str:
            await log_in(client, "alice")
            await ok(await client.get("/me"))
            cookie = client.cookies[COOKIE]
            assert control.gatekeeper.recalled_admin(cookie).actor == "admin:alice"
            return cookie

        csrf = await log_in(client, "alice")
        cookie = client.cookies[COOKIE]
        await ok(await client.get("/me"))
        await ok(await client.post("/logout", json={}, headers=csrf))
        assert control.gatekeeper.recalled_admin(cookie) is None, "logged out"
        for change in ({"role": "operator"}, {"password": PASSWORD + "!"}, {"password": PASSWORD}, {"disabled": True}):
            cookie = await seen()
            client.cookies.clear()
            await ok(await client.patch(f"/admins/{alice}", json=change, headers=ADMIN))
            assert control.gatekeeper.recalled_admin(cookie) is None, change
            if "password" in change:
                await ok(await client.patch(f"/admins/{alice}", json={"password": PASSWORD}, headers=ADMIN))
