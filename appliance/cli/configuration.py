"""`fairlane config`: tiers and tenants as a YAML file, compared with the database and applied to it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.admin_api import AdminApi, admin_token
from appliance.cli.common import (
    cli_actor,
    fails_clearly,
    load,
    make_store_and_run,
    print_json,
    read_database,
    run_on_store,
    store_options,
    warn,
)
from appliance.cli.config_file import STDIN, ConfigFile, config_yaml, read_config_file
from appliance.domain.configuration.controller import ApplyRequest, ExportedConfiguration, PlanRequest
from appliance.domain.configuration.decisions import Change, Configuration, Plan
from appliance.domain.configuration.service import apply_configuration, plan_configuration, read_configuration
from appliance.domain.tenants.bootstrap import Store
from appliance.errors import Invalid

EXIT_CHANGES = 2
"""As terraform's `-detailed-exitcode`: 0 nothing to change, 1 an error, 2 there are changes."""
MARKS = {"create": "+", "update": "~", "delete": "-"}


class Target(Protocol):
    """What a document is compared with and applied to."""

    def export(self) -> Configuration: ...

    def plan(self, wanted: Configuration, prune: bool) -> Plan: ...

    def apply(self, wanted: Configuration, prune: bool, version: int | None) -> Plan: ...


class ServerTarget:
    """A running server, over its API."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    def export(self) -> Configuration:
        return self._api.get("/config", ExportedConfiguration).config

    def plan(self, wanted: Configuration, prune: bool) -> Plan:
        return self._api.post("/config/plan", PlanRequest(config=wanted, prune=prune), Plan)

    def apply(self, wanted: Configuration, prune: bool, version: int | None) -> Plan:
        return self._api.post("/config/apply", ApplyRequest(config=wanted, prune=prune, version=version), Plan)


class DatabaseTarget:
    """The database itself; a server that runs on it follows within a quarter of a second."""

    def __init__(self, where: dict[str, str | None], makes: bool) -> None:
        """`makes`: a database that is not there is made first."""
        self._where = where
        self._makes = makes

    def export(self) -> Configuration:
        async def work(session: AsyncSession) -> Configuration:
            return (await read_configuration(session))[1]

        return read_database(**self._where, work=work)

    def plan(self, wanted: Configuration, prune: bool) -> Plan:
        async def work(session: AsyncSession) -> Plan:
            return await plan_configuration(session, wanted, prune=prune)

        async def make(store: Store) -> None:
            pass

        if self._makes:
            make_store_and_run(**self._where, work=make)
        return read_database(**self._where, work=work)

    def apply(self, wanted: Configuration, prune: bool, version: int | None) -> Plan:
        async def work(store: Store) -> Plan:
            async with store.database.write() as session:
                return await apply_configuration(session, wanted, prune=prune, version=version, actor=cli_actor())

        return run_on_store(**self._where, work=work)


class NotChanges(click.UsageError):
    """Wrong usage of a command whose exit code 2 says that there are changes."""

    exit_code = 1


class DetailedExit(click.Command):
    """A command that ends with 1 where others would end with 2 for wrong usage."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _usage_as_failure():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_as_failure():
            return super().invoke(ctx)


@contextmanager
def _usage_as_failure() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        raise NotChanges(error.message, error.ctx) from error


def target_options[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """The database's options, and those of a server to talk to instead."""
    for option in (
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Admin token for --server; default: FAIRLANE_BOOTSTRAP_ADMIN_TOKEN, else the data directory's.",
        ),
        click.option("--server", metavar="URL", help="Use the API of a running server instead of the database."),
    ):
        command = option(command)
    return store_options(command)


def _target(server: str | None, token_file: Path | None, where: dict[str, str | None], *, makes: bool = False) -> Target:
    if server is None:
        return DatabaseTarget(where, makes)
    settings = load({"data_dir": where["data_dir"]}, where["config"]).settings
    return ServerTarget(AdminApi(server, admin_token(settings, token_file)))


@click.group()
def config() -> None:
    """Configuration as code: tiers and tenants as a YAML file."""


@config.command("export")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@target_options
@fails_clearly
def export_command(file: Path | None, server: str | None, token_file: Path | None, **where: str | None) -> None:
    """Write all tiers and tenants to FILE (`-`, the default: stdout). Keys and secrets are never in it."""
    text = config_yaml(_target(server, token_file, where).export())
    if file is None or file == STDIN:
        click.echo(text, nl=False)
    else:
        file.write_text(text)
        click.echo(f"written to {file}; next: fairlane config plan {file}", err=True)


@config.command("plan", cls=DetailedExit)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@target_options
@fails_clearly
def plan_command(file: Path, prune: bool, as_json: bool, server: str | None, token_file: Path | None, **where: str | None) -> None:
    """Show what applying FILE (`-`: stdin) would change. Exit codes: 0 nothing, 2 there are changes, 1 an error."""
    document = read_config_file(file)
    target = _target(server, token_file, where)
    plan = _at_its_line(document, lambda: target.plan(document.configuration, prune))
    print_json(plan) if as_json else click.echo(plan_text(plan))
    warn(plan.warnings)
    sys.exit(EXIT_CHANGES if plan.changes else 0)


@config.command("apply", cls=DetailedExit)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@click.option("--plan-version", type=int, metavar="N", help="Refuse unless the database is at this version, the one of an earlier plan.")
@click.option("--even-if-changed", is_flag=True, help="Apply also where the database changes after the plan was shown.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
@target_options
@fails_clearly
def apply_command(
    file: Path,
    prune: bool,
    plan_version: int | None,
    even_if_changed: bool,
    yes: bool,
    as_json: bool,
    server: str | None,
    token_file: Path | None,
    **where: str | None,
) -> None:
    """Bring the database to FILE (`-`: stdin): all of it or nothing, audited, and again changes nothing.

    The plan is shown first. Where the database changes between it and the change, nothing is done (exit code 1).
    """
    document = read_config_file(file)
    target = _target(server, token_file, where, makes=True)
    plan = _at_its_line(document, lambda: target.plan(document.configuration, prune))
    click.echo(plan_text(plan), err=as_json)
    warn(plan.warnings)
    if plan.changes and not yes and sys.stdin.isatty():
        click.confirm("apply this?", abort=True)
    expected = None if even_if_changed else plan.version if plan_version is None else plan_version
    done = _at_its_line(document, lambda: target.apply(document.configuration, prune, expected))
    if as_json:
        print_json(done)
    elif done.changes:
        click.echo(f"applied: {_counts(done.changes)}")
    warn([warning for warning in done.warnings if warning not in plan.warnings])


def plan_text(plan: Plan) -> str:
    """A plan for people: one line an object, one a field."""
    lines: list[str] = []
    for change in plan.changes:
        lines.append(f"{MARKS[change.action]} {change.kind} {change.name}")
        for field in change.fields:
            before = f"{_json(field.before)} -> " if change.action == "update" else ""
            lines.append(f"    {field.field}: {before}{_json(field.after)}")
    lines.append(_counts(plan.changes) if plan.changes else "nothing to change")
    if plan.left_alone:
        lines.append(f"not in the file and left alone: {', '.join(plan.left_alone)} (--prune removes them)")
    return "\n".join(lines)


def _counts(changes: list[Change]) -> str:
    words = {"create": "to add", "update": "to change", "delete": "to remove"}
    numbers = {action: sum(change.action == action for change in changes) for action in words}
    return ", ".join(f"{numbers[action]} {words[action]}" for action in words if numbers[action])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _at_its_line[R](document: ConfigFile, ask: Callable[[], R]) -> R:
    """Ask about a document; where its content is refused, say in which line."""
    try:
        return ask()
    except Invalid as error:
        raise document.located(error) from error
