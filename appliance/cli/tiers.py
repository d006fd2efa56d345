"""`fairlane tier`: SLA tiers on the database, also while the server runs."""

import click
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import (
    cli_actor,
    compact,
    fails_clearly,
    in_json,
    make_store_and_run,
    print_json,
    print_table,
    read_database,
    run_on_store,
    sla_field,
    store_options,
    warn,
)
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import get_tier, list_tiers, sla_of
from appliance.domain.tenants.bootstrap import Store
from appliance.domain.tenants.service import read_contract_warnings
from appliance.domain.tenants.tier_service import create_tier, delete_tier, update_tier


@click.group(short_help="SLA tiers: targets, weights, limits.")
def tier() -> None:
    """SLA tiers: targets, weights, limits; tenants refer to one and may override fields."""


@tier.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all fields.")
@store_options
@fails_clearly
def list_tiers_command(as_json: bool, **where: str | None) -> None:
    """Show all tiers."""

    async def work(session: AsyncSession) -> list[SlaTier]:
        return await list_tiers(session)

    found = read_database(**where, work=work)
    if as_json:
        print_json({row.name: sla_of(row) for row in found})
        return
    rows = [(r.name, r.weight, r.priority, ",".join(r.lanes), compact(r.ttft_ms), r.max_concurrency, r.rpm, r.tpm) for r in found]
    print_table(("NAME", "WEIGHT", "PRIORITY", "LANES", "TTFT MS", "IN FLIGHT", "RPM", "TPM"), rows)


@tier.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def show_tier_command(name: str, as_json: bool, **where: str | None) -> None:
    """Show the tier NAME: all of its fields."""

    async def work(session: AsyncSession) -> SlaTier:
        return await get_tier(session, name)

    found = read_database(**where, work=work)
    if as_json:
        print_json(sla_of(found))
        return
    click.echo(f"tier {name}, version {found.version}")
    print_table(("FIELD", "VALUE"), [(field, in_json(value)) for field, value in msgspec.to_builtins(sla_of(found)).items()])


@tier.command("create")
@click.argument("name")
@click.option("--set", "fields", multiple=True, metavar="FIELD=VALUE", help="A field's value; others: no limit, no target. Repeatable.")
@store_options
@fails_clearly
def create_tier_command(name: str, fields: tuple[str, ...], **where: str | None) -> None:
    """Add the tier NAME (1 to 63 of a-z, 0-9, - and _).

    \b
    fairlane tier create gold --set weight=8 --set 'ttft_ms={"fast": 300}' --set 'objective={"fast": 0.999}'
    """
    chosen = dict(sla_field(item) for item in fields)

    async def work(store: Store) -> SlaTier:
        async with store.database.write() as session:
            return await create_tier(session, name, chosen, cli_actor())

    make_store_and_run(**where, work=work)
    click.echo(f"tier {name} created; next: fairlane tenant create SLUG --tier {name}")


@tier.command("delete")
@click.argument("name")
@store_options
@fails_clearly
def delete_tier_command(name: str, **where: str | None) -> None:
    """Remove the tier NAME, which no tenant may be under."""

    async def work(store: Store) -> None:
        async with store.database.write() as session:
            await delete_tier(session, name, cli_actor())

    run_on_store(**where, work=work)
    click.echo(f"tier {name} is removed")


@tier.command("update")
@click.argument("name")
@click.option(
    "--set", "fields", multiple=True, required=True, metavar="FIELD=VALUE", help="A field's new value; null: no limit. Repeatable."
)
@store_options
@fails_clearly
def update_tier_command(name: str, fields: tuple[str, ...], **where: str | None) -> None:
    """Change the tier NAME for all tenants under it."""
    changes = dict(sla_field(item) for item in fields)

    async def work(store: Store) -> tuple[SlaTier, list[str]]:
        async with store.database.write() as session:
            updated = await update_tier(session, name, changes, None, cli_actor())
            return updated, await read_contract_warnings(session)

    updated, warnings = run_on_store(**where, work=work)
    click.echo(f"tier {name} is at version {updated.version}")
    warn(warnings)
