"""`fairlane tenant`: tenants on the database, also while the server runs."""

from typing import Any

import click
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import (
    SEEN_AT_ONCE,
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
from appliance.db.state import bump_version
from appliance.domain.slas.decisions import SLA_FIELDS
from appliance.domain.tenants.bootstrap import Store
from appliance.domain.tenants.service import (
    TenantWithTier,
    create_tenant,
    delete_tenant,
    find_tenant,
    list_tenants,
    read_contract_warnings,
    update_tenant,
)
from appliance.domain.tenants.views import TenantView, tenant_view


@click.group(epilog=SEEN_AT_ONCE)
def tenant() -> None:
    """Tenants: who is served, under which SLA."""


@tenant.command("create")
@click.argument("slug")
@click.option("--name", help="Name for people; default: the slug.")
@click.option("--tier", default="standard", show_default=True, help="SLA tier; `fairlane tier list` shows them.")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Override an SLA field; null lifts a limit. Repeatable.")
@click.option("--trust-group", default="", help="Tenants of one group share cached prefixes; default: alone.")
@store_options
@fails_clearly
def create_tenant_command(
    slug: str, name: str | None, tier: str, overrides: tuple[str, ...], trust_group: str, **where: str | None
) -> None:
    """Add the tenant SLUG (1 to 63 of a-z, 0-9, - and _; it never changes).

    \b
    fairlane tenant create acme --tier interactive --set rpm=600 --set 'ttft_ms={"fast": 300}'
    """
    fields = dict(sla_field(item) for item in overrides)

    async def work(store: Store) -> tuple[TenantWithTier, list[str]]:
        async with store.database.write() as session:
            created = await create_tenant(
                session,
                slug=slug,
                name=slug if name is None else name,
                tier=tier,
                overrides=fields,
                trust_group=trust_group,
                actor=cli_actor(),
            )
            return created, await read_contract_warnings(session)

    created, warnings = make_store_and_run(**where, work=work)
    click.echo(f"tenant {created.tenant.slug} created under tier {created.tier.name}; next: fairlane key create {created.tenant.slug}")
    warn(warnings)


@tenant.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with each tenant's effective SLA.")
@store_options
@fails_clearly
def list_tenants_command(as_json: bool, **where: str | None) -> None:
    """Show all tenants."""

    async def work(session: AsyncSession) -> list[TenantWithTier]:
        return await list_tenants(session)

    found = read_database(**where, work=work)
    if as_json:
        print_json([tenant_view(each) for each in found])
        return
    rows = [(t.tenant.slug, t.tenant.name, t.tenant.status, t.tier.name, compact(t.tenant.overrides)) for t in found]
    print_table(("SLUG", "NAME", "STATUS", "TIER", "OVERRIDES"), rows)


@tenant.command("show")
@click.argument("slug")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def show_tenant_command(slug: str, as_json: bool, **where: str | None) -> None:
    """Show the tenant SLUG: the SLA that it runs under, and where each field of it comes from."""

    async def work(session: AsyncSession) -> TenantView:
        return tenant_view(await find_tenant(session, slug))

    found = read_database(**where, work=work)
    if as_json:
        print_json(found)
        return
    facts = (found.name, found.status, f"tier {found.tier}", f"trust group {found.trust_group}" if found.trust_group else "")
    click.echo(f"{slug}: {', '.join(filter(None, facts))}, version {found.version}")
    sources = {"tier": f"tier {found.tier}", "override": "override"}
    effective = msgspec.to_builtins(found.effective)
    print_table(("FIELD", "VALUE", "FROM"), [(field, in_json(effective[field]), sources[found.sources[field]]) for field in SLA_FIELDS])


@tenant.command("update")
@click.argument("slug")
@click.option("--name", help="Name for people.")
@click.option("--tier", help="SLA tier.")
@click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help="Override an SLA field; null lifts a limit. Repeatable.")
@click.option("--unset", "dropped", multiple=True, metavar="FIELD", help="Take the tier's value again. Repeatable.")
@click.option("--trust-group", help="Tenants of one group share cached prefixes; empty: alone.")
@click.option("--status", type=click.Choice(["active", "suspended"]), help="A suspended tenant's requests are refused.")
@store_options
@fails_clearly
def update_tenant_command(
    slug: str,
    name: str | None,
    tier: str | None,
    overrides: tuple[str, ...],
    dropped: tuple[str, ...],
    trust_group: str | None,
    status: str | None,
    **where: str | None,
) -> None:
    """Change the tenant SLUG; what is not named stays, also its other overrides."""
    given = {"name": name, "tier": tier, "trust_group": trust_group, "status": status}
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}

    if unknown := [field for field in dropped if field not in SLA_FIELDS]:
        raise click.UsageError(f"--unset {unknown[0]!r} is no field of an SLA; the fields are {', '.join(SLA_FIELDS)}")

    async def work(store: Store) -> tuple[TenantWithTier, list[str]]:
        async with store.database.write() as session:
            await bump_version(session)  # its lock comes before the look, as in every change
            present = (await find_tenant(session, slug)).tenant.overrides
            kept = {field: value for field, value in present.items() if field not in dropped}
            changes["overrides"] = kept | dict(sla_field(item) for item in overrides)
            updated = await update_tenant(session, slug, changes, None, cli_actor())
            return updated, await read_contract_warnings(session)

    updated, warnings = run_on_store(**where, work=work)
    click.echo(f"tenant {slug} is at version {updated.tenant.version}, tier {updated.tier.name}, {updated.tenant.status}")
    warn(warnings)


@tenant.command("delete")
@click.argument("slug")
@store_options
@fails_clearly
def delete_tenant_command(slug: str, **where: str | None) -> None:
    """Refuse the keys of SLUG from now on; the slug stays taken, usage and audit stay."""

    async def work(store: Store) -> None:
        async with store.database.write() as session:
            await delete_tenant(session, slug, cli_actor())

    run_on_store(**where, work=work)
    click.echo(f"tenant {slug} is removed")
