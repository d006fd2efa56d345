"""`fairlane dump`, `explain`, `trace`: the flight recorder's bundles."""

import json
from pathlib import Path

import click
import msgspec

from appliance.cli.admin_api import AdminApi, admin_token
from appliance.cli.common import CONFIG_HELP, fails_clearly, load, print_json, print_table
from appliance.domain.explain.service import raw_id
from appliance.errors import ApplianceError, NotFound
from appliance.settings import Settings, data_path
from appliance.telemetry.explain.answer import Explanation, explain
from appliance.telemetry.explain.verdict import lost_in_words, seconds
from appliance.telemetry.flight.bundle import Bundle, BundleError, read_bundle
from appliance.telemetry.flight.trace import trace_of

SHOWN_REQUESTS = 20
RUN_FILE = "run.json"
BUNDLE = click.argument("bundle_path", metavar="BUNDLE", type=click.Path(exists=True, dir_okay=False, path_type=Path))


class DumpFields(msgspec.Struct, frozen=True):
    """What a server says of a bundle it wrote."""

    file: str
    steps: int
    requests: int


class NoBody(msgspec.Struct, frozen=True):
    """An empty JSON object."""


@click.command("dump")
@click.option("--server", metavar="URL", help="Base URL; default: the server that runs on the data directory.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with an admin token; default: the data directory's.")
@click.option("--data-dir", metavar="DIR", help="The appliance's data directory; default: var. [FAIRLANE_DATA_DIR]")
@click.option("--config", metavar="FILE", help=CONFIG_HELP)
@fails_clearly
def dump(server: str | None, token_file: Path | None, data_dir: str | None, config: str | None) -> None:
    """Let a running server write its last minute to a bundle, and print the file's name."""
    settings = load({"data_dir": data_dir}, config).settings
    api = AdminApi(server or _url_of(settings), admin_token(settings, token_file))
    answer = api.post("/dump", NoBody(), DumpFields)
    click.echo(answer.file)
    click.echo(f"{answer.steps} steps, {answer.requests} requests; look at it with `fairlane explain {answer.file}`", err=True)


@click.command("explain")
@BUNDLE
@click.argument("request_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@fails_clearly
def explain_command(bundle_path: Path, request_id: str | None, as_json: bool) -> None:
    """Say why requests in BUNDLE took their time: the slowest ones in a line each, or request ID part by part."""
    bundle = _read(bundle_path)
    if request_id is not None:
        _show(_explained(bundle, raw_id(request_id)), as_json)
        return
    every = [*bundle.requests, *bundle.running]
    slowest = sorted(every, key=lambda report: report.received_ns - report.ended_ns)[:SHOWN_REQUESTS]
    found = [(report, _explained(bundle, report.request_id)) for report in slowest]
    if as_json:
        print_json([each for _, each in found])
        return
    click.echo(f"{bundle.reason} at {bundle.made_at:%Y-%m-%d %H:%M:%S}Z: {len(bundle.steps)} steps, {len(every)} requests", err=True)
    rows = [(each.id, report.tenant_id, each.lane, seconds(each.total_s), each.verdict) for report, each in found]
    print_table(("REQUEST", "TENANT", "LANE", "TOOK", "WHY"), rows)


@click.command("trace")
@BUNDLE
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@fails_clearly
def trace(bundle_path: Path, out: Path) -> None:
    """Write BUNDLE as a trace that ui.perfetto.dev and chrome://tracing show: steps, lanes, requests."""
    content = trace_of(_read(bundle_path))
    out.write_text(json.dumps(content))
    click.echo(f"{out}: {len(content['traceEvents'])} events")


def _read(path: Path) -> Bundle:
    try:
        return read_bundle(path)
    except BundleError as error:
        raise ApplianceError(str(error)) from error


def _explained(bundle: Bundle, request_id: str) -> Explanation:
    found = bundle.find(request_id)
    if found is None:
        raise NotFound(f"{request_id} is not in this bundle, which has {len(bundle.requests) + len(bundle.running)} requests")
    report, is_running = found
    return explain(report, bundle.recorded(report), is_running=is_running)


def _show(found: Explanation, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    click.echo(found.verdict)
    print_table(
        ("PART", "TIME", "OF IT", "TENANT"), [(p.name, seconds(p.seconds), _share(p.seconds, found), p.tenant) for p in found.parts]
    )
    if found.gaps:
        print_table(
            ("GAP AT", "TIME", "STEP", "PART", "TENANT", "IT"),
            [
                (seconds(g.at_s), seconds(g.seconds), g.step, g.name, g.tenant, ", ".join(lost_in_words(each) for each in g.preempted))
                for g in found.gaps
            ],
        )


def _share(part_s: float, found: Explanation) -> str:
    return f"{part_s / found.total_s:.0%}" if found.total_s else "-"


def _url_of(settings: Settings) -> str:
    """Where the server of the data directory listens."""
    path = data_path(settings) / RUN_FILE
    try:
        return str(json.loads(path.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ApplianceError(f"no server runs on {path.parent} ({path.name} is missing): name one with --server") from error
