"""Two who change one thing meet on a page with both versions, and the second one chooses."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect

from tests.ui.conftest import Office


@contextmanager
def two_tabs(office: Office, path: str) -> Iterator[tuple[Page, Page]]:
    """The same form twice, of one version."""
    theirs, mine = office.open(path), office.open(path)
    yield theirs, mine
    theirs.close()
    mine.close()


def row(page: Page, field: str, mine: str, present: str) -> None:
    expect(page.locator("h1")).to_contain_text("meanwhile")
    expect(page.get_by_role("row", name=f"{field} {mine} {present}", exact=True)).to_have_count(1)


def test_two_tabs_that_change_one_tenant(office: Office) -> None:
    office.tenant_with_key("shared")
    with two_tabs(office, "/ui/tenants/shared/edit") as (theirs, mine):
        theirs.fill("#name", "Theirs")
        theirs.click("button:has-text('Save')")
        expect(theirs.locator("h1")).to_contain_text("Theirs")
        mine.fill("#name", "Mine")
        mine.click("button:has-text('Save')")
        row(mine, "name", "Mine", "Theirs")
        mine.click("text=Apply mine on top of it")
        expect(mine.locator("h1")).to_contain_text("Mine")


def test_two_tabs_that_change_one_tier(office: Office) -> None:
    office.api("POST", "/tiers", name="contested", rpm=100)
    with two_tabs(office, "/ui/tiers/contested") as (theirs, mine):
        for page, rpm in ((theirs, "200"), (mine, "300")):
            page.fill("[name=rpm]", rpm)
            page.click("text=See what it would do")
            page.click("button:has-text('Apply')")
            if page is theirs:
                expect(page.get_by_role("status")).to_contain_text("Saved")
        row(mine, "Requests, a minute", "300", "200")
        mine.click("text=Keep it as it is now")
        expect(mine.locator("[name=rpm]")).to_have_value("200")


def test_two_tabs_that_change_one_key(office: Office) -> None:
    office.tenant_with_key("keyed")
    page = office.open("/ui/tenants/keyed/keys")
    path = page.get_by_role("link", name="first").get_attribute("href") or ""
    page.close()
    with two_tabs(office, path) as (theirs, mine):
        for page, name in ((theirs, "theirs"), (mine, "mine")):
            page.fill("#name", name)
            page.click("button:has-text('Save')")
            if page is theirs:
                expect(page.get_by_role("status")).to_contain_text("Saved")
        row(mine, "name", "mine", "theirs")
        mine.click("text=Apply mine on top of it")
        expect(mine.get_by_role("link", name="mine")).to_be_visible()


def test_two_tabs_that_change_one_administrator_and_no_password_is_written_into_a_page(office: Office) -> None:
    made = office.api("POST", "/admins", name="contested", role="viewer")
    with two_tabs(office, f"/ui/settings/admins/{made['id']}") as (theirs, mine):
        theirs.select_option("#role", "operator")
        theirs.click("button:has-text('Save')")
        expect(theirs.get_by_role("status")).to_contain_text("Saved")
        mine.select_option("#role", "operator")
        mine.check("[name=disabled]")
        mine.fill("#password", "a secret of mine")
        mine.click("button:has-text('Save')")
        row(mine, "disabled", "yes", "no")
        expect(mine.get_by_role("row", name="password")).to_contain_text("type it again afterwards")
        assert "a secret of mine" not in mine.content()
        mine.click("text=Apply mine on top of it")
        expect(mine.locator(".head .tag")).to_have_text("disabled")
