"""`fairlane grafana push`."""

import importlib
import json
import os
from pathlib import Path
from types import ModuleType

import click

from appliance.grafana.push import PERMISSIONS, UnknownTeam, Wanted, changes
from appliance.packed import project_path

DASHBOARDS = project_path("dashboards/json")
WITHOUT_EXTRA = (
    "grafana-client is not installed here: it has an environment of its own, because its HTTP library replaces urllib3. In a clone run"
    " `make grafana-env`, then this command as `.venv-grafana/bin/python -m appliance.cli.grafana push` with the same options; elsewhere"
    " install 'fairlane[grafana]' into a new virtual environment"
)


@click.group()
def grafana() -> None:
    """Datasource, dashboards and teams' rights in a Grafana."""


@grafana.command()
@click.option("--url", required=True, envvar="GRAFANA_URL", help="Where Grafana is, e.g. http://grafana:3000.")
@click.option("--user", envvar="GRAFANA_USER", help="A user with the right to make folders, in place of a token.")
@click.option("--prometheus-url", required=True, envvar="GRAFANA_PROMETHEUS_URL", help="Where Grafana finds Prometheus.")
@click.option(
    "--dashboards", type=click.Path(exists=True, file_okay=False, path_type=Path), default=DASHBOARDS, help="Folder of JSON files."
)
@click.option(
    "--team", "teams", multiple=True, metavar="NAME=RIGHT", help="Right of a team on the folder: view, edit or admin. May be repeated."
)
@click.option("--dry-run", is_flag=True, help="Say what would be changed, and change nothing.")
def push(
    url: str,
    user: str | None,
    prometheus_url: str,
    dashboards: Path,
    teams: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Bring datasource, folder, dashboards and teams' rights to what they should be.

    What is there already is updated where it differs; a second run changes nothing. GRAFANA_TOKEN holds a service account's token;
    or give --user, and the password in GRAFANA_PASSWORD. It runs in an environment of its own (docs/observability.md).
    """
    token, password = os.environ.get("GRAFANA_TOKEN"), os.environ.get("GRAFANA_PASSWORD")
    credential = (user, password) if user and password else token
    if credential is None:
        raise click.UsageError("set GRAFANA_TOKEN, or --user and GRAFANA_PASSWORD")
    wanted = Wanted(prometheus_url, _dashboards(dashboards), dict(_team(each) for each in teams))
    module = _client_module()
    try:
        server = module.HttpGrafana(url, credential)
        todo = list(changes(server, wanted))
        for change in todo:
            click.echo(f"would {change}" if dry_run else str(change))
            if not dry_run:
                server.apply(change)
    except UnknownTeam as error:
        raise click.ClickException(str(error)) from error
    except module.GrafanaClientError as error:
        raise click.ClickException(f"{url} refused: {error}; check the token and its rights") from error
    except OSError as error:
        raise click.ClickException(f"{url} does not answer: {error}") from error
    click.echo(f"{len(todo)} change{'s' * (len(todo) != 1)}{' to make' if dry_run else ''}")


def _client_module() -> ModuleType:
    """The part that needs the extra, which most installations do not have."""
    try:
        return importlib.import_module("appliance.grafana.client")
    except ModuleNotFoundError as error:
        raise click.ClickException(WITHOUT_EXTRA) from error


def _dashboards(folder: Path) -> list[dict[str, object]]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise click.UsageError(f"{folder} holds no dashboards (*.json)")
    return [json.loads(path.read_text()) for path in paths]


def _team(text: str) -> tuple[str, str]:
    name, _, right = text.partition("=")
    if not name or right not in PERMISSIONS:
        raise click.UsageError(f"--team {text!r} must be NAME=RIGHT with a right of {', '.join(PERMISSIONS)}")
    return name, right


if __name__ == "__main__":
    grafana()
