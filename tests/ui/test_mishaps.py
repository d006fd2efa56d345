"""What goes wrong while pages are open: sessions end, addresses are mistyped, names are unlucky, who granted a key leaves."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.ui.conftest import OWNER, PASSWORD, Office, log_in

BEYOND_INTEGERS = 10**30
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def visit(office: Office) -> Iterator[BrowserContext]:
    """The owner at another browser, whose session a test may end."""
    context = office.browser.new_context(storage_state=office.context.storage_state(), base_url=office.appliance.base_url)
    yield context
    context.close()


def test_a_form_that_is_sent_after_the_session_ended_changes_nothing_and_says_so_and_leads_back(visit: BrowserContext) -> None:
    page = visit.new_page()
    page.goto("/ui/new-tenant")
    page.fill("#slug", "too-late")
    visit.clear_cookies()
    page.click("button:has-text('Create tenant')")
    expect(page.get_by_role("status")).to_contain_text("nothing was changed")
    log_in(page, OWNER, PASSWORD)
    expect(page.locator("h1")).to_have_text("New tenant")
    assert visit.request.get("/ui/tenants/too-late").status == 404


def test_an_open_page_whose_session_has_ended_becomes_the_login_form_and_comes_back_as_it_was(visit: BrowserContext) -> None:
    page = visit.new_page()
    page.goto("/ui/tenants?search=nobody")
    page.evaluate(HIDE, True)  # a tab that is hidden ends its stream, and asks for another one when it is seen
    visit.clear_cookies()
    page.evaluate(HIDE, False)
    expect(page.locator("#password")).to_be_visible()
    log_in(page, OWNER, PASSWORD)
    expect(page.locator("#search")).to_have_value("nobody")


def test_a_change_of_colours_stays_on_the_page_also_after_a_form_was_refused(visit: BrowserContext) -> None:
    page = visit.new_page()
    page.goto("/ui/tenants?search=nobody")
    page.click("button:has-text('dark')")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("#search")).to_have_value("nobody")
    page.goto("/ui/settings")
    page.fill("#present_password", "not this one")
    page.fill("#password", "one sentence or so")
    page.fill("#again", "another sentence")
    page.click("button:has-text('Change password')")
    expect(page.get_by_role("alert")).to_contain_text("differ")
    page.click("button:has-text('light')")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.locator("h1")).to_have_text("Settings")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/ui/tenants/a/b/c", 404, "there is no page"),
        ("/ui/tenants?page=x", 400, "the address can not be read: page"),
        ("/ui/audit?before=0", 400, "before"),
        (f"/ui/tenants?search={'x' * 201}", 400, "search"),
        ("/ui/settings/backup", 200, "Administrators"),
        ("/ui/keys?after=key_none", 404, "there is no key"),
        ("/ui/tenants/default/keys?before=key_none", 404, "there is no key"),
        (f"/ui/keys?after={'x' * 201}", 400, "after"),
        (f"/ui/tenants?page={BEYOND_INTEGERS}", 200, "default"),
        ("/ui/slow?lane=none&why=none", 200, "Slow requests"),
        (f"/ui/?next={'x' * 3000}", 200, "Overview"),
    ],
)
def test_an_address_that_leads_nowhere_is_answered_with_a_page(visit: BrowserContext, path: str, status: int, words: str) -> None:
    answer = visit.request.get(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert words in answer.text().partition("<main")[2]


def test_the_bare_address_leads_a_browser_to_the_pages_and_tells_a_program_that_there_is_nothing(visit: BrowserContext) -> None:
    assert visit.request.get("/", headers={"accept": "text/html"}).url.endswith("/ui/")
    answer = visit.request.get("/", headers={"accept": "application/json"})
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_tenant_and_a_tier_may_be_called_as_forms_might_be(office: Office, visit: BrowserContext) -> None:
    for name in ("new", "edit"):
        office.api("POST", "/tiers", name=name)
        office.api("POST", "/tenants", slug=name, tier=name)
        assert f"Tier {name}" in visit.request.get(f"/ui/tiers/{name}").text()
        assert "Effective SLA" in visit.request.get(f"/ui/tenants/{name}").text()


@pytest.mark.parametrize(("change", "words"), [({"status": "deleted"}, "active, suspended"), ({"status": ""}, "active, suspended")])
def test_a_form_made_by_hand_is_refused_by_the_field(office: Office, visit: BrowserContext, change: dict[str, str], words: str) -> None:
    slug = f"hand-made-{len(change['status'])}"
    office.tenant_with_key(slug)
    page = visit.new_page()
    page.goto(f"/ui/tenants/{slug}/edit")
    csrf = page.locator("[name=csrf_token]").first.get_attribute("value") or ""
    form = {"csrf_token": csrf, "name": "x", "tier": "standard", **change}
    answer = visit.request.post(f"/ui/tenants/{slug}/edit", form=form)
    assert answer.status == 400 and words in answer.text()


def test_names_are_text_wherever_they_are_shown(office: Office, visit: BrowserContext) -> None:
    name = "\"><script>document.title = 'taken'</script>'&"
    office.tenant_with_key("unlucky")
    office.api("PATCH", "/tenants/unlucky", name=name)
    office.api("POST", "/tenants/unlucky/keys", name=name)
    page = visit.new_page()
    for path in ("/ui/tenants?search=unlucky", "/ui/tenants/unlucky", "/ui/tenants/unlucky/keys", "/ui/tenants/unlucky/audit"):
        page.goto(path)
        assert name in page.inner_text("main"), path
        assert page.title() != "taken"


def test_a_key_whose_grantor_is_gone_says_that_it_can_do_less(office: Office, visit: BrowserContext) -> None:
    office.tenant_with_key("granted")
    made = office.api("POST", "/admins", name="leaver", role="operator", password=PASSWORD)
    leaver = office.browser.new_context(base_url=office.appliance.base_url)
    page = leaver.new_page()
    page.goto("/ui/tenants/granted/keys")
    log_in(page, "leaver", PASSWORD)
    page.fill("#name", "deploys")
    page.check("[value='admin:write']")
    page.click("button:has-text('Create key')")
    expect(page.locator("#raw-key")).to_be_visible()
    leaver.close()
    page = visit.new_page()
    page.goto("/ui/keys?search=deploys")
    expect(page.locator("tbody tr")).not_to_contain_text("grant ended")
    office.api("DELETE", f"/admins/{made['id']}")
    page.reload()
    expect(page.locator("tbody tr")).to_contain_text("grant ended")
    page.click("tbody >> text=deploys")
    expect(page.locator(".note.warn")).to_contain_text("admin:write does nothing any more")


def test_a_token_is_not_offered_more_than_its_maker_may(office: Office, visit: BrowserContext) -> None:
    made = office.api("POST", "/admins", name="modest", role="viewer")
    page = visit.new_page()
    page.goto(f"/ui/settings/admins/{made['id']}")
    assert page.locator("#token-role option").all_text_contents() == ["viewer"]
