"""`fairlane grafana push` through the real grafana-client, against an HTTP server that answers as Grafana's API does.

It runs in its own environment (`.venv-grafana`, made by `make grafana-env`), because grafana-client's HTTP library replaces urllib3.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards.pages import PAGES
from tests.appliance import require_service
from tests.observability.fake_grafana import TOKEN, FakeGrafana, running_grafana
from tests.observability.rules import ROOT

PYTHON = ROOT / ".venv-grafana" / "bin" / "python"
COMMAND = ".venv-grafana/bin/python -m appliance.cli.grafana push"


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    require_service("grafana-client", program=str(PYTHON))
    with running_grafana() as running:
        yield running


def push(grafana: FakeGrafana, *flags: str, token: str = TOKEN, python: Path = PYTHON) -> subprocess.CompletedProcess[str]:
    command = [
        str(python),
        "-m",
        "appliance.cli.grafana",
        "push",
        "--url",
        grafana.url,
        "--prometheus-url",
        "http://prometheus:9090",
        *flags,
    ]
    env = {**os.environ, "GRAFANA_TOKEN": token}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_push_makes_all_there_should_be_and_a_second_one_changes_nothing(grafana: FakeGrafana) -> None:
    first = push(grafana, "--team", "ops=edit")
    assert first.returncode == 0, first.stderr
    assert set(grafana.dashboards) == {page.uid for page in PAGES}
    assert grafana.datasources["fairlane-prometheus"]["url"] == "http://prometheus:9090"
    assert {"teamId": 7, "permission": 2} in grafana.rights and {"role": "Viewer", "permission": 1} in grafana.rights
    assert all(kept["meta"]["folderUid"] == "fairlane" for kept in grafana.dashboards.values())
    assert first.stdout.splitlines()[-1] == f"{len(PAGES) + 3} changes"
    writes = grafana.num_writes
    second = push(grafana, "--team", "ops=edit")
    assert (second.stdout, grafana.num_writes) == ("0 changes\n", writes)


def test_what_somebody_changed_by_hand_is_put_right_and_nothing_else_is_touched(grafana: FakeGrafana) -> None:
    push(grafana)
    grafana.dashboards["fairlane-tail"]["dashboard"]["title"] = "mine now"
    grafana.datasources["fairlane-prometheus"]["url"] = "http://elsewhere"
    again = push(grafana)
    assert again.stdout == "update datasource Fairlane\nupdate dashboard Fairlane / Tail\n2 changes\n"
    assert grafana.dashboards["fairlane-tail"]["dashboard"]["title"] == "Fairlane / Tail"


def test_a_dry_run_says_what_it_would_do_and_does_nothing(grafana: FakeGrafana) -> None:
    dry = push(grafana, "--dry-run")
    assert dry.returncode == 0 and grafana.num_writes == 0
    assert dry.stdout.startswith("would create datasource Fairlane\nwould create folder Fairlane\n")


def test_a_wrong_token_an_unknown_team_and_a_grafana_that_is_not_there_are_said_clearly(grafana: FakeGrafana) -> None:
    refused = push(grafana, token="wrong")
    assert refused.returncode == 1 and "check the token" in refused.stderr
    unknown = push(grafana, "--team", "nobody=view")
    assert unknown.returncode == 1 and "no team 'nobody'" in unknown.stderr and grafana.num_writes == 0
    assert push(grafana, "--team", "ops=everything").returncode == 2
    away = FakeGrafana(url="http://127.0.0.1:9")
    assert "does not answer" in push(away).stderr


def test_where_the_extra_is_missing_it_says_how_to_get_it_and_the_very_command_to_run_then() -> None:
    answer = push(FakeGrafana(url="http://127.0.0.1:9"), python=Path(sys.executable))
    assert answer.returncode == 1 and "fairlane[grafana]" in answer.stderr
    assert all(command in answer.stderr for command in ("make grafana-env", COMMAND))


def test_the_documented_commands_do_what_the_document_says(grafana: FakeGrafana) -> None:
    """With this Grafana's address in place of the document's."""
    lines = [line for line in (ROOT / "docs" / "observability.md").read_text().splitlines() if line.startswith(COMMAND)]
    shown = [shlex.split(line.replace("http://grafana:3000", grafana.url)) for line in lines]
    env = {**os.environ, "GRAFANA_TOKEN": TOKEN}
    said = [subprocess.run(each, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=60).stdout for each in shown]
    assert [text.splitlines()[-1] for text in said] == [f"{len(PAGES) + 2} changes to make", f"{len(PAGES) + 2} changes"]
    assert set(grafana.dashboards) == {page.uid for page in PAGES}
