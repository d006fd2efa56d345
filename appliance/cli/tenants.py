"""`fairlane tenant`, `fairlane key`, `fairlane tier`: administration on the database, also while the server runs."""

from typing import Any

import click
import msgspec

from appliance.cli.common import SEEN_AT_ONCE, cli_actor, fails_clearly, parse_time, print_json, print_table, run_on_store, store_options
from appliance.db.base import utc_now
from appliance.db.state import bump_version
from appliance.domain.access.models import ApiKey
from appliance.domain.access.principal import KEY_SCOPES, Limits
from appliance.domain.access.service import check_key_spec, list_keys
from appliance.domain.slas.decisions import MAX_COUNT
from appliance.domain.slas.models import SlaTier
from appliance.domain.slas.service import list_tiers, sla_of
from appliance.domain.tenants.bootstrap import Store
from appliance.domain.tenants.key_service import create_tenant_key, revoke_tenant_key, rotate_tenant_key
from appliance.domain.tenants.service import (
    TenantWithTier,
    create_tenant,
    delete_tenant,
    find_tenant,
    list_tenants,
    update_tenant,
)
from appliance.domain.tenants.tier_service import create_tier, delete_tier, update_tier
from appliance.domain.tenants.views import key_view, tenant_view

LIMIT = click.IntRange(1, MAX_COUNT)


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
    fields = dict(_override(item) for item in overrides)

    async def work(store: Store) -> TenantWithTier:
        async with store.database.write() as session:
            return await create_tenant(
                session,
                slug=slug,
                name=slug if name is None else name,
                tier=tier,
                overrides=fields,
                trust_group=trust_group,
                actor=cli_actor(),
            )

    created = run_on_store(**where, work=work)
    click.echo(f"tenant {created.tenant.slug} created under tier {created.tier.name}; next: fairlane key create {created.tenant.slug}")


@tenant.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with each tenant's effective SLA.")
@store_options
@fails_clearly
def list_tenants_command(as_json: bool, **where: str | None) -> None:
    """Show all tenants."""

    async def work(store: Store) -> list[TenantWithTier]:
        async with store.database.read() as session:
            return await list_tenants(session)

    found = run_on_store(**where, work=work)
    if as_json:
        print_json([tenant_view(each) for each in found])
        return
    rows = [(t.tenant.slug, t.tenant.name, t.tenant.status, t.tier.name, _compact(t.tenant.overrides)) for t in found]
    print_table(("SLUG", "NAME", "STATUS", "TIER", "OVERRIDES"), rows)


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

    async def work(store: Store) -> TenantWithTier:
        async with store.database.write() as session:
            await bump_version(session)  # its lock comes before the look, as in every change
            present = (await find_tenant(session, slug)).tenant.overrides
            kept = {field: value for field, value in present.items() if field not in dropped}
            changes["overrides"] = kept | dict(_override(item) for item in overrides)
            return await update_tenant(session, slug, changes, None, cli_actor())

    updated = run_on_store(**where, work=work)
    click.echo(f"tenant {slug} is at version {updated.tenant.version}, tier {updated.tier.name}, {updated.tenant.status}")


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

    row, raw_key = run_on_store(**where, work=work)
    click.echo(f"key {row.id} of tenant {tenant_slug} with {', '.join(row.scopes)}; store it now, it is not shown again:", err=True)
    click.echo(raw_key)


@key.command("list")
@click.argument("tenant_slug", metavar="TENANT")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def list_keys_command(tenant_slug: str, as_json: bool, **where: str | None) -> None:
    """Show the keys of TENANT, revoked ones too; of each only the first and last characters."""

    async def work(store: Store) -> list[ApiKey]:
        async with store.database.read() as session:
            return await list_keys(session, (await find_tenant(session, tenant_slug)).tenant.id)

    found = run_on_store(**where, work=work)
    if as_json:
        print_json([key_view(row, tenant_slug) for row in found])
        return
    rows = [(r.id, r.name, f"{r.prefix}...{r.last4}", ",".join(r.scopes), r.expires_at, r.disabled_at) for r in found]
    print_table(("ID", "NAME", "KEY", "SCOPES", "EXPIRES", "REVOKED"), rows)


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


@click.group(short_help="SLA tiers: targets, weights, limits.")
def tier() -> None:
    """SLA tiers: targets, weights, limits; tenants refer to one and may override fields."""


@tier.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all fields.")
@store_options
@fails_clearly
def list_tiers_command(as_json: bool, **where: str | None) -> None:
    """Show all tiers."""

    async def work(store: Store) -> list[SlaTier]:
        async with store.database.read() as session:
            return await list_tiers(session)

    found = run_on_store(**where, work=work)
    if as_json:
        print_json({row.name: sla_of(row) for row in found})
        return
    rows = [(r.name, r.weight, r.priority, ",".join(r.lanes), _compact(r.ttft_ms), r.max_concurrency, r.rpm, r.tpm) for r in found]
    print_table(("NAME", "WEIGHT", "PRIORITY", "LANES", "TTFT MS", "IN FLIGHT", "RPM", "TPM"), rows)


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
    chosen = dict(_override(item) for item in fields)

    async def work(store: Store) -> SlaTier:
        async with store.database.write() as session:
            return await create_tier(session, name, chosen, cli_actor())

    run_on_store(**where, work=work)
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
    changes = dict(_override(item) for item in fields)

    async def work(store: Store) -> SlaTier:
        async with store.database.write() as session:
            return await update_tier(session, name, changes, None, cli_actor())

    click.echo(f"tier {name} is at version {run_on_store(**where, work=work).version}")


def _override(item: str) -> tuple[str, Any]:
    """`rpm=600` as a field and its value: JSON where it is JSON, else text."""
    field, equals, value = item.partition("=")
    if not equals:
        raise click.UsageError(f"--set {item!r} is not FIELD=VALUE")
    try:
        return field, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return field, value


def _compact(value: object) -> str:
    return msgspec.json.encode(value).decode() if value else "-"
