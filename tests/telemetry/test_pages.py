"""Live pages: bounded, escaped, for administrators."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from appliance.domain.explain.pages import MAX_ROWS, PAGE_NAMES, DebugPages, PageName, render
from appliance.telemetry.hub import Telemetry
from engine.wire import Load, TenantLoad
from tests.inference import test_serve
from tests.telemetry.test_explain import STORY, report_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def pages() -> DebugPages:
    telemetry = Telemetry(CollectorRegistry())
    for step in STORY:
        telemetry.ledger.append(step)
    tenants = tuple(TenantLoad(f"t{number}", "fast", 1, number, 10) for number in range(300))
    telemetry.note_load(Load(1, 1, {}, {}, 0, 5, 3, 2, tenants))
    waiting = [report_of(request_id=f"req_{n}", tenant_id=HOSTILE, scheduled_ns=0, first_token_ns=0) for n in range(250)]
    return DebugPages(telemetry, lambda: [report_of(), *waiting], lambda: 400_000_000)


def rows(pages: DebugPages, name: PageName) -> list[dict[str, Any]]:
    async def read() -> list[dict[str, Any]]:
        page = pages.page(name)
        assert len(page.rows) <= MAX_ROWS <= max(MAX_ROWS, page.total)
        assert HOSTILE not in render(page)
        return [dict(zip(page.columns, row, strict=True)) for row in page.rows]

    return asyncio.run(read())


def test_each_page_shows_what_its_name_says_and_never_more_than_its_bound(pages: DebugPages) -> None:
    queue = rows(pages, "queue")
    assert len(queue) == MAX_ROWS and {row["stage"] for row in queue} == {"queue"} and queue[0]["age_s"] == 0.385
    assert {row["what"]: row["number"] for row in rows(pages, "kv")}["pages used"] == 3
    assert [row["tenant"] for row in rows(pages, "tenants")][:2] == ["t299", "t298"]
    steps = rows(pages, "steps")
    assert [row["step"] for row in steps] == [6, 5, 4, 3, 2, 1] and steps[3]["work"] == "noisy 75%, quiet 25%"
    assert steps[5]["evicted"] == "9 of quiet for noisy" and steps[0]["evicted"] == ""
    assert "coroutine" in rows(pages, "tasks")[0]


def test_administrators_get_pages_as_html_or_json_and_nobody_else_does(tmp_path: Path, export: Path) -> None:
    admin = {"Authorization": f"Bearer {test_serve.ADMIN}"}
    with test_serve.serving(tmp_path, export) as served, httpx.Client(base_url=served.url) as http:
        for name in PAGE_NAMES:
            assert http.get(f"/debug/{name}", headers=admin).json()["name"] == name
            page = http.get(f"/debug/{name}", headers={**admin, "Accept": "text/html"})
            assert page.headers["content-type"].startswith("text/html") and f"<h1>{name}</h1>" in page.text
            assert http.get(f"/debug/{name}").status_code == 401
            assert http.get(f"/debug/{name}", headers=test_serve.HEADERS).status_code == 403
        assert http.get("/debug/nothing", headers=admin).status_code == 404
