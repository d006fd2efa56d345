"""What an operator is told to use, there is: in the runbook, in alerts, on dashboards and in the pages about them."""

import pytest

from dashboards.pages import PAGES
from tests.observability.names import misnamed, unknown_words
from tests.observability.rules import ALERTS, ROOT, Rule, rules_of

DOCUMENTS = ("runbook.md", "observability.md", "metrics.md", "explain.md", "limits.md", "operations.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_flags_routes_series_files_and_commands_of_a_document_exist(document: str) -> None:
    assert misnamed((ROOT / "docs" / document).read_text()) == []


def test_the_runbook_names_fields_settings_and_log_lines_that_exist() -> None:
    assert unknown_words((ROOT / "docs" / "runbook.md").read_text()) == []


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_an_alert_names_what_exists(rule: Rule) -> None:
    notes = " ".join(rule.body["annotations"].values())
    assert misnamed(notes) + unknown_words(notes) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_a_dashboard_names_what_exists(page) -> None:
    notes = " ".join((page.description, *(panel.description for panel in page.panels)))
    assert misnamed(notes) + unknown_words(notes) == []


@pytest.mark.parametrize(
    "text",
    [
        "`--kv-cap-ratio`", "`FAIRLANE_KV_CAP`", "`fairlane_kv_page`", "see FairlaneKVFull", "`make dashboard`", "`GET /api/v1/tails`",
        "`POST /api/v1/tail`", "/debug", "`docker/k8`", "`fairlane grafana pull`",
    ],
)  # fmt: skip
def test_a_name_that_nothing_has_is_found(text: str) -> None:
    assert len(misnamed(text)) == (text != "/debug")


def test_a_field_that_a_tier_does_not_have_is_found() -> None:
    assert unknown_words("`kv_cap` of a tier, not `kv_cap_ratio`; max_context, not max_context_s") == ["kv_cap_ratio", "max_context_s"]
