"""What each page is there to show is on it, while a request runs; and how pages behave: times, copying, exports, jumps, keys, headers."""

import csv
import io
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from openai import APIError, OpenAI, RateLimitError
from playwright.sync_api import Page, expect

from tests.ui.conftest import OWNER, Office
from tests.ui.test_journeys import MODEL, ask, usage_shows

BUSY, REFUSED = "itemized", "itemized-small"
FACTS = {
    "/ui/": (
        "ready", MODEL, "Generated", "Prefilled", "Queued", "oldest wait", "TTFT P50", "P99", "target", "fast", "slow", "batch",
        "Tokens a second", "TTFT of the last minute", "Sequences", "free", "cached for reuse", BUSY, "budget left", "burn 1h", "≤",
        "rate requests",
    ),
    "/ui/requests": ("stage", "decode", "age", "TTFT", "target", "prompt", "cached", "generated", BUSY),
    "/ui/tenants?search=itemized": ("status", "active", "in flight", "nearest limit", "objectives", "of 1 requests a minute", "standard"),
    f"/ui/tenants/{BUSY}": (
        "Requests in flight", "decode", "Cancel", "Effective SLA", "own", "tier", "Limits", "of 50", "Objectives",
        "ttft · fast", "Version", "Dashboard",
    ),
    f"/ui/tenants/{BUSY}/keys": ("first", "valid", "inference", "never", "Create key"),
    f"/ui/tenants/{BUSY}/usage": ("first", "slow", "completed"),
    f"/ui/tenants/{BUSY}/audit": ("tenant.create", "key.create"),
    "/ui/tiers": ("interactive", "standard", "batch"),
    "/ui/tiers/interactive": ("See what it would do", "Shadow mode"),
    "/ui/keys": ("tenant", "state", "ends", BUSY),
    "/ui/scheduler": (
        "virtual counter", "debt", "share of the last steps", "weight", BUSY, "predicted", "limit", "of a budget of", "pages free",
        "whose work",
    ),
    "/ui/engine": (
        MODEL, "Attention", "Step model's error", "Warm-up", "compile", "Prompt tokens found", "Evicted", "Cards", "compiled at", "padding",
        "KV pool", "bfloat16",
    ),
    "/ui/usage": ("Export CSV", "By tenant", BUSY, "of it cached"),
    "/ui/audit": ("tenant.create", f"tenant:{BUSY}"),
    "/ui/health": (
        "Engine heard", "takes requests", "Version", "sqlite, answers in", "Schema", "Usage not written yet", "Spool", "Usage lost",
        "Last start",
        "compile",
        "Sums that must hold", "control plane", "engine 0",
    ),
    "/ui/settings": (OWNER, "owner", "My password", "Log level", "Back up now"),
    "/ui/dashboards": ("what it answers", "panels", "in Grafana"),
}  # fmt: skip
"""By page, what its operator looks for."""


@pytest.fixture(scope="module")
def busy(office: Office) -> Iterator[Office]:
    """A tenant whose request runs as long as the tests of this file; it, and one without room, have others that ended."""
    client = office.client(office.tenant_with_key(BUSY, ttft_ms={"fast": 30_000}, max_concurrency=50))
    small = office.client(office.tenant_with_key(REFUSED, rpm=1))
    ask(client)
    ask(small)
    with pytest.raises(RateLimitError):
        ask(small)
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 1900, "stream": True}
            with client.chat.completions.create(**body, extra_body={"ignore_eos": True}) as stream:  # pyright: ignore[reportCallIssue, reportArgumentType]
                for _ in stream:
                    if over.is_set():
                        break

    thread = threading.Thread(target=keep_asking)
    thread.start()
    yield office
    over.set()
    thread.join(30)


def text_of(page: Page, path: str) -> str:
    page.goto(path)
    return re.sub(r"\s+", " ", page.locator("main").text_content() or "")


def test_every_page_has_what_its_operator_looks_for(busy: Office) -> None:
    page = busy.open("/ui/requests")
    page.locator("tbody a[href*='/ui/requests/']").first.wait_for()
    usage_shows(page, busy, BUSY, "completed")
    missing: list[str] = []
    for path, facts in FACTS.items():
        text = text_of(page, busy.url(path))
        missing += [f"{path}: {fact}" for fact in facts if fact not in text]
    assert missing == []


def test_what_moves_on_a_page_moves_nothing_else(busy: Office) -> None:
    """No layout shift (https://web.dev/articles/cls) while a request runs and every second brings new numbers."""
    page = busy.context.new_page()
    page.add_init_script(
        "window.shifts = []; new PerformanceObserver(list => { for (const one of list.getEntries()) shifts.push(one.value); })"
        ".observe({type: 'layout-shift', buffered: true});"
    )
    for path in ("/ui/", f"/ui/tenants/{BUSY}"):
        page.goto(busy.url(path))
        page.wait_for_timeout(1_200)  # the stream has begun and charts are drawn
        page.evaluate("shifts.length = 0")
        page.wait_for_timeout(2_200)
        assert page.evaluate("shifts.reduce((sum, one) => sum + one, 0)") < 0.01, path


def test_a_page_rests_while_its_tab_is_hidden(office: Office) -> None:
    page = office.context.new_page()
    page.add_init_script(
        "const Source = EventSource; window.sources = [];"
        "window.EventSource = function (url) { const one = new Source(url); sources.push(one); return one; };"
    )
    page.goto(office.url("/ui/"))
    _wait_until(page, "sources.length === 1 && sources[0].readyState === 1")
    hide = "value => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => value});"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(hide, True)
    assert page.evaluate("sources[0].readyState") == 2
    page.evaluate(hide, False)
    _wait_until(page, "sources.length === 2 && sources[1].readyState === 1")


def _wait_until(page: Page, condition: str) -> None:
    """Playwright's own way evaluates text in the page, which our policy forbids."""
    for _ in range(50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


def test_times_are_the_browsers_own_and_utc_is_under_the_pointer(office: Office) -> None:
    office.tenant_with_key("timely")
    made = datetime.fromisoformat(str(office.api("GET", "/tenants/timely")["created_at"]))
    context = office.browser.new_context(storage_state=office.context.storage_state(), timezone_id="Asia/Kolkata")
    page = context.new_page()
    page.goto(office.url("/ui/tenants/timely"))
    shown = page.locator("dl.facts time").first
    local = made + timedelta(hours=5, minutes=30)
    expect(shown).to_have_text(f"{local:%Y-%m-%d %H:%M:%S}")
    assert shown.get_attribute("title") == f"{made:%Y-%m-%d %H:%M:%S} UTC"
    context.close()


def test_a_key_is_copied_by_its_button_and_ends_when_it_was_told_to(office: Office) -> None:
    office.tenant_with_key("copied")
    context = office.browser.new_context(
        storage_state=office.context.storage_state(), base_url=office.appliance.base_url, permissions=["clipboard-read", "clipboard-write"]
    )
    page = context.new_page()
    page.goto("/ui/tenants/copied/keys")
    page.fill("#name", "soon over")
    page.fill("#expires_at", f"{datetime.now(UTC) + timedelta(seconds=4):%Y-%m-%dT%H:%M:%S}")
    page.click("button:has-text('Create key')")
    page.click("button:has-text('Copy')")
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    key = page.evaluate("navigator.clipboard.readText()")
    assert key == page.locator("#raw-key").inner_text()
    with pytest.raises(APIError, match="has expired"):
        _ask_for_seconds(office.client(key), 20)
    context.close()


def _ask_for_seconds(client: OpenAI, seconds: float) -> None:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        ask(client, 1)


def test_usage_is_exported_as_it_is_shown(busy: Office) -> None:
    page = busy.open(f"/ui/usage?tenant={BUSY}")
    with page.expect_download() as download:
        page.click("text=Export CSV")
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert rows and {row["tenant"] for row in rows} == {BUSY}
    assert sum(int(row["requests"]) for row in rows if row["outcome"] == "completed") == 1


def test_the_keyboard_is_enough(office: Office) -> None:
    page = office.open("/ui/tenants")
    page.keyboard.press("Tab")
    expect(page.locator("a.skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="New tenant")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#slug")).to_be_focused()
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Make a key")


def test_no_page_allows_scripts_or_styles_of_its_own_or_from_elsewhere(office: Office) -> None:
    cookies = {cookie["name"]: cookie["value"] for cookie in office.context.cookies()}  # pyright: ignore[reportTypedDictNotRequiredAccess]
    for path in ("/ui/", "/ui/settings", "/ui/dashboards/fairlane-overview", "/ui/nothing"):
        answer = httpx.get(office.url(path), cookies=cookies)
        policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert re.findall(r'(?:src|action)="(?:https?:)?//|<link[^>]+href="(?:https?:)?//', answer.text) == []
