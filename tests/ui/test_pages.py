"""Every page, light and dark, wide and narrow: nothing that axe-core finds serious, nothing that the browser complains about."""

from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Page, ViewportSize

from tests.ui.axe import COLOURS, barriers
from tests.ui.conftest import Office
from tests.ui.pages import PAGES

DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
BEYOND = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 90))"
"""What sticks out."""
NEXT_STEP_MISSING = "[...document.querySelectorAll('div.empty')].filter(e => e.querySelectorAll('p').length < 2).map(e => e.innerText)"
"""Empty places that do not say what fills them. Panels of dashboards have a sentence of their own, when they are drawn."""
DASHBOARD = "/ui/dashboards/"
"""Beginning of the pages that tests/observability/test_drawn.py looks at, with something drawn on them."""


@dataclass(slots=True)
class Survey:
    """What was found on all pages, each opened once."""

    barriers: list[str] = field(default_factory=list[str])
    too_wide: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])
    hollow: list[str] = field(default_factory=list[str])


@pytest.fixture(scope="module")
def survey(office: Office) -> Survey:
    """Opens every page, with something to see on each."""
    client = office.client(office.tenant_with_key("globex", "interactive", rpm=600))
    answer = client.chat.completions.create(model="smollm2-135m-instruct", messages=[{"role": "user", "content": "Hello"}], max_tokens=8)
    paths = [*(path.format(slug="globex") for path in PAGES), f"/ui/requests/{answer.id.removeprefix('chatcmpl-')}"]
    found = Survey()
    # else a change of colours is half done when axe looks
    context = office.browser.new_context(storage_state=office.context.storage_state(), reduced_motion="reduce")
    tab = context.new_page()
    tab.on(
        "console", lambda message: found.complaints.append(f"{tab.url}: {message.text}") if message.type in ("error", "warning") else None
    )
    tab.on("pageerror", lambda error: found.complaints.append(f"{tab.url}: {error}"))
    for path in paths:
        _look(tab, office.url(path), found, with_axe=not path.startswith(DASHBOARD))
    context.close()
    return found


def _look(tab: Page, url: str, found: Survey, *, with_axe: bool) -> None:
    tab.set_viewport_size(PHONE)
    tab.emulate_media(color_scheme="light")
    answer = tab.goto(url)
    assert answer is not None and answer.status == 200, url
    if tab.evaluate("document.documentElement.scrollWidth") > PHONE["width"]:
        found.too_wide.append(f"{url}: {tab.evaluate(BEYOND)}")
    found.hollow += [f"{url}: {words}" for words in tab.evaluate(NEXT_STEP_MISSING)]
    if with_axe:
        tab.set_viewport_size(DESKTOP)
        found.barriers += [f"{url}: {barrier}" for barrier in barriers(tab)]
        tab.emulate_media(color_scheme="dark")
        found.barriers += [f"{url}, dark: {barrier}" for barrier in barriers(tab, COLOURS)]


def test_pages_are_usable_for_everybody_light_and_dark(survey: Survey) -> None:
    assert survey.barriers == []


def test_the_browser_has_nothing_to_say_about_any_page(survey: Survey) -> None:
    assert survey.complaints == []


def test_no_page_is_wider_than_a_phone(survey: Survey) -> None:
    assert survey.too_wide == []


def test_an_empty_place_says_what_fills_it(survey: Survey) -> None:
    assert survey.hollow == []


def test_an_unknown_page_and_a_missing_tenant_say_so_as_pages(office: Office) -> None:
    tab = office.context.new_page()
    for path, words in (("/ui/nothing", "choose one from the menu"), ("/ui/tenants/nobody", "there is no tenant 'nobody'")):
        answer = tab.goto(office.url(path))
        assert answer is not None and answer.status == 404
        assert words in tab.inner_text("main")
