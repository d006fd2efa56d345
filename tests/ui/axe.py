"""What axe-core finds serious on a page."""

from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Page

SCRIPT = Path(__file__).parent / "vendor" / "axe.min.js"
EVERY_RULE = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
COLOURS = ("color-contrast",)
SERIOUS = ("serious", "critical")


def barriers(page: Page, rules: Sequence[str] = EVERY_RULE) -> list[str]:
    """Rule and element of each."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT.read_text())  # through the debugger: no script of a page's own could be added under our policy
    result = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", list(rules))
    return [
        f"{violation['id']}: {node['html'][:160]}"
        for violation in result["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]
