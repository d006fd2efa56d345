"""`fairlane`: the appliance's command line."""

import asyncio
import sys
import time

import click
import structlog

from appliance.app import own_version
from appliance.asgi import serve as serve_appliance
from appliance.cli.admins import admin
from appliance.cli.audit import audit
from appliance.cli.backup import backup_command, restore_command
from appliance.cli.common import CONFIG_HELP, fails_clearly, load, print_table, store_options
from appliance.cli.configuration import config
from appliance.cli.doctor import doctor
from appliance.cli.flight import dump, explain_command, trace
from appliance.cli.grafana import grafana
from appliance.cli.keys import key
from appliance.cli.models import model, simulate
from appliance.cli.settings_table import settings_flags, settings_markdown, settings_rows
from appliance.cli.tenants import tenant
from appliance.cli.tiers import tier
from appliance.cli.usage import usage_command
from appliance.db.base import Base
from appliance.db.database import Database
from appliance.db.revision import Schema, SchemaState, migrate, read_schema, refuse_unless_current
from appliance.domain.models import MODELS
from appliance.domain.tenants.bootstrap import make_data_dir, names_its_file, seed
from appliance.errors import Unavailable
from appliance.settings import sqlalchemy_url

RETRY_EVERY_S = 0.5

assert all(each.metadata is Base.metadata for each in MODELS)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(own_version(), prog_name="fairlane")
def cli() -> None:
    """Fairlane serves one language model to many tenants, and no tenant spoils another's tail latency.

    \b
    fairlane serve                       migrate an empty database, load the model, serve on 127.0.0.1:8000
    fairlane tenant create acme          add a tenant
    KEY=$(fairlane key create acme)      make a key for it
    fairlane model info MODEL            what a model needs

    Settings: a flag wins over FAIRLANE_* variables, those over the settings file; `fairlane settings` shows all.
    Exit codes: 0 done, 1 failed, 2 wrong usage or an impossible setting.
    """
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))  # stdout belongs to the commands' answers


@cli.command("serve")
@click.argument("model_argument", metavar="[MODEL]", required=False)
@click.option("--config", metavar="FILE", help=CONFIG_HELP)
@settings_flags
@fails_clearly
def serve_command(model_argument: str | None, config: str | None, **flags: object) -> None:
    """Serve MODEL until SIGTERM or Ctrl-C.

    MODEL is the same as --model. An empty database is migrated first; one that is behind, newer or half-migrated is
    refused. The first start makes an API key and an admin token and says where they are stored. Ready when /readyz is 200.
    """
    if model_argument is not None:
        if flags.get("model") is not None:
            raise click.UsageError("give the model once: as MODEL or as --model")
        flags["model"] = model_argument
    sys.exit(serve_appliance(load(flags, config).settings))


@cli.command("migrate", short_help="Bring the database to this version's schema.")
@click.option("--wait-s", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for a database that does not answer yet.")
@store_options
@fails_clearly
def migrate_command(wait_s: float, data_dir: str | None, database_url: str | None, config: str | None) -> None:
    """Bring the database to this version's schema, all of it or nothing. Back it up first; running it again is no error."""
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    make_data_dir(settings)
    url = sqlalchemy_url(settings)
    with names_its_file(url):
        before = asyncio.run(_migrate(url, wait_s))
    if before.state is SchemaState.CURRENT:
        click.echo(f"the database is at revision {before.head} already")
    else:
        click.echo(f"the database went from {before.revision or 'empty'} to revision {before.head}")


async def _migrate(url: str, wait_s: float) -> Schema:
    """Migrate an empty database or one that is behind; the schema found before. Raises `SchemaError` for others, `Unavailable`."""
    before = await _read_schema(url, time.monotonic() + wait_s)
    if before.state in (SchemaState.EMPTY, SchemaState.BEHIND):
        await migrate(url)
        await _seed(url)
    else:
        refuse_unless_current(before)
    return before


async def _seed(url: str) -> None:
    """What a database begins with, so that commands which only look find it."""
    async with Database(url) as database, database.write() as session:
        await seed(session)


async def _read_schema(url: str, deadline_s: float) -> Schema:
    """The database's schema, as soon as it answers. Raises `Unavailable` when it has not by then."""
    async with Database(url) as database:
        while True:
            try:
                return await read_schema(database, Base.metadata)
            except Unavailable:
                if time.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(RETRY_EVERY_S)


@cli.command("settings", short_help="Show every setting, its value and source.")
@click.option("--config", metavar="FILE", help=CONFIG_HELP)
@click.option("--markdown", is_flag=True, help="Print docs/settings.md.")
@fails_clearly
def settings_command(config: str | None, markdown: bool) -> None:
    """Show every setting, its value here, and where the value comes from."""
    if markdown:
        click.echo(settings_markdown(), nl=False)
    else:
        print_table(("SETTING", "VALUE", "FROM"), settings_rows(load({}, config)))


for group in (
    admin,
    tenant,
    key,
    tier,
    config,
    audit,
    usage_command,
    backup_command,
    restore_command,
    model,
    simulate,
    dump,
    explain_command,
    trace,
    grafana,
    doctor,
):
    cli.add_command(group)


def main() -> None:
    """Entry point of the `fairlane` script."""
    cli(prog_name="fairlane")


if __name__ == "__main__":
    main()
