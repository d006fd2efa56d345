"""The README says what is so."""

import re
from pathlib import Path

import pytest

from appliance.cli.settings_table import default_text
from appliance.settings import OPTIONS

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md", "benchmarks/README.md")


def _configuration_rows() -> list[list[str]]:
    section = README.partition("## Configuration")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]


def test_the_configuration_table_has_the_names_and_defaults_of_the_settings():
    options = {option.env: option for option in OPTIONS}
    rows = _configuration_rows()
    assert len(rows) > 10
    for variable, flag, default, _meaning in rows:
        option = options[variable.strip("`")]
        assert (flag.strip("`") or None, default) == (option.flag, default_text(option))


def test_every_variable_named_in_a_document_is_a_setting():
    known = {option.env for option in OPTIONS} | {"FAIRLANE_CONFIG", "FAIRLANE_X_FILE"}
    for name in DOCUMENTS:
        named = set(re.findall(r"\bFAIRLANE_[A-Z_]+\b", (ROOT / name).read_text()))
        assert {each for each in named - known if not each.startswith("FAIRLANE_TEST_")} == set(), name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_to_a_file_leads_to_one(name: str):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / name).parent.joinpath(link).exists()] == []


def test_every_mechanism_has_the_file_and_the_test_that_are_named_for_it():
    section = (ROOT / "ARCHITECTURE.md").read_text().partition("### By name\n")[2].partition("\nA sequence")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if "::" in line]
    assert len(rows) == 8
    for _name, _what, files, test in rows:
        assert all((ROOT / file).is_file() for file in re.findall(r"`(.+?)`", files)), files
        path, function = test.strip(" `").split("::")
        found = ROOT / path if "/" in path else ROOT / "tests/scheduling" / path
        assert f"def {function}(" in found.read_text(), test


def test_every_make_target_that_is_documented_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in DOCUMENTS:
        assert set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE)) <= targets, name


def test_the_documented_routes_exist_in_the_sources():
    sources = "".join(path.read_text() for path in (ROOT / "appliance").rglob("*.py"))
    routes = re.findall(r"`(?:GET |POST )?(/[a-z0-9/{}_]+)`", README.partition("| route |")[2].partition("\n## ")[0])
    assert len(routes) >= 10
    for route in routes:
        assert route.partition("/{")[0] in sources, route
