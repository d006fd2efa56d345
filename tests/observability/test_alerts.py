"""Alerts and recording rules: complete, documented, reading what exists, and tested by promtool."""

import re
import subprocess
from dataclasses import dataclass

import pytest
import yaml

from dashboards.pages import PAGES
from tests.appliance import require_service
from tests.observability.promql import BUILT_IN, FAMILY_OF, labels_of, parsed, selectors
from tests.observability.rules import ALERTS, RECORDS, ROOT, Rule, rules_of

RULES = [*rules_of(RECORDS), *rules_of(ALERTS)]
RECORDED = {rule.name for rule in rules_of(RECORDS)}
READ_BARE = {"FairlaneEngineRestarted": "more than the first start", "FairlaneSlowReaders": "whether the tenant is still there"}
"""Alerts that read a counter's value itself, and what for."""
TESTS = sorted((ROOT / "alerts" / "tests").glob("*.yaml"))


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_an_alert_says_what_is_wrong_what_to_do_and_where_to_look(rule: Rule) -> None:
    assert rule.body["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule.body["annotations"]
    assert set(notes) == {"summary", "description", "runbook", "dashboard"}
    page, _, heading = notes["runbook"].partition("#")
    headings = {anchor(line.strip("# ")) for line in (ROOT / page).read_text().splitlines() if line.startswith("#")}
    assert heading in headings and heading == rule.name.lower()
    assert re.match(r"/d/([\w-]+)", notes["dashboard"]).group(1) in {page.uid for page in PAGES}  # type: ignore[union-attr]
    assert len(notes["description"]) > 40


def test_the_runbook_has_no_heading_of_an_alert_that_is_gone() -> None:
    headings = re.findall(r"^### (Fairlane\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(rule.name for rule in rules_of(ALERTS))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_reads_series_that_exist_by_labels_that_they_have(rule: Rule) -> None:
    found = list(selectors(parsed(rule.expr)))
    assert found
    for selector, is_range in found:
        if selector.name in RECORDED | BUILT_IN:
            continue
        assert selector.name in FAMILY_OF, f"{rule.name} reads {selector.name}, which no family declares"
        assert {matcher.name for matcher in selector.matchers.matchers} <= labels_of(selector.name)
        is_counter = FAMILY_OF[selector.name].kind != "gauge"
        assert is_range or not is_counter or rule.name in READ_BARE, f"{rule.name} reads the counter {selector.name} bare"


def test_promtool_accepts_the_rules_and_its_tests_of_the_alerts_pass() -> None:
    require_service("promtool", program="promtool")
    subprocess.run(["promtool", "check", "rules", str(RECORDS), str(ALERTS)], check=True, capture_output=True)
    ran = subprocess.run(["promtool", "test", "rules", *map(str, TESTS)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@dataclass(frozen=True, slots=True)
class Moment:
    """What a test of promtool expects of an alert at a time (s): `where` are its matchers, of one group of series."""

    alert: str
    group: str
    where: str
    step_s: int
    at_s: int
    fires: bool


@pytest.fixture(scope="module")
def moments() -> list[Moment]:
    """In all tests."""
    found: list[Moment] = []
    for file in (yaml.safe_load(path.read_text()) for path in TESTS):
        for test in file["tests"]:
            for each in test["promql_expr_test"]:
                alert = re.search(r'ALERTS{alertname="(\w+)", (.*?)alertstate="firing"}', each["expr"])
                if alert is not None:
                    fires = any(sample["value"] > 0 for sample in each["exp_samples"])
                    step_s, at_s = seconds(file["evaluation_interval"]), seconds(each["eval_time"])
                    found.append(Moment(alert[1], test["name"], alert[2], step_s, at_s, fires))
    return found


def seconds(text: str) -> int:
    """As promtool writes durations."""
    return sum(int(number) * {"d": 86_400, "h": 3_600, "m": 60, "s": 1}[unit] for number, unit in re.findall(r"(\d+)([dhms])", text))


@pytest.mark.parametrize("rule", rules_of(ALERTS), ids=lambda rule: rule.name)
def test_an_alert_is_tested_as_it_fires_the_minute_before_when_it_ends_with_few_requests_and_for_a_tenant_that_is_removed(
    rule: Rule, moments: list[Moment]
) -> None:
    found = [each for each in moments if each.alert == rule.name]
    quiet = [each for each in found if not each.fires]
    begins = [each for each in found if each.fires and any((q.group, q.at_s) == (each.group, each.at_s - each.step_s) for q in quiet)]
    assert begins, "no test in which it fires and did not the minute before"
    assert any((q.group, q.where) == (each.group, each.where) and q.at_s > each.at_s for each in begins for q in quiet), "it never ends"
    if re.search(r"increase\(.*\)\) >= \d+", rule.expr):  # it wants so many, to say something
        assert any('="tiny"' in each.where for each in quiet), "no test with few requests"
    if "tenant" in rule.expr:
        gone = [each for each in found if 'tenant="gone"' in each.where]
        assert any(one.fires and not other.fires and one.at_s < other.at_s for one in gone for other in gone), "no test of a removed tenant"


def test_alertmanager_accepts_the_example_and_routes_by_tenant_and_severity() -> None:
    require_service("amtool", program="amtool")
    path = str(ROOT / "docker" / "alertmanager.yaml")
    subprocess.run(["amtool", "check-config", path], check=True, capture_output=True)

    def receivers(**labels: str) -> str:
        command = ["amtool", "config", "routes", "test", f"--config.file={path}", *(f"{name}={value}" for name, value in labels.items())]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert receivers(alertname="FairlaneSLOBurnFast", severity="critical", tenant="acme") == "pager,acme"
    assert receivers(alertname="FairlaneQueueOld", severity="warning") == "operators"
    assert receivers(alertname="FairlaneScrapeLarge", severity="info") == "daily"
