"""Pages beside 10,000 tenants, while the database is lost, and over a restart of the server: its engine is a fake, the database is not."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from appliance.domain.tenants.bootstrap import open_store
from appliance.settings import Settings
from benchmarks.many_tenants import fill, slug_of
from benchmarks.servers import free_port
from tests.control.postgres import PostgresServer, own_postgres
from tests.inference.test_serve import HEADERS, Served, serving
from tests.ui.conftest import PAGE_TIMEOUT_MS, PASSWORD, log_in

NUM_TENANTS = 10_000
OWNER = "admin"
BY_PASSWORD = f"bootstrap_admin_password={PASSWORD}"
STATUS = "#live-status"


@dataclass(frozen=True)
class Estate:
    """A server of 10,000 tenants on a PostgreSQL of its own, and its owner's browser."""

    served: Served
    postgres: PostgresServer
    context: BrowserContext

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.goto(path)
        return page


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory, export: Path, browser: Browser) -> Iterator[Estate]:
    folder = tmp_path_factory.mktemp("estate")
    with own_postgres() as postgres:
        url = f"{postgres.url}/postgres"
        with ThreadPoolExecutor(1) as thread:  # Playwright's own event loop runs in this one
            thread.submit(_furnish, Settings(data_dir=str(folder), database_url=url)).result()
        with serving(folder, export, f"database_url={url}", BY_PASSWORD) as served:
            context = _logged_in(browser, served.url)
            yield Estate(served, postgres, context)
            context.close()


def _furnish(settings: Settings) -> None:
    async def furnish() -> None:
        store = await open_store(settings)
        async with store.database:
            await fill(store, NUM_TENANTS)

    asyncio.run(furnish())


def _logged_in(browser: Browser, base_url: str) -> BrowserContext:
    context = browser.new_context(base_url=base_url)
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    page = context.new_page()
    page.goto("/ui/")
    log_in(page, OWNER, PASSWORD)
    page.wait_for_url("**/ui/")
    page.close()
    return context


def _slugs(page: Page) -> list[str]:
    return page.locator("#list tbody th").all_inner_texts()


def test_ten_thousand_tenants_are_paged_sorted_and_searched_by_the_server(estate: Estate) -> None:
    page = estate.open("/ui/tenants")
    assert _slugs(page) == [slug_of(n) for n in range(50)]
    expect(page.get_by_label("Pages of the list")).to_contain_text("1–50 of 10,001")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#list tbody th").first).to_have_text(slug_of(50))
    page.goto("/ui/tenants?page=101")
    assert _slugs(page) == [slug_of(n) for n in range(5_000, 5_050)]
    page.goto("/ui/tenants?page=201")
    assert _slugs(page) == ["default"]
    page.goto("/ui/tenants?sort=name&down=1")
    assert _slugs(page)[:2] == ["default", slug_of(9_999)]
    page.goto("/ui/tenants?sort=use&down=1")
    assert len(_slugs(page)) == 50
    page.locator("#search").fill("-0777")
    page.wait_for_url("**search=-0777**")
    expect(page.locator("#list tbody tr")).to_have_count(10)
    assert sorted(_slugs(page)) == [slug_of(n) for n in range(7_770, 7_780)]
    page.goto(f"/ui/keys?search={slug_of(9_999)}")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    page.goto("/ui/keys")
    where, first = page.get_by_label("Pages of the list"), page.locator("#list tbody tr").first
    expect(where).to_contain_text("1–50 of 10,001")
    newest = first.inner_text()
    page.get_by_role("link", name="Next").click()
    expect(where).to_contain_text("51–100 of 10,001")
    expect(first).not_to_have_text(newest)
    page.get_by_role("link", name="Back").click()
    expect(where).to_contain_text("1–50 of 10,001")
    assert first.inner_text() == newest
    page.goto(f"/ui/tenants/{slug_of(7_770)}")
    expect(page.get_by_role("row", name="Requests a minute 8,370")).to_contain_text("own")


def test_who_was_in_can_look_while_the_database_is_lost_and_is_told_what_can_not_be_done(estate: Estate, browser: Browser) -> None:
    page, form = estate.open("/ui/"), estate.open("/ui/new-tenant")
    expect(page.locator(STATUS)).to_contain_text("ready")
    estate.postgres.stop(signal.SIGQUIT)
    try:
        expect(page.locator(STATUS)).to_contain_text("degraded")
        page.get_by_role("link", name="Health").click()
        expect(page.locator("h1")).to_have_text("Health")
        expect(page.locator("main")).to_contain_text("the database does not answer")
        for path, title in (
            ("/ui/", "Overview"),
            ("/ui/scheduler", "Scheduler"),
            ("/ui/engine", "Engine"),
            ("/ui/requests", "Live requests"),
        ):
            page.goto(path)
            expect(page.locator("h1")).to_have_text(title)
        answer = page.goto("/ui/tenants")
        assert answer is not None and answer.status == 503
        expect(page.get_by_role("main")).to_contain_text("requests are served meanwhile")
        form.fill("#slug", "too-early")
        form.click("button:has-text('Create tenant')")
        expect(form.get_by_role("main")).to_contain_text("Nothing was changed")
        form.get_by_role("main").get_by_role("link", name="Health").click()
        expect(form.locator("h1")).to_have_text("Health")
        stranger = browser.new_context(base_url=estate.served.url).new_page()
        stranger.goto("/ui/health")
        log_in(stranger, OWNER, PASSWORD)
        expect(stranger.get_by_role("alert")).to_contain_text("the database does not answer")
        stranger.context.close()
    finally:
        estate.postgres.start()
    expect(page.locator(STATUS)).to_contain_text("ready", timeout=PAGE_TIMEOUT_MS)
    page.goto("/ui/health")
    expect(page.locator("main")).to_contain_text("answers in")
    page.goto("/ui/tenants?search=too-early")
    expect(page.locator("#list")).to_contain_text("No tenant is like that")


def test_an_engine_that_dies_is_seen_at_once_and_its_starts_are_remembered(estate: Estate) -> None:
    page = estate.open("/ui/")
    expect(page.locator(STATUS)).to_contain_text("ready")
    os.kill(estate.served.engine_pids()[-1], signal.SIGKILL)
    expect(page.locator("#live-ready")).to_contain_text(re.compile("engine down|warming up"))
    expect(page.locator("#live-ready")).to_contain_text("ready", timeout=PAGE_TIMEOUT_MS)
    page.goto("/ui/health")
    expect(page.locator("main")).to_contain_text("started 2 times")
    expect(page.get_by_role("heading", name="Before it")).to_be_visible()


def test_an_open_page_says_that_the_server_is_away_and_goes_on_after_its_restart(tmp_path: Path, export: Path, browser: Browser) -> None:
    port = f"port={free_port()}"
    with serving(tmp_path, export, port, BY_PASSWORD) as served:
        context = _logged_in(browser, served.url)
        page = context.new_page()
        page.goto("/ui/")
        expect(page.locator(STATUS)).to_contain_text("ready")
        served.process.kill()
        expect(page.locator(STATUS)).to_have_text("not connected", timeout=PAGE_TIMEOUT_MS)
        expect(page.locator("body.stale")).to_have_count(1)
    (tmp_path / "run.json").unlink()
    with serving(tmp_path, export, port) as served:
        expect(page.locator(STATUS)).to_contain_text("ready", timeout=PAGE_TIMEOUT_MS)
        expect(page.locator("body.stale")).to_have_count(0)
        httpx.post(served.url + "/v1/completions", json={"prompt": "x", "max_tokens": 3}, headers=HEADERS).raise_for_status()
        expect(page.locator("#lane-slow td").last).to_have_text("1")
        page.goto("/ui/tenants")
        expect(page.locator("h1")).to_have_text("Tenants")
        context.close()
