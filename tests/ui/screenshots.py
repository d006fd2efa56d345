"""`make screenshots`: every page of a busy appliance, light and dark, desktop and phone, into var/screenshots."""

import argparse
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.ui.pages import PAGES

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct horse battery"
SIZES = {"desktop": (1280, 860), "phone": (390, 844)}
TENANTS = {
    "acme": ("ACME Corporation", "interactive", {"rpm": 600, "max_concurrency": 8}),
    "globex": ("Globex", "standard", {"tpm": 20_000, "tokens_per_day": 2_000_000}),
    "hooli": ("Hooli", "interactive", {"ttft_ms": {"fast": 1_000, "slow": 4_000}}),
    "initech": ("Initech", "batch", {}),
    "umbrella": ("Umbrella Research", "standard", {}),
}
MODEL = "smollm2-135m-instruct"
WARM_S, LOAD_S = 100.0, 600.0
FLAGS = (*SMALL_BUCKETS, "--max-num-seqs", "16", "--max-model-len", "4096", "--num-gpu-blocks-override", "2048")
LIVE_S = 2.5
"""Until a live page has drawn its charts."""
DRAWN_S = 60.0
"""The most that a dashboard's panels may take."""
MAX_HEIGHT = 2_400
"""Of a picture; what lies beneath is more of the same."""


def main(folder: Path) -> None:
    """Start, furnish, load, photograph."""
    chromium = shutil.which("chromium")
    assert chromium, "install chromium first (Debian: apt install chromium)"
    folder.mkdir(parents=True, exist_ok=True)
    env = {"FAIRLANE_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
    with tempfile.TemporaryDirectory() as data, start_appliance(Path(data) / "data", *FLAGS, timeout_s=400, env=env) as appliance:
        keys = furnish(appliance)
        over = threading.Event()
        threads = [threading.Thread(target=load, args=(appliance, key, over), daemon=True) for key in keys for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_S)  # the charts show something, and slow requests are explained
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            for theme in ("light", "dark"):
                for size in SIZES:
                    photograph(browser, appliance, folder, theme, size)
            browser.close()
        over.set()


def furnish(appliance: Appliance) -> list[str]:
    """Tenants with keys; the keys of those that send requests."""
    with httpx.Client(base_url=appliance.base_url + "/api/v1", headers=appliance.admin_headers, timeout=30) as api:
        for slug, (name, tier, overrides) in TENANTS.items():
            api.post("/tenants", json={"slug": slug, "name": name, "tier": tier, "overrides": overrides}).raise_for_status()
        api.patch("/tenants/umbrella", json={"status": "suspended"}).raise_for_status()
        return [api.post(f"/tenants/{slug}/keys", json={"name": "production"}).json()["key"] for slug in ("acme", "globex", "hooli")]


def load(appliance: Appliance, key: str, over: threading.Event) -> None:
    """One client of a tenant: prompts of many lengths, one after the other."""
    words = ("cats", "trees", "rivers", "stones", "bridges")
    ends_s = time.monotonic() + LOAD_S
    with httpx.Client(base_url=appliance.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as client:
        while not over.is_set() and time.monotonic() < ends_s:
            text, max_tokens = " ".join(random.choices(words, k=random.choice((5, 30, 120)))), random.choice((16, 60, 120))
            message = {"role": "user", "content": f"Tell me about {text}"}
            body = {"model": MODEL, "messages": [message], "max_tokens": max_tokens, "stream": True}
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                for _ in answer.iter_bytes():
                    pass
            over.wait(random.expovariate(2))


def photograph(browser: Browser, appliance: Appliance, folder: Path, theme: str, size: str) -> None:
    """All pages in one theme and size, and the login form."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # pyright: ignore[reportArgumentType]
    page = context.new_page()
    page.goto(appliance.base_url + "/ui/")
    page.screenshot(path=folder / f"login-{size}-{theme}.png")
    page.fill("#name", "admin")
    page.fill("#password", PASSWORD)
    page.click("button:has-text('Log in')")
    page.wait_for_url("**/ui/")
    for path in PAGES:
        page.goto(appliance.base_url + path.format(slug="acme"))
        page.wait_for_timeout(LIVE_S * 1000 if path in ("/ui/", "/ui/scheduler") else 300)
        page.locator(".chart-panel:not([data-state])").first.wait_for(state="detached", timeout=DRAWN_S * 1000)
        name = path.partition("?")[0].format(slug="tenant").removeprefix("/ui/").strip("/").replace("/", "-") or "overview"
        take(page, folder / f"{name}-{size}-{theme}.png")
        print(f"{name} {size} {theme}", flush=True)
    page.goto(appliance.base_url + "/ui/slow")
    slow = page.locator("tbody a[href*='/ui/requests/']")
    if slow.count():
        slow.first.click()
        page.wait_for_timeout(300)
        take(page, folder / f"request-{size}-{theme}.png")
    context.close()


def take(page: Page, path: Path) -> None:
    """The whole page, as far as a picture goes."""
    width, height = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": min(height, MAX_HEIGHT)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.ui.screenshots", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "var" / "screenshots")
    main(parser.parse_args().folder)
