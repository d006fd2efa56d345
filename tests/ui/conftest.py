"""One real appliance and one real browser for all journeys: SmolLM2, headless Chromium, no owner before the first test."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from openai import OpenAI
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.appliance import SMALL_BUCKETS, Appliance, require_service, start_appliance

OWNER, PASSWORD = "alice", "correct horse battery"
GRAFANA = "https://grafana.example"
FLAGS = (*SMALL_BUCKETS, "--max-num-seqs", "16", "--max-model-len", "2048", "--num-gpu-blocks-override", "1024", "--grafana-url", GRAFANA)
PAGE_TIMEOUT_MS = 15_000


@dataclass(frozen=True)
class Office:
    """An owner at a browser, and what lies on the desk."""

    appliance: Appliance
    browser: Browser
    context: BrowserContext
    """With the owner's session."""

    def url(self, path: str) -> str:
        return self.appliance.base_url + path

    def open(self, path: str) -> Page:
        """A new tab of the owner."""
        page = self.context.new_page()
        page.goto(self.url(path))
        return page

    def client(self, key: str) -> OpenAI:
        return OpenAI(base_url=self.url("/v1"), api_key=key, max_retries=0, timeout=60)

    def api(self, method: str, path: str, **body: object) -> dict[str, object]:
        """The API with the bootstrap token: what a test needs and is not about."""
        answer = httpx.request(method, self.url(f"/api/v1{path}"), headers=self.appliance.admin_headers, json=body or None, timeout=30)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else {}

    def tenant_with_key(self, slug: str, tier: str = "standard", **overrides: object) -> str:
        """A tenant of a test's own; its key."""
        self.api("POST", "/tenants", slug=slug, tier=tier, overrides=overrides)
        return str(self.api("POST", f"/tenants/{slug}/keys", name="first")["key"])


def log_in(page: Page, name: str, password: str) -> None:
    """Fill in the login form that a tab shows, and send it."""
    page.fill("#name", name)
    page.fill("#password", password)
    page.click("button:has-text('Log in')")


@pytest.fixture(scope="package")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    with start_appliance(tmp_path_factory.mktemp("ui") / "data", *FLAGS, timeout_s=400) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    require_service("a browser", program="chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def office(appliance: Appliance, browser: Browser) -> Iterator[Office]:
    """The first owner is made by the link that the first start shows."""
    token = (appliance.data_dir / "setup-token").read_text().strip()
    context = browser.new_context()
    context.set_default_timeout(PAGE_TIMEOUT_MS)
    page = context.new_page()
    page.goto(f"{appliance.base_url}/ui/setup?token={token}")
    page.fill("#name", OWNER)
    page.fill("#password", PASSWORD)
    page.fill("#again", PASSWORD)
    page.click("text=Make the owner and log in")
    page.wait_for_url("**/ui/")
    page.close()
    yield Office(appliance, browser, context)
    context.close()


@pytest.fixture(autouse=True)
def _closed_tabs(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no tab open: each holds a connection for its stream, and a browser makes six to one server."""
    yield
    if "office" in request.fixturenames:
        for page in request.getfixturevalue("office").context.pages:
            page.close()
