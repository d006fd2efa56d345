"""The built-in dashboards' pages: how they lead to Grafana, and what a wrong address is told. What they draw: tests/observability."""

from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import expect

from tests.ui.conftest import GRAFANA, Office


def test_a_dashboard_leads_to_its_twin_in_grafana_with_the_same_choices_made(office: Office) -> None:
    office.tenant_with_key("vandelay", kv_reserve=0.25, kv_cap=0.5)
    page = office.open("/ui/dashboards/fairlane-tenant?tenant=vandelay&lane=fast&lane=slow")
    link = urlsplit(page.get_by_role("link", name="Open in Grafana").get_attribute("href") or "")
    assert f"{link.scheme}://{link.netloc}{link.path}" == f"{GRAFANA}/d/fairlane-tenant"
    assert parse_qs(link.query) == {"var-tenant": ["vandelay"], "var-lane": ["fast", "slow"], "var-model": ["$__all"]}
    page.goto(office.url("/ui/tenants/vandelay"))
    assert "KV pages (256 reserved)" in page.inner_text("#live-limits") and "of 512" in page.inner_text("#live-limits")
    page.get_by_role("main").get_by_role("link", name="Dashboard", exact=True).click()
    assert page.locator("#v-tenant").input_value() == "vandelay"
    page.close()


def test_a_dashboard_or_a_time_that_there_is_not_is_said_to_be_so(office: Office) -> None:
    page = office.context.new_page()
    for path, status, words in (
        ("/ui/dashboards/nothing", 404, "there are fairlane-overview"),
        ("/ui/dashboards/fairlane-overview?range=1y", 400, "choose one of 5m"),
        ("/ui/dashboards/fairlane-overview?" + "&".join(["lane=fast"] * 101), 400, "choose at most 100"),
    ):
        answer = page.goto(office.url(path))
        assert answer is not None and answer.status == status
        assert words in page.inner_text("main")
    page.close()


def test_a_panel_says_what_is_missing_its_description_has_code_and_five_lines_fit_into_a_legend(office: Office) -> None:
    page = office.open("/ui/dashboards/fairlane-tenant")
    panel = page.get_by_role("figure", name="Cost of 1,000 tokens")
    expect(panel.locator(".picture")).to_contain_text("No price is set")
    panel.locator(".about summary").click()
    expect(panel.locator(".about code")).to_have_text("--device-hour-price")
    page.goto(office.url("/ui/dashboards/fairlane-overview"))
    page.locator(".values tbody tr").first.wait_for()
    rows = "all => all.map(each => [each.querySelectorAll('tbody tr').length, each.scrollHeight, each.clientHeight])"
    cut = [found for found in page.locator(".values:not(.tall)").evaluate_all(rows) if found[0] <= 5 and found[1] > found[2]]
    assert cut == []
    page.close()
