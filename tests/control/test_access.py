"""The snapshot decides without a clock and without a database; the directory keeps it fresh."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from appliance.domain.access.directory import LOST, SILENT_TICKS, Directory
from appliance.domain.access.keys import MAX_KEY_CHARS, bearer, digest_key, masked, new_key
from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import AccessSnapshot, KeyRecord
from appliance.errors import Forbidden, Unauthenticated, Unavailable
from engine.wire import TenantPolicy

PEPPER = b"pepper"
NOW_S = 1_000.0


def snapshot_of(*keys: tuple[str, KeyRecord], version: int = 1, suspended: frozenset[str] = frozenset()) -> AccessSnapshot:
    policies = {slug: TenantPolicy(tenant_id=slug) for slug in ("acme", "globex")}
    records = {digest_key(raw, PEPPER): record for raw, record in keys}
    return AccessSnapshot(version, PEPPER, records, policies, suspended, digest_key("the-admin-token", PEPPER))


def acme_key(*scopes: Scope, **fields: Any) -> KeyRecord:
    return replace(KeyRecord("key_1", "acme", frozenset(scopes or {Scope.INFERENCE})), **fields)


def test_a_key_becomes_its_tenants_principal():
    principal = snapshot_of(("raw", acme_key(models=frozenset({"m"}), lanes=frozenset({"fast"})))).authenticate("raw", None, NOW_S)
    assert (principal.tenant_id, principal.key_id, principal.policy.tenant_id) == ("acme", "key_1", "acme")
    assert (principal.models, principal.lanes, principal.cache_salt) == ({"m"}, {"fast"}, "tenant:acme")


@pytest.mark.parametrize("raw", [None, "", "another", "x" * (MAX_KEY_CHARS + 1), "raw ", "\udcff"])
def test_an_unknown_key_is_unauthenticated(raw):
    with pytest.raises(Unauthenticated):
        snapshot_of(("raw", acme_key())).authenticate(raw, None, NOW_S)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"disabled": True}, "revoked_api_key"),
        ({"expires_at_s": NOW_S}, "expired_api_key"),
        ({"grace_until_s": NOW_S - 1, "expires_at_s": NOW_S + 1}, "expired_api_key"),
        ({"tenant_id": "removed"}, "revoked_api_key"),
    ],
)
def test_a_key_past_its_use_is_unauthenticated_and_says_why(fields, code):
    with pytest.raises(Unauthenticated) as refused:
        snapshot_of(("raw", acme_key(**fields))).authenticate("raw", None, NOW_S)
    assert refused.value.code == code


def test_a_key_works_until_the_moment_it_expires():
    assert snapshot_of(("raw", acme_key(expires_at_s=NOW_S))).authenticate("raw", None, NOW_S - 0.001).key_id == "key_1"


def test_a_refusal_never_repeats_the_key():
    key = new_key()
    with pytest.raises(Unauthenticated) as refused:
        snapshot_of().authenticate(key, None, NOW_S)
    assert key not in refused.value.message
    assert masked("short-key") == "(hidden)"
    assert "\n" not in masked("line one\nline two, long enough")


def test_the_tenant_header_must_agree_with_the_key():
    snapshot = snapshot_of(("raw", acme_key()))
    assert snapshot.authenticate("raw", "acme", NOW_S).tenant_id == "acme"
    with pytest.raises(Forbidden) as refused:
        snapshot.authenticate("raw", "globex", NOW_S)
    assert refused.value.code == "tenant_mismatch"


def test_a_gateway_key_speaks_for_any_tenant_there_is():
    snapshot = snapshot_of(("raw", acme_key(Scope.GATEWAY)))
    principal = snapshot.authenticate("raw", "globex", NOW_S)
    assert (principal.tenant_id, principal.policy.tenant_id, principal.cache_salt) == ("globex", "globex", "tenant:globex")
    with pytest.raises(Forbidden, match="names no tenant"):
        snapshot.authenticate("raw", "nobody", NOW_S)


@pytest.mark.parametrize("header", ["", " globex", "Globex", "globex,acme", "globex\x00", "gl\u043ebex", "%67lobex", "g" * 9_999])
def test_a_tenant_header_that_is_no_slug_as_it_is_written_names_nobody(header):
    with pytest.raises(Forbidden, match="names no tenant") as refused:
        snapshot_of(("raw", acme_key(Scope.GATEWAY))).authenticate("raw", header, NOW_S)
    assert refused.value.code == "unknown_tenant" and len(refused.value.message) < 500
    with pytest.raises(Forbidden) as refused:
        snapshot_of(("raw", acme_key())).authenticate("raw", header, NOW_S)
    assert refused.value.code == "tenant_mismatch"


class Looked(dict[bytes, KeyRecord]):
    """Keys by digest; remembers what was asked for."""

    def __init__(self, keys: Mapping[bytes, KeyRecord]) -> None:
        super().__init__(keys)
        self.asked: list[bytes] = []

    def get(self, key: bytes, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)


def test_a_wrong_secret_is_looked_for_like_a_key_of_which_not_even_the_beginning_is_right():
    """What is compared is an HMAC under the pepper, which whoever guesses can not choose: time tells nothing of how much was right."""
    raw = new_key()
    known = snapshot_of((raw, acme_key()))
    for wrong in (raw[:-1] + "g", raw[:6] + "0" * 37, "sk-" + raw[3:], "0" * len(raw), "\u00e9" * 20, "fl-"):
        keys = Looked(known.keys)
        with pytest.raises(Unauthenticated) as refused:
            replace(known, keys=keys).authenticate(wrong, None, NOW_S)
        assert keys.asked == [digest_key(wrong, PEPPER)] and refused.value.code == "invalid_api_key"


def test_a_suspended_tenant_is_forbidden_not_unauthenticated():
    with pytest.raises(Forbidden, match="suspended"):
        snapshot_of(("raw", acme_key()), suspended=frozenset({"acme"})).authenticate("raw", None, NOW_S)


@pytest.mark.parametrize("suspended", ["acme", "globex"])
def test_a_gateway_key_speaks_for_nobody_while_its_own_tenant_or_the_other_is_suspended(suspended):
    snapshot = snapshot_of(("raw", acme_key(Scope.GATEWAY)), suspended=frozenset({suspended}))
    with pytest.raises(Forbidden, match=f"'{suspended}' is suspended") as refused:
        snapshot.authenticate("raw", "globex", NOW_S)
    assert (refused.value.code, refused.value.tenant_id, refused.value.key_id) == ("tenant_suspended", "acme", "key_1")


def test_an_ordinary_key_is_told_that_it_may_not_administrate():
    with pytest.raises(Forbidden, match="key:key_1 lacks the scope 'admin:read'; of administration it has none"):
        snapshot_of(("raw", acme_key())).authenticate_admin("raw", NOW_S, Scope.ADMIN_READ)


def test_a_key_of_administration_may_do_what_who_granted_it_may_do_still():
    raw, both = "raw", frozenset({Scope.ADMIN_READ, Scope.ADMIN_WRITE})
    snapshot = snapshot_of((raw, acme_key(*both, Scope.GATEWAY, granted_by="adm_1/adt_1")))
    granted = replace(snapshot, grantors={"adm_1": both, "adm_1/adt_1": both})
    assert granted.authenticate_admin(raw, NOW_S, Scope.ADMIN_WRITE).scopes == both
    demoted = replace(snapshot, grantors={"adm_1/adt_1": frozenset({Scope.ADMIN_READ})})
    assert demoted.authenticate_admin(raw, NOW_S, Scope.ADMIN_READ)
    with pytest.raises(Forbidden, match="'admin:write'"):
        demoted.authenticate_admin(raw, NOW_S, Scope.ADMIN_WRITE)
    with pytest.raises(Forbidden) as refused:
        replace(snapshot, grantors={"adm_1": both}).authenticate_admin(raw, NOW_S, Scope.ADMIN_READ)
    assert refused.value.code == "grantor_gone"
    assert snapshot.authenticate(raw, "globex", NOW_S).tenant_id == "globex", "what else it may do is its tenant's"


@pytest.mark.parametrize("scope", [Scope.METRICS, Scope.ADMIN_READ, Scope.ADMIN_WRITE])
def test_no_admin_or_metrics_key_may_infer(scope):
    with pytest.raises(Forbidden, match="'inference'"):
        snapshot_of(("raw", acme_key(scope))).authenticate("raw", None, NOW_S)


def test_the_admin_token_is_no_key_of_the_inference_routes():
    snapshot = snapshot_of()
    assert snapshot.authenticate_admin("the-admin-token", NOW_S, Scope.ADMIN_WRITE).actor == "bootstrap-admin"
    with pytest.raises(Unauthenticated):
        snapshot.authenticate("the-admin-token", None, NOW_S)


def test_admin_scopes_are_told_apart():
    reader = snapshot_of(("raw", acme_key(Scope.ADMIN_READ)))
    assert reader.authenticate_admin("raw", NOW_S, Scope.ADMIN_READ).actor == "key:key_1"
    with pytest.raises(Forbidden):
        reader.authenticate_admin("raw", NOW_S, Scope.ADMIN_WRITE)
    writer = snapshot_of(("raw", acme_key(Scope.ADMIN_WRITE)))
    assert writer.authenticate_admin("raw", NOW_S, Scope.ADMIN_READ)
    with pytest.raises(Forbidden):
        snapshot_of(("raw", acme_key())).authenticate_admin("raw", NOW_S, Scope.ADMIN_READ)


def test_no_token_is_an_admin_where_there_is_no_admin_token():
    with pytest.raises(Unauthenticated):
        AccessSnapshot(1, PEPPER, {}, {}).authenticate_admin("", NOW_S, Scope.ADMIN_READ)


@pytest.mark.parametrize(
    ("header", "token"),
    [(None, None), ("", None), ("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None), ("Bearer ", None)],
)
def test_a_bearer_header_is_read(header, token):
    assert bearer(header) == token


def test_digests_differ_by_pepper():
    assert digest_key("raw", b"a") != digest_key("raw", b"b")
    assert len(digest_key("raw", b"a")) == 32


class FakeSource:
    """A database in memory that can be lost."""

    def __init__(self, snapshot: AccessSnapshot) -> None:
        self.snapshot = snapshot
        self.error: Exception | None = None
        self.loads = 0

    async def version(self) -> int:
        if self.error:
            raise self.error
        return self.snapshot.version

    async def load(self) -> AccessSnapshot:
        if self.error:
            raise self.error
        self.loads += 1
        return self.snapshot

    @property
    def takes_writes(self) -> bool:
        return True

    async def try_writing(self, quiet_s: float) -> None: ...

    async def keep_capacity(self, capacity_tpm: int) -> None: ...


@pytest.mark.parametrize(
    "error", [Unavailable("the database does not answer", reason="database_unavailable", retry_after_s=1), RuntimeError("surprise")]
)
async def test_a_lost_database_keeps_the_last_snapshot_and_recovers_by_itself(error):
    source = FakeSource(snapshot_of(("raw", acme_key())))
    directory = Directory(source, await source.load(), lambda: NOW_S)
    source.error = error
    await directory.poll()
    assert directory.flaw == LOST
    assert directory.authenticate("raw", None).tenant_id == "acme"
    source.error, source.snapshot = None, snapshot_of(version=2)
    await directory.poll()
    assert not directory.flaw
    with pytest.raises(Unauthenticated):
        directory.authenticate("raw", None)


async def test_polling_loads_only_what_changed_and_tells_subscribers():
    source = FakeSource(snapshot_of())
    directory = Directory(source, await source.load(), lambda: NOW_S)
    seen: list[int] = []
    directory.subscribe(lambda snapshot: seen.append(snapshot.version))
    await directory.poll()
    assert (source.loads, seen) == (1, [1])
    source.snapshot = snapshot_of(version=5)
    await directory.poll()
    assert (source.loads, seen) == (2, [1, 5])


async def test_a_database_restored_to_an_older_version_is_followed_too():
    source = FakeSource(snapshot_of(("raw", acme_key()), version=9))
    directory = Directory(source, await source.load(), lambda: NOW_S)
    source.snapshot = snapshot_of(version=3)
    await directory.poll()
    assert directory.snapshot.version == 3


class SlowSource(FakeSource):
    """Its answer takes some turns of the loop."""

    async def version(self) -> int:
        for _ in range(4):
            await asyncio.sleep(0)
        return self.snapshot.version


async def test_a_process_that_was_held_up_does_not_take_the_database_for_lost():
    source = SlowSource(snapshot_of())
    directory = Directory(source, await source.load(), lambda: NOW_S, tick_s=0.001)
    asyncio.get_running_loop().call_soon(time.sleep, 0.001 * (SILENT_TICKS + 4))
    await directory.poll()
    assert not directory.flaw


async def test_a_database_that_is_silent_for_long_is_taken_for_lost_until_it_answers():
    class HangingSource(FakeSource):
        async def version(self) -> int:
            await answer.wait()
            return self.snapshot.version

    answer = asyncio.Event()
    source = HangingSource(snapshot_of())
    directory = Directory(source, await source.load(), lambda: NOW_S, tick_s=0.001)
    polling = asyncio.create_task(directory.poll())
    await asyncio.sleep(0.001 * SILENT_TICKS * 20)
    assert directory.flaw == LOST
    answer.set()
    await polling
    assert not directory.flaw
