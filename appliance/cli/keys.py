"""`fairlane key`: API keys of tenants on the database, also while the server runs."""

import asyncio
import contextlib

import click
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import (
    SEEN_AT_ONCE,
    cli_actor,
    fails_clearly,
    load,
    make_store_and_run,
    parse_time,
    print_json,
    print_table,
    read_database,
    run_on_store,
    store_options,
)
from appliance.data_lock import only_server_of, only_server_on
from appliance.db.backup import is_sqlite, sqlite_path
from appliance.db.base import utc_now
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import KEY_SCOPES, Limits
from appliance.domain.access.service import check_key_spec, list_keys
from appliance.domain.admins.token_service import read_grantors
from appliance.domain.slas.decisions import MAX_COUNT
from appliance.domain.tenants.bootstrap import Store, make_data_dir, open_existing, require_database
from appliance.domain.tenants.key_service import create_tenant_key, revoke_tenant_key, rotate_tenant_key
from appliance.domain.tenants.pepper import forget_pepper, settle_pepper
from appliance.domain.tenants.service import find_tenant
from appliance.domain.tenants.views import KeyView, key_view
from appliance.settings import sqlalchemy_url

LIMIT = click.IntRange(1, MAX_COUNT)


@click.group(epilog=SEEN_AT_ONCE)
def key() -> None:
    """API keys of tenants."""


@key.command("create")
@click.argument("tenant_slug", metavar="TENANT")
@click.option("--name", default="cli", show_default=True, help="What the key is for.")
@click.option("--scope", "scopes", multiple=True, default=("inference",), type=click.Choice([scope.value for scope in KEY_SCOPES]),
              help="What it may do; default: inference. Repeatable.")  # fmt: skip
@click.option("--model", "models", multiple=True, help="A model it may use; default: all. Repeatable.")
@click.option("--lane", "lanes", multiple=True, help="A lane it may ask for; default: the tenant's. Repeatable.")
@click.option("--expires", metavar="TIME", help="Refused from then on, for example 2030-01-31T12:00:00Z; default: never.")
@click.option("--rpm", type=LIMIT, help="Requests a minute, beneath the tenant's limit.")
@click.option("--tpm", type=LIMIT, help="Tokens a minute, likewise.")
@click.option("--tokens-per-day", type=LIMIT, help="Budget of tokens a day (UTC), likewise.")
@click.option("--tokens-per-month", type=LIMIT, help="Budget of tokens a month (UTC), likewise.")
@store_options
@fails_clearly
def create_key_command(
    tenant_slug: str,
    name: str,
    scopes: tuple[str, ...],
    models: tuple[str, ...],
    lanes: tuple[str, ...],
    expires: str | None,
    rpm: int | None,
    tpm: int | None,
    tokens_per_day: int | None,
    tokens_per_month: int | None,
    **where: str | None,
) -> None:
    """Make a key of TENANT and print it on stdout, alone; it is not stored and not shown again.

    \b
    KEY=$(fairlane key create acme --name ci)
    """
    spec = check_key_spec(
        name, scopes, models, lanes, parse_time("--expires", expires), utc_now(), Limits(rpm, tpm, tokens_per_day, tokens_per_month)
    )

    async def work(store: Store) -> tuple[ApiKey, str]:
        async with store.database.write() as session:
            return await create_tenant_key(session, tenant_slug, spec, store.pepper, cli_actor())

    row, raw_key = make_store_and_run(**where, work=work)
    click.echo(f"key {row.id} of tenant {tenant_slug} with {', '.join(row.scopes)}; store it now, it is not shown again:", err=True)
    click.echo(raw_key)


@key.command("list")
@click.argument("tenant_slug", metavar="TENANT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def list_keys_command(tenant_slug: str, as_json: bool, **where: str | None) -> None:
    """Show the keys of TENANT, revoked ones too; of each only the first and last characters."""

    async def work(session: AsyncSession) -> list[KeyView]:
        grantors = await read_grantors(session)
        return [
            key_view(row, tenant_slug, grantors) for row in await list_keys(session, (await find_tenant(session, tenant_slug)).tenant.id)
        ]

    found = read_database(**where, work=work)
    if as_json:
        print_json(found)
        return
    rows = [(r.id, r.name, f"{r.prefix}...{r.last4}", _scopes(r), r.expires_at, r.disabled_at) for r in found]
    print_table(("ID", "NAME", "KEY", "SCOPES", "EXPIRES", "REVOKED"), rows)


def _scopes(key: KeyView) -> str:
    return ",".join(key.scopes) + (" (grantor gone)" if key.grantor_gone else "")


@key.command("revoke")
@click.argument("tenant_slug", metavar="TENANT")
@click.argument("key_id")
@store_options
@fails_clearly
def revoke_key_command(tenant_slug: str, key_id: str, **where: str | None) -> None:
    """Refuse the key KEY_ID of TENANT from now on (`fairlane key list` shows ids). Again is no error."""

    async def work(store: Store) -> ApiKey:
        async with store.database.write() as session:
            return await revoke_tenant_key(session, tenant_slug, key_id, cli_actor())

    row = run_on_store(**where, work=work)
    click.echo(f"key {row.id} of tenant {tenant_slug} is revoked")


@key.command("rotate")
@click.argument("tenant_slug", metavar="TENANT")
@click.argument("key_id")
@click.option("--grace-s", default=3600.0, show_default=True, help="Seconds the old key still works.")
@store_options
@fails_clearly
def rotate_key_command(tenant_slug: str, key_id: str, grace_s: float, **where: str | None) -> None:
    """Make another key like KEY_ID and print it on stdout, alone."""

    async def work(store: Store) -> tuple[ApiKey, str]:
        async with store.database.write() as session:
            return await rotate_tenant_key(session, tenant_slug, key_id, grace_s, store.pepper, cli_actor())

    row, raw_key = run_on_store(**where, work=work)
    click.echo(f"key {row.id} replaces {key_id}, which works for {grace_s:g} s; store it now, it is not shown again:", err=True)
    click.echo(raw_key)


@key.command("new-pepper")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
@fails_clearly
def new_pepper_command(yes: bool, data_dir: str | None, database_url: str | None, config: str | None) -> None:
    """Revoke all keys and administrators' tokens, and begin with the pepper that is here, or a new one. Servers must be stopped.

    For a database whose pepper is lost: nothing could tell its keys any more. Passwords stay valid, sessions end.
    """
    settings = load({"data_dir": data_dir, "database_url": database_url}, config).settings
    require_database(settings)
    if not yes:
        click.confirm("revoke every key and every administrator's token?", abort=True)

    async def work() -> tuple[int, int]:
        async with await open_existing(settings) as database, database.write() as session:
            ended = await forget_pepper(session, cli_actor())
            await settle_pepper(session, settings)
            return ended

    url = sqlalchemy_url(settings)
    with only_server_of(make_data_dir(settings)), only_server_on(sqlite_path(url)) if is_sqlite(url) else contextlib.nullcontext():
        keys, tokens = asyncio.run(work())
    click.echo(f"{keys} keys and {tokens} tokens of administrators are revoked; next: fairlane serve, then fairlane key create TENANT")
