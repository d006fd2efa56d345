"""Every panel of every dashboard is drawn by the built-in viewer, in a real Chromium, from the process's own last hour.

That a Prometheus answers them all, too, is in test_live.py.
"""

import shutil
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from appliance.dashboards.board import Board, read_boards
from tests.appliance import require_service
from tests.observability.conftest import MAY_BE_EMPTY, Run
from tests.observability.traffic import NOISY, STRICT
from tests.ui.axe import COLOURS, barriers

ADMIN = {"name": "watcher", "password": "a horse, a staple"}
DRAWN_WITHIN_S = 60.0
BOARDS = read_boards()


@pytest.fixture(scope="module")
def context(run: Run) -> Iterator[BrowserContext]:
    """A viewer's browser."""
    require_service("a browser", program="chromium")
    admins = run.appliance.base_url + "/api/v1/admins"
    httpx.post(admins, json={**ADMIN, "role": "viewer"}, headers=run.appliance.admin_headers).raise_for_status()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(
            base_url=run.appliance.base_url,
            viewport={"width": 1280, "height": 900},
            reduced_motion="reduce",  # else a change of colours is half done when axe looks
        )
        page = context.new_page()
        page.goto("/ui/")
        page.fill("[name=name]", ADMIN["name"])
        page.fill("[name=password]", ADMIN["password"])
        page.press("[name=password]", "Enter")
        page.wait_for_selector("nav[aria-label=Pages]")
        page.close()
        yield context
        browser.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab; what it complains of fails the test."""
    complaints: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert not complaints


def states(page: Page, board: Board) -> dict[str, str]:
    """What became of each panel: drawn, empty or error."""
    page.goto(f"/ui/dashboards/{board.uid}?range=5m&tenant={NOISY}")
    expect(page.locator(".chart-panel:not([data-state])")).to_have_count(0, timeout=1000 * DRAWN_WITHIN_S)
    panels = page.locator(".chart-panel").evaluate_all("found => found.map(each => [each.dataset.id, each.dataset.state])")
    titles = {panel.panel_id: panel.title for panel in board.panels}
    return {titles[int(panel_id)]: state for panel_id, state in panels}


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.uid)
def test_every_panel_is_drawn_from_the_own_last_hour(page: Page, board: Board) -> None:
    wanted = {panel.title: "empty" if (board.uid, panel.title) in MAY_BE_EMPTY else "drawn" for panel in board.panels}
    deadline = time.monotonic() + DRAWN_WITHIN_S
    while (found := states(page, board)) != wanted and time.monotonic() < deadline:
        time.sleep(1)  # the load goes on: on a busy machine a lane may have nothing in its newest minute
    assert found == wanted
    for kind, what in (
        ("timeseries", ".plot canvas"), ("timeseries", ".values tbody tr"), ("stat", ".big strong"), ("gauge", ".arc"),
        ("bargauge", ".track rect"), ("heatmap", "rect[class^=heat]"), ("table", "tbody td"),
    ):  # fmt: skip
        for panel in board.panels:
            if panel.kind == kind and wanted[panel.title] == "drawn":
                assert page.locator(f"#panel-{panel.panel_id} {what}").count(), f"{panel.title} has no {what}"
    assert barriers(page) == []
    page.emulate_media(color_scheme="dark")
    assert barriers(page, COLOURS) == []


def test_the_time_line_of_a_slow_request_is_there_for_everybody(run: Run, page: Page) -> None:
    def explained() -> list[str]:
        answer = httpx.get(f"{run.appliance.base_url}/api/v1/slow?tenant={STRICT}", headers=run.appliance.admin_headers).raise_for_status()
        return [each["id"] for each in answer.json()["slow"] if "ttft" in each["why"] and each["outcome"] == "completed"]

    run.monitoring.until(explained, what="a slow request that was explained")
    request_id = explained()[0]
    page.goto(f"/ui/slow?why=ttft&tenant={STRICT}")
    page.locator(f"td.wide a[href*={request_id}]").first.click()
    expect(page.locator("svg.life rect").first).to_be_visible()
    assert "past its target" in page.locator(".verdict").inner_text()
    label = page.locator("svg.life").get_attribute("aria-label") or ""
    assert "decoding" in label and "its own time" in label
    shares = page.locator("section[aria-labelledby=parts-title] tbody td:last-child").all_text_contents()
    assert sum(float(share.removesuffix(" %")) for share in shares) == pytest.approx(100, abs=0.1 * len(shares))
    assert barriers(page) == []


def test_several_values_of_a_variable_are_asked_for_together(page: Page) -> None:
    page.goto("/ui/dashboards/fairlane-lanes?range=5m")
    lanes = page.locator("#v-lane")
    lanes.locator("summary").click()
    assert barriers(page) == []
    for lane in ("fast", "slow"):
        lanes.get_by_label(lane, exact=True).check()
    expect(lanes.get_by_label("all", exact=True)).not_to_be_checked()
    with page.expect_response(lambda response: "/data?" in response.url and "lane=fast&lane=slow" in response.url) as answered:
        page.keyboard.press("Escape")
    lines = [line for panel in answered.value.json()["panels"] for line in panel["lines"]]
    assert {line["labels"]["lane"] for line in lines if "lane" in line["labels"]} == {"fast", "slow"}
    assert lanes.locator("summary").inner_text() == "fast, slow"
    lanes.locator("summary").click()
    lanes.get_by_label("all", exact=True).check()
    expect(lanes.get_by_label("fast", exact=True)).not_to_be_checked()


def test_a_chosen_tenant_is_the_one_that_is_asked_for_and_time_can_be_chosen(page: Page) -> None:
    page.goto(f"/ui/dashboards/fairlane-tenant?tenant={NOISY}")
    assert page.locator("#v-tenant").input_value() == NOISY
    with page.expect_navigation():
        page.select_option("#v-tenant", "strict")
    assert "tenant=strict" in page.url and page.locator("#v-range option").all_text_contents() == ["last 5m", "last 15m", "last 1h"]
    # the page that is being left may still ask for its own range, and what it is told goes with it
    with page.expect_response(lambda response: all(part in response.url for part in ("/data?", "tenant=strict", "range=5m"))) as answered:
        page.select_option("#v-range", "5m")
    shares = [panel for panel in answered.value.json()["panels"] if any(line["labels"] == {"tenant": "strict"} for line in panel["lines"])]
    assert shares and page.locator("#v-tenant").input_value() == "strict"
