"""The built-in dashboards' pages: how they lead to Grafana, and what a wrong address is told. What they draw: tests/observability."""

from urllib.parse import parse_qs, urlsplit

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
