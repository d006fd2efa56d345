"""Every page, light and dark, wide and narrow: nothing that axe-core finds serious, nothing that the browser complains about."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.ui.conftest import Office
from tests.ui.pages import PAGES

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
BEYOND = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 90))"
"""What sticks out."""
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def furnished(office: Office) -> Office:
    """With something to see on every page."""
    client = office.client(office.tenant_with_key("globex", "interactive", rpm=600))
    answer = client.chat.completions.create(model="smollm2-135m-instruct", messages=[{"role": "user", "content": "Hello"}], max_tokens=8)
    assert answer.choices
    return office


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, furnished: Office) -> Iterator[tuple[Page, list[str]]]:
    """A tab in a colour scheme, and what the browser complains about in it."""
    context = furnished.browser.new_context(
        storage_state=furnished.context.storage_state(),
        color_scheme=request.param,
        viewport={"width": 1280, "height": 900},
    )
    tab = context.new_page()
    complaints: list[str] = []
    tab.on("console", lambda message: complaints.append(f"{tab.url}: {message.text}") if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(f"{tab.url}: {error}"))
    yield tab, complaints
    context.close()


def test_pages_are_usable_for_everybody_and_the_browser_has_nothing_to_say(page: tuple[Page, list[str]], furnished: Office) -> None:
    tab, complaints = page
    found: list[str] = []
    source = AXE.read_text()
    for path in PAGES:
        answer = tab.goto(furnished.url(path.format(slug="globex")))
        assert answer is not None and answer.status == 200, path
        tab.evaluate(source)  # through the debugger: no script of a page's own could be added under our policy
        result = tab.evaluate("tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", RULES)
        found += [
            f"{path}: {violation['id']}: {node['html'][:160]}"
            for violation in result["violations"]
            if violation["impact"] in SERIOUS
            for node in violation["nodes"]
        ]
    assert found == []
    assert complaints == []


def test_no_page_is_wider_than_a_phone(furnished: Office) -> None:
    context = furnished.browser.new_context(storage_state=furnished.context.storage_state(), viewport={"width": 390, "height": 844})
    tab = context.new_page()
    too_wide = []
    for path in PAGES:
        tab.goto(furnished.url(path.format(slug="globex")))
        if tab.evaluate("document.documentElement.scrollWidth") > 390:
            too_wide.append((path, tab.evaluate(BEYOND)))
    context.close()
    assert too_wide == []


def test_an_unknown_page_and_a_missing_tenant_say_so_as_pages(furnished: Office) -> None:
    tab = furnished.context.new_page()
    for path, words in (("/ui/nothing", "choose one from the menu"), ("/ui/tenants/nobody", "there is no tenant 'nobody'")):
        answer = tab.goto(furnished.url(path))
        assert answer is not None and answer.status == 404
        assert words in tab.inner_text("main")
