"""What operators do, from the first login on, in a real browser on a real appliance."""

import re
import threading
from queue import Queue

import httpx
import pytest
from openai import APIError, OpenAI, RateLimitError
from playwright.sync_api import Page, expect

from tests.ui.conftest import GRAFANA, OWNER, PAGE_TIMEOUT_MS, PASSWORD, Office, log_in

MODEL = "smollm2-135m-instruct"


def ask(client: OpenAI, max_tokens: int = 4, text: str = "Say hello.") -> str:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=max_tokens)
    return answer.choices[0].message.content or ""


def test_a_deep_link_leads_to_the_login_form_and_back_and_a_wrong_password_says_so(office: Office) -> None:
    context = office.browser.new_context()
    page = context.new_page()
    assert page.goto(office.url("/ui/tenants")).status == 200  # pyright: ignore[reportOptionalMemberAccess]
    log_in(page, OWNER, "wrong password!!")
    expect(page.get_by_role("alert")).to_contain_text("wrong name or password")
    log_in(page, OWNER, PASSWORD)
    expect(page.locator("h1")).to_have_text("Tenants")
    page.click("text=Log out")
    expect(page.locator("#password")).to_be_visible()
    page.goto(office.url("/ui/audit"))
    expect(page.locator("#password")).to_be_visible()
    context.close()


def test_from_a_tier_to_a_tenant_to_a_key_to_an_answer_in_the_usage(office: Office) -> None:
    page = office.open("/ui/new-tier")
    page.fill("#tier_name", "gold")
    page.fill("[name='ttft_ms.fast']", "30000")
    page.fill("[name=rpm]", "1,000")
    page.click("text=Create tier")
    expect(page.locator("h1")).to_contain_text("Tier gold")
    page.goto(office.url("/ui/new-tenant?tier=gold"))
    page.fill("#slug", "acme")
    page.fill("#name", "ACME Corporation")
    page.click("button:has-text('Create tenant')")
    expect(page.get_by_role("status")).to_contain_text("Make a key")
    page.fill("#name", "production")
    page.click("button:has-text('Create key')")
    key = page.locator("#raw-key").inner_text()
    page.click("text=Done")
    expect(page.locator("main")).not_to_contain_text(key)
    assert ask(office.client(key))
    page.goto(office.url("/ui/tenants/acme"))
    requests = page.get_by_role("row", name="Requests a minute 1")
    expect(requests).to_contain_text("1,000")
    expect(requests).to_contain_text("tier")
    assert page.get_by_text("Grafana", exact=True).get_attribute("href") == f"{GRAFANA}/d/fairlane-tenant?var-tenant=acme"
    usage_shows(page, office, "acme", "completed")


def usage_shows(page: Page, office: Office, slug: str, outcome: str) -> None:
    for _ in range(30):
        page.goto(office.url(f"/ui/tenants/{slug}/usage"))
        if page.locator("td", has_text=outcome).count():
            return
        page.wait_for_timeout(200)
    raise AssertionError(page.locator("main").inner_text())


def test_a_running_request_is_seen_and_cancelled_and_its_client_is_told(office: Office) -> None:
    client = office.client(office.tenant_with_key("runner"))
    ends: Queue[BaseException | None] = Queue()

    def stream() -> None:
        try:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 1900, "stream": True}
            for _ in client.chat.completions.create(**body, extra_body={"ignore_eos": True}):  # pyright: ignore[reportCallIssue, reportArgumentType]
                pass
            ends.put(None)
        except APIError as error:
            ends.put(error)

    thread = threading.Thread(target=stream)
    thread.start()
    page, watch = office.open("/ui/tenants/runner"), office.open("/ui/requests?tenant=runner")
    watch.locator("tbody a[href*='/ui/requests/']").click()
    expect(watch.locator(".head .tag")).to_have_text("running")
    page.get_by_role("button", name="Cancel request").click()
    page.wait_for_url("**/ui/requests/req_*")
    expect(watch.locator(".head .tag")).to_have_text("cancelled")  # by itself, and then it asks no more
    expect(watch.get_by_role("button", name="Cancel this request")).to_have_count(0)
    assert watch.locator("[hx-get]").count() == 0
    error = ends.get(timeout=30)
    thread.join()
    assert error is not None and "an operator of this server ended the request" in str(error)
    page.goto(office.url("/ui/tenants/runner/audit"))
    expect(page.locator("tbody")).to_contain_text("request.cancel")


def test_a_changed_limit_holds_for_the_next_request(office: Office) -> None:
    client = office.client(office.tenant_with_key("limited"))
    assert ask(client)
    page = office.open("/ui/tenants/limited/edit")
    page.fill("[name=rpm]", "1")
    expect(page.locator("#own-rpm")).to_be_checked()  # typing a value of one's own ticks its box
    page.click("button:has-text('Save')")
    expect(page.get_by_role("row", name="Requests a minute 1")).to_contain_text("own")
    with pytest.raises(RateLimitError, match="limit of 1 request a minute"):
        _ask_twice(client)
    page.goto(office.url("/ui/"))
    expect(page.locator("#live-refusals")).to_contain_text("rate requests")


def _ask_twice(client: OpenAI) -> None:
    ask(client)
    ask(client)


def test_a_key_is_replaced_with_grace_and_the_old_one_disabled_by_its_name(office: Office) -> None:
    old = office.tenant_with_key("rotating")
    page = office.open("/ui/tenants/rotating/keys")
    page.click("text=first")
    page.select_option("#grace_s", "3600")
    page.click("button:has-text('Replace key')")
    new = page.locator("#raw-key").inner_text()
    assert new != old and ask(office.client(old)) and ask(office.client(new))
    page.click("text=Done")
    page.locator("tr", has_text="replaced").get_by_role("link").click()
    page.fill("#confirm", "another name")
    page.click("button:has-text('Disable key')")
    expect(page.get_by_role("alert")).to_contain_text("type first to confirm")
    page.fill("#confirm", "first")
    page.click("button:has-text('Disable key')")
    expect(page.get_by_role("status")).to_contain_text("refused from now on")
    with pytest.raises(APIError, match="revoked"):
        ask(office.client(old))


def test_a_slow_request_is_found_and_says_why(office: Office) -> None:
    key = office.tenant_with_key("hasty", ttft_ms=0.001)
    assert ask(office.client(key), max_tokens=8)
    page = office.open("/ui/slow?tenant=hasty")
    page.locator("tbody a[href*='/ui/requests/']").first.click(timeout=PAGE_TIMEOUT_MS)
    expect(page.locator(".verdict")).to_contain_text("Took")
    expect(page.locator("svg.life")).to_be_visible()


def test_a_viewer_sees_and_changes_nothing(office: Office) -> None:
    page = office.open("/ui/settings")
    page.fill("#name", "vera")
    page.select_option("#role", "viewer")
    page.fill("#new-password", "only looking around")
    page.click("text=Add administrator")
    expect(page.get_by_role("status")).to_contain_text("is made")
    context = office.browser.new_context()
    page = context.new_page()
    page.goto(office.url("/ui/tenants"))
    log_in(page, "vera", "only looking around")
    expect(page.locator("h1")).to_have_text("Tenants")
    expect(page.get_by_text("New tenant")).to_have_count(0)
    page.goto(office.url("/ui/tiers/standard"))
    expect(page.locator("[name=rpm]")).to_be_disabled()
    expect(page.get_by_text("See what it would do")).to_have_count(0)
    csrf = page.locator("[name=csrf_token]").first.get_attribute("value") or ""
    answer = context.request.post(office.url("/ui/tiers/standard"), form={"csrf_token": csrf, "rpm": "1"})
    assert (answer.status, "lacks the scope" in answer.text()) == (403, True)
    assert context.request.get(office.url("/ui/new-tenant")).status == 403
    context.close()


def test_a_tiers_change_says_what_it_would_do_before_it_is_applied(office: Office) -> None:
    office.api("POST", "/tiers", name="trial", rpm=100)
    client = office.client(office.tenant_with_key("tried", "trial"))
    office.tenant_with_key("own", "trial", rpm=50)
    for _ in range(3):
        ask(client, 1)
    page = office.open("/ui/tiers/trial")
    page.fill("[name=rpm]", "1")
    page.click("text=See what it would do")
    impact = page.locator("#impact")
    expect(impact).to_contain_text("1 tenant changes; 1 more under this tier do not")
    expect(impact).to_contain_text(re.compile(r"2 would have been refused: 2 rate requests\. By the limits as they are: 0"))
    page.check("[name=shadow_mode]")
    page.fill("[name=committed_tpm]", "999,999,999")
    page.click("text=Look again")
    expect(impact).to_contain_text("2 would have been counted, not refused (shadow mode)")
    expect(impact.locator(".note.warn")).to_contain_text("tokens a minute")
    page.uncheck("[name=shadow_mode]")
    page.fill("[name=committed_tpm]", "")
    page.click("text=Look again")
    expect(impact.locator(".note.warn")).to_have_count(0)
    assert ask(client, 1), "nothing is applied yet"
    page.click("button:has-text('Apply')")
    expect(page.get_by_role("status")).to_contain_text("Saved")
    with pytest.raises(RateLimitError):
        ask(client, 1)


def test_the_prompt_box_streams_and_shows_where_the_time_went(office: Office) -> None:
    office.tenant_with_key("curious")
    page = office.open("/ui/tenants/curious/try")
    page.fill("#prompt", "What is the capital of France?")
    page.fill("[name=max_tokens]", "12")
    page.click("button:has-text('Ask')")
    expect(page.locator("#trial-times")).to_contain_text(re.compile(r"first token after \d+ ms, all after \d+ ms"), timeout=PAGE_TIMEOUT_MS)
    expect(page.locator("#trial-answer")).to_contain_text("Paris")
    expect(page.locator("#trial-explained svg.life")).to_be_visible()
    office.api("PATCH", "/tenants/curious", status="suspended")
    page.click("button:has-text('Ask')")
    expect(page.get_by_role("alert")).to_contain_text("suspended")


def test_forms_work_without_scripts(office: Office) -> None:
    context = office.browser.new_context(java_script_enabled=False, storage_state=office.context.storage_state())
    page = context.new_page()
    page.goto(office.url("/ui/new-tenant"))
    page.fill("#slug", "plain")
    page.click("button:has-text('Create tenant')")
    expect(page.get_by_role("status")).to_contain_text("Make a key")  # the form that is left has a #name, too
    page.fill("#name", "k")
    page.click("button:has-text('Create key')")
    expect(page.locator("#raw-key")).to_contain_text("fl-")
    page.goto(office.url("/ui/tenants?search=plain"))
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(office.url("/ui/tenants/plain/try"))
    page.fill("#prompt", "What is the capital of France?")
    page.click("button:has-text('Ask')")
    expect(page.locator("#trial-answer")).to_contain_text("Paris")
    page.goto(office.url("/ui/tenants/plain/delete"))
    page.fill("#confirm", "plain")
    page.click("button:has-text('Remove tenant')")
    expect(page.locator("tbody")).not_to_contain_text("plain")
    page.click("button:has-text('dark')")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    context.close()


def test_a_search_narrows_the_list_while_one_types(office: Office) -> None:
    for slug in ("needle-1", "needle-2", "haystack"):
        office.api("POST", "/tenants", slug=slug)
    page = office.open("/ui/tenants")
    page.locator("#search").press_sequentially("needle")
    page.wait_for_url("**search=needle**")  # the list of a shorter word may have as many
    expect(page.locator("#list tbody tr")).to_have_count(2)
    page.get_by_role("link", name="name", exact=True).click()
    expect(page.locator("th[aria-sort]")).to_contain_text("name")
    assert "search=needle" in page.url and "sort=name" in page.url


def test_a_form_of_another_session_or_site_changes_nothing(office: Office) -> None:
    cookies = {cookie["name"]: cookie["value"] for cookie in office.context.cookies()}  # pyright: ignore[reportTypedDictNotRequiredAccess]
    page = office.open("/ui/new-tenant")
    csrf = page.locator("[name=csrf_token]").first.get_attribute("value") or ""
    form = {"csrf_token": csrf, "slug": "stolen", "tier": "standard"}

    def send(headers: dict[str, str], **changed: str) -> httpx.Response:
        return httpx.post(office.url("/ui/tenants"), data={**form, **changed}, headers=headers, cookies=cookies)

    for answer in (
        send({}, csrf_token="0" * 64),
        send({"Origin": "https://evil.example"}),
        send({"Sec-Fetch-Site": "cross-site"}),
    ):
        assert answer.status_code == 403 and "<h1>Not allowed</h1>" in answer.text
    assert send({}).status_code == 303


def test_an_owner_makes_a_token_and_a_backup(office: Office) -> None:
    page = office.open("/ui/settings")
    page.click("text=Back up now")
    expect(page.get_by_role("status")).to_contain_text("backup is written")
    assert len(list((office.appliance.data_dir / "backups").glob("*.backup"))) == 1
    page.select_option("#level", "debug")
    page.click("button:has-text('Set')")
    expect(page.get_by_role("status")).to_contain_text("holds from the next line on")
    expect(page.locator("#level")).to_have_value("debug")
    page.click(f"tbody >> text={OWNER}")
    page.fill("#token-name", "deploys")
    page.click("text=Create token")
    token = page.locator("#raw-token").inner_text()
    answer = httpx.get(office.url("/api/v1/me"), headers={"Authorization": f"Bearer {token}"})
    assert answer.json()["actor"] == f"admin:{OWNER}"
    page.get_by_role("button", name="Revoke token deploys").click()
    expect(page.get_by_role("status")).to_contain_text("refused from now on")
    assert httpx.get(office.url("/api/v1/me"), headers={"Authorization": f"Bearer {token}"}).status_code == 401
