"""Attacks by hand: injection into SQL, headers, paths and logs; foreign hosts and tenants; two editors; names that are no names."""

import json
import socket
import threading
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.hostile.conftest import ADMIN_HEADERS
from tests.inference.test_serve import HEADERS, KEY, Served

SQL = ("' OR '1'='1", "x'; DROP TABLE tenant; --", '" UNION SELECT digest FROM api_key --', "\\'; SELECT pg_sleep(5); --", "%' OR 1=1 --")
ODD_NAMES = (
    "..", "../..", "..%2f..%2fetc%2fpasswd", "%00", "a%00b", "%0d%0aset-cookie:%20a=b", "а\u0441me", "ａｃｍｅ", "acme\u202e",
    "ac\u200bme", "İ", "ß", "a" * 64, "a" * 5_000, "-acme", "_", "ACME", "other", " acme", "acme ", "a.b", "a/b", "\U0001f600",
)  # fmt: skip


def error_of(response: httpx.Response) -> dict[str, Any]:
    """A refusal's error: always the one shape, never a trace."""
    assert 400 <= response.status_code < 500, response.text
    assert "Traceback" not in response.text
    return response.json()["error"]


def raw(served: Served, head: str, body: bytes = b"") -> bytes:
    """Bytes as no client library would send them, and the whole answer."""
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port), timeout=10) as sock:
        sock.sendall(head.replace("\n", "\r\n").encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)
        answer = b""
        while data := sock.recv(65_536):
            answer += data
        return answer


def request_lines(served: Served) -> list[dict[str, Any]]:
    """The request log so far. Each line is JSON, or the server did not write it."""
    return [json.loads(line) for line in served.log().splitlines() if '"event":"request"' in line]


@pytest.mark.parametrize("text", SQL)
def test_sql_in_any_parameter_is_text(admin: httpx.Client, text: str) -> None:
    before = admin.get("/tenants").json()["tenants"]
    assert admin.get("/tenants", params={"after": text[:63]}).status_code == 200
    assert error_of(admin.get("/tenants", params={"tier": text}))["param"] == "tier"
    assert error_of(admin.get("/usage", params={"tenant": text}))["code"] == "tenant_not_found"
    assert error_of(admin.get("/audit", params={"target": text}))["code"] == "target_not_found"
    for path in ("/slow", "/slo"):
        assert error_of(admin.get(path, params={"tenant": text}))["code"] == "tenant_not_found"
    assert error_of(admin.get("/usage", params={"from": text}))["param"] == "from"
    assert error_of(admin.post("/tenants", json={"slug": text}))["code"] == "invalid_slug"
    assert error_of(admin.get(f"/tenants/{text}".replace("%", "%25")))["code"] == "tenant_not_found"
    named = admin.post("/tenants/default/keys", json={"name": text}).raise_for_status().json()
    assert named["name"] == text
    admin.delete(f"/tenants/default/keys/{named['id']}").raise_for_status()
    assert admin.get("/tenants").json()["tenants"] == before


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_is_none_is_refused_in_a_body_and_found_nowhere_in_a_path(admin: httpx.Client, name: str) -> None:
    assert error_of(admin.post("/tenants", json={"slug": name}))["param"] == "slug"
    assert error_of(admin.post("/tenants", json={"slug": "fine", "trust_group": name + "!"}))["param"] == "trust_group"
    quoted = quote(name, safe="%").replace(".", "%2E")
    for path in (f"/tenants/{quoted}", f"/tenants/{quoted}/keys", f"/tenants/default/keys/{quoted}"):
        response = admin.request("PATCH", path, json={})
        assert response.status_code in (400, 404, 405, 414), (path, response.text)
    slugs = [tenant["slug"] for tenant in admin.get("/tenants").json()["tenants"]]
    assert all(slug.isascii() and slug == slug.lower() for slug in slugs)


@pytest.mark.parametrize("name", ["", "   ", "n" * 201, "line\nbreak", "nul\x00", "esc\x1b[31m", "bidi\u202e", "sep\u2028arator"])
def test_a_display_name_is_printable_and_of_a_sane_length(admin: httpx.Client, name: str) -> None:
    assert error_of(admin.post("/tenants", json={"slug": "fine", "name": name}))["param"] == "name"
    assert error_of(admin.patch("/tenants/default", json={"name": name}))["param"] == "name"
    assert error_of(admin.post("/tenants/default/keys", json={"name": name}))["param"] == "name"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tenants", {"slug": "fine", "id": 1}, "id"),
        ("/tenants", {"slug": "fine", "status": "deleted"}, "status"),
        ("/tenants", {"slug": "fine", "version": 7}, "version"),
        ("/tenants", {"slug": "fine", "created_at": "2000-01-01T00:00:00Z"}, "created_at"),
        ("/tenants/default/keys", {"name": "k", "id": "key_mine"}, "id"),
        ("/tenants/default/keys", {"name": "k", "digest": "00"}, "digest"),
        ("/tenants/default/keys", {"name": "k", "tenant": "victim"}, "tenant"),
        ("/tenants/default/keys", {"name": "k", "disabled_at": None}, "disabled_at"),
    ],
)
def test_mass_assignment_is_refused_by_name(admin: httpx.Client, path: str, body: dict[str, Any], field: str) -> None:
    error = error_of(admin.post(path, json=body))
    assert error["param"] == field and "no such field" in error["message"]


def test_a_patch_can_neither_rename_nor_revive_nor_move_a_key(admin: httpx.Client) -> None:
    key = admin.post("/tenants/default/keys", json={"name": "k"}).raise_for_status().json()
    for field, value in {"slug": "x", "created_at": "2000-01-01T00:00:00Z", "id": 1, "effective": {}}.items():
        assert error_of(admin.patch("/tenants/default", json={field: value}))["param"] == field
    for field, value in {"tenant": "x", "prefix": "x", "digest": "x", "disabled_at": None, "last4": "0000"}.items():
        assert error_of(admin.patch(f"/tenants/default/keys/{key['id']}", json={field: value}))["param"] == field
    for field, value in {"name": "mine", "id": 1, "created_at": "x"}.items():
        assert field in error_of(admin.patch("/tiers/batch", json={field: value}))["message"]
    admin.delete(f"/tenants/default/keys/{key['id']}").raise_for_status()


def test_ids_of_another_tenant_are_not_found(admin: httpx.Client) -> None:
    for slug in ("one", "two"):
        admin.post("/tenants", json={"slug": slug}).raise_for_status()
    key = admin.post("/tenants/one/keys", json={"name": "k"}).raise_for_status().json()
    wrong = f"/tenants/two/keys/{key['id']}"
    for response in (admin.delete(wrong), admin.patch(wrong, json={"rpm": 1}), admin.post(f"{wrong}/rotate", json={})):
        assert (response.status_code, error_of(response)["code"]) == (404, "key_not_found")
    assert admin.get("/tenants/one/keys").json()["keys"][0]["disabled_at"] is None


def test_a_tenants_key_can_not_speak_for_another_whatever_its_headers_say(admin: httpx.Client, client: httpx.Client) -> None:
    admin.post("/tenants", json={"slug": "spoofed"}).raise_for_status()
    for header in ("spoofed", "default, spoofed", "nobody", "'", "default\tspoofed"):
        refused = client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Tenant-ID": header})
        assert (refused.status_code, error_of(refused)["code"]) == (403, "tenant_mismatch"), header
    for forged in ({"X-Forwarded-For": "10.0.0.1"}, {"X-Request-ID": "req_mine"}, {"X-Forwarded-Host": "evil.example"}):
        answer = client.post("/generate", json={"prompt": "x", "max_tokens": 1}, headers=forged)
        assert answer.status_code == 200 and answer.headers["x-request-id"].startswith("req_0") and "evil" not in answer.text


@pytest.mark.parametrize("name", ["Authorization", "X-Tenant-ID"])
def test_a_header_that_says_who_asks_is_refused_where_it_comes_twice(served: Served, name: str) -> None:
    for method, path, headers in (
        ("POST", "/v1/completions", HEADERS),
        ("POST", "/tokenize", HEADERS),
        ("GET", "/v1/models", HEADERS),
        ("GET", "/v1/requests/req_1/explain", HEADERS),
        ("GET", "/api/v1/tenants", ADMIN_HEADERS),
        ("POST", "/api/v1/tenants", ADMIN_HEADERS),
    ):
        if name == "X-Tenant-ID" and path.startswith("/api"):
            continue  # means nothing there
        pairs = [*headers.items(), *([(name, "default")] if name == "X-Tenant-ID" else []), (name, "Bearer of something else")]
        answer = httpx.request(method, served.url + path, json={"prompt": "x"} if method == "POST" else None, headers=pairs)
        assert (answer.status_code, error_of(answer)["code"]) == (400, "repeated_header"), path
    assert '"error":"repeated_header"' in served.log(), "it is logged as any refused request"


def test_a_query_parameter_that_a_route_does_not_have_or_has_once_is_refused_by_name(admin: httpx.Client, client: httpx.Client) -> None:
    for method, path, param in (
        ("GET", "/tenants", "limi"),
        ("GET", "/usage", "tenants"),
        ("POST", "/tenants", "slug"),
        ("GET", "/me", "x"),
    ):
        answer = admin.request(method, path, params={param: "1"}, json={} if method == "POST" else None)
        assert (answer.status_code, error_of(answer)["code"], error_of(answer)["param"]) == (400, "unknown_parameter", param), path
    assert "after, limit, status, tier, search" in error_of(admin.get("/tenants", params={"limi": 1}))["message"]
    assert error_of(admin.get("/tenants?limit=1&limit=2"))["code"] == "repeated_parameter"
    assert client.get("/v1/models", params={"api-version": "2024-10-21"}).status_code == 200, (
        "OpenAI's API ignores them; some clients send them"
    )


def test_a_field_that_comes_twice_in_an_object_of_a_body_is_refused(admin: httpx.Client) -> None:
    for body in ('{"slug": "twice-1", "slug": "twice-2"}', '{"slug": "twice-1", "overrides": {"rpm": 5, "r\\u0070m": 6}}'):
        answer = admin.post("/tenants", content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, error_of(answer)["code"]) == (400, "repeated_field"), answer.text
    assert admin.get("/tenants", params={"search": "twice"}).json()["tenants"] == []


@pytest.mark.parametrize(
    "token",
    [b"'", b"fl-%00", b"\xc3\xa9" * 20, b"\xff" * 40, b"fl-" + b"0" * 9_000, b"{}", b"a b c", b"fl-\t0", b"null", b"Bearer Bearer", b"=?"],
)
def test_a_key_of_odd_characters_is_nobodys_and_is_not_repeated(served: Served, token: bytes) -> None:
    for method, path in (
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/api/v1/tenants"),
        ("GET", "/v1/requests/req_1/explain"),
    ):
        headers = [(b"Authorization", b"Bearer " + token), (b"Content-Type", b"application/json")]
        answer = httpx.request(method, served.url + path, headers=headers, content=b"{}" if method == "POST" else None, timeout=20)
        assert answer.status_code == 401, (path, answer.text)
        assert len(token) < 16 or token.decode("latin-1") not in answer.text


def test_a_foreign_host_header_changes_nothing_and_is_never_repeated(served: Served) -> None:
    for host in ("evil.example", "evil.example:99999", "127.0.0.1@evil.example", "a" * 2_000, "", "[::1", "evil.example\tx"):
        for target in ("/schema/openapi.json", "/readyz", "http://evil.example/readyz", "/v1//models", "/no-such"):
            answer = raw(served, f"GET {target} HTTP/1.1\nHost: {host}\nConnection: close\nAuthorization: Bearer {KEY}")
            assert answer.startswith(b"HTTP/1.1 ") and b"evil.example" not in answer.partition(b"\r\n\r\n")[0], (host, target)
            assert int(answer.split()[1]) in (200, 400, 404), (host, target, answer[:200])
    assert served.ready() == (200, "ready")


@pytest.mark.parametrize(
    "head",
    [
        "GET /readyz HTTP/1.1\nHost: x\nX: a\x00b",
        "GET /readyz HTTP/1.1\nHost: x\nX : a",
        "GET /readyz HTTP/1.1\nHost: x\nContent-Length: -1",
        "GET /readyz HTTP/1.1\nHost: x\nContent-Length: 1\nTransfer-Encoding: chunked",
        "GET /readyz HTTP/1.1\nHost: x\nContent-Length: 3\nContent-Length: 4",
        "GET /readyz\x00 HTTP/1.1\nHost: x",
        "GET /%ff%fe HTTP/1.1\nHost: x\nConnection: close",
        "GET /v1/models/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\nHost: x\nConnection: close",
        "GET //evil.example/readyz HTTP/1.1\nHost: x\nConnection: close",
        "TRACE / HTTP/1.1\nHost: x\nConnection: close",
        "GET * HTTP/1.1\nHost: x\nConnection: close",
        "CONNECT evil.example:443 HTTP/1.1\nHost: x\nConnection: close",
    ],
)
def test_a_malformed_head_is_a_clear_refusal_and_never_a_500(served: Served, head: str) -> None:
    answer = raw(served, head)
    assert 400 <= int(answer.split()[1]) < 500, answer[:300]
    assert b"set-cookie" not in answer.lower() and b"root:" not in answer
    assert served.ready() == (200, "ready")


def test_nothing_a_client_sends_breaks_a_log_line_or_forges_one(served: Served, client: httpx.Client) -> None:
    forged = 'x"}\n{"event":"request","outcome":"forged"}'
    before = len(request_lines(served))
    bodies = [{"prompt": forged, "max_tokens": 1}, {"model": forged}, {forged: 1}, {"prompt": "x", "service_tier": forged}]
    for body in bodies:
        client.post("/v1/completions", json=body)
    client.post("/v1/completions", content=forged.encode(), headers={"Content-Type": "application/json"})
    refused = client.post("/v1/completions", json={"prompt": "x"}, headers={"Authorization": "Bearer \x1b[31mred"})
    assert refused.status_code == 400  # by the parser: it never became a request
    client.post("/v1/completions", json={"prompt": "x"}, headers={"Authorization": b"Bearer \xe9\xff"})
    client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Task": "a\tb"})
    lines = request_lines(served)[before:]
    assert len(lines) == len(bodies) + 3 and {line["outcome"] for line in lines} == {"completed", "rejected"}
    assert "forged" not in served.log() and "\x1b" not in served.log()


def test_values_that_a_client_makes_up_make_no_series_of_metrics(client: httpx.Client) -> None:
    def forge(value: str) -> int:
        for field in ("model", "task", "lane", "service_tier", "user", value):
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, field: value})
        for header in ("X-Task", "X-Tenant-ID", "X-Deadline-Ms", "X-Request-ID", "traceparent"):
            client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}, headers={header: value})
        for path in (f"/v1/models/{value}", f"/v1/{value}", f"/v1/requests/{value}/explain"):
            client.get(path)
        return sum(not line.startswith("#") for line in client.get("/metrics").text.splitlines())

    assert len({forge(f"forged-{number}") for number in range(5)}) == 1


def test_of_two_admins_who_edit_the_same_tier_at_once_one_is_told_and_nothing_is_lost(served: Served, admin: httpx.Client) -> None:
    version = next(tier for tier in admin.get("/tiers").json()["tiers"] if tier["name"] == "batch")["version"]
    statuses: list[int] = []
    begin = threading.Barrier(4)

    def edit(field: str, value: int) -> None:
        begin.wait()
        body = {field: value, "version": version}
        response = httpx.patch(f"{served.url}/api/v1/tiers/batch", json=body, headers=ADMIN_HEADERS, timeout=20)
        statuses.append(response.status_code)

    fields = {"rpm": 100, "tpm": 1_000, "max_queued": 9, "queue_ttl_ms": 5_000}
    threads = [threading.Thread(target=edit, args=each) for each in fields.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(statuses) == [200, 409, 409, 409]
    tier = next(tier for tier in admin.get("/tiers").json()["tiers"] if tier["name"] == "batch")
    assert tier["version"] == version + 1
    assert sum(tier["sla"][field] == value for field, value in fields.items()) == 1


def test_a_body_that_is_huge_nested_or_no_json_is_refused(served: Served, admin: httpx.Client, client: httpx.Client) -> None:
    for path, of in (("/tenants", admin), ("/v1/completions", client)):
        for content, status in (
            (b"[" * 100_000, 400),
            (b"\xff\xfe", 400),
            (b'{"slug": "\\ud800"}', 400),
            (b"1" * 5_000_000, 413),
            (b"NaN", 400),
        ):
            response = of.post(path, content=content, headers={"Content-Type": "application/json"})
            assert response.status_code == status, (path, content[:20], response.text[:200])
    for number in ("1e400", "-1", "9" * 400, "1.5", "true", '"5"'):
        body = f'{{"slug": "fine", "overrides": {{"rpm": {number}}}}}'
        response = admin.post("/tenants", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, (number, response.text)
    assert httpx.get(served.url + "/v1/models", headers=HEADERS).status_code == 200
