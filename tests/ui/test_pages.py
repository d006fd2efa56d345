"""Every page, light and dark, wide and narrow: nothing that axe-core finds serious, nothing that the browser complains about."""

from typing import Literal

import pytest
from playwright.sync_api import ViewportSize

from tests.ui.axe import COLOURS, EVERY_RULE, barriers
from tests.ui.conftest import Office
from tests.ui.pages import PAGES

BEYOND = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 90))"
"""What sticks out."""


@pytest.fixture(scope="module")
def paths(office: Office) -> list[str]:
    """Addresses of all pages, with something to see on each."""
    client = office.client(office.tenant_with_key("globex", "interactive", rpm=600))
    answer = client.chat.completions.create(model="smollm2-135m-instruct", messages=[{"role": "user", "content": "Hello"}], max_tokens=8)
    return [*(path.format(slug="globex") for path in PAGES), f"/ui/requests/{answer.id.removeprefix('chatcmpl-')}"]


@pytest.mark.parametrize(("theme", "rules"), [("light", EVERY_RULE), ("dark", COLOURS)])
def test_pages_are_usable_for_everybody_and_the_browser_has_nothing_to_say(
    office: Office, paths: list[str], theme: Literal["light", "dark"], rules: tuple[str, ...]
) -> None:
    size: ViewportSize = {"width": 1280, "height": 900}
    context = office.browser.new_context(storage_state=office.context.storage_state(), color_scheme=theme, viewport=size)
    tab, complaints, found = context.new_page(), list[str](), list[str]()
    tab.on("console", lambda message: complaints.append(f"{tab.url}: {message.text}") if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(f"{tab.url}: {error}"))
    for path in paths:
        answer = tab.goto(office.url(path))
        assert answer is not None and answer.status == 200, path
        found += [f"{path}: {barrier}" for barrier in barriers(tab, rules)]
    context.close()
    assert (found, complaints) == ([], [])


def test_no_page_is_wider_than_a_phone(office: Office, paths: list[str]) -> None:
    context = office.browser.new_context(storage_state=office.context.storage_state(), viewport={"width": 390, "height": 844})
    tab = context.new_page()
    too_wide = []
    for path in paths:
        tab.goto(office.url(path))
        if tab.evaluate("document.documentElement.scrollWidth") > 390:
            too_wide.append((path, tab.evaluate(BEYOND)))
    context.close()
    assert too_wide == []


def test_an_unknown_page_and_a_missing_tenant_say_so_as_pages(office: Office) -> None:
    tab = office.context.new_page()
    for path, words in (("/ui/nothing", "choose one from the menu"), ("/ui/tenants/nobody", "there is no tenant 'nobody'")):
        answer = tab.goto(office.url(path))
        assert answer is not None and answer.status == 404
        assert words in tab.inner_text("main")
