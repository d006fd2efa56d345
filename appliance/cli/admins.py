"""`fairlane admin`: administrators on the database, also while the server runs; for whoever can read the data directory."""

import sys

import click
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import (
    SEEN_AT_ONCE,
    cli_actor,
    fails_clearly,
    make_store_and_run,
    parse_time,
    print_json,
    print_table,
    read_database,
    run_on_store,
    store_options,
)
from appliance.domain.access.principal import Role
from appliance.domain.admins.decisions import check_admin_name, check_password
from appliance.domain.admins.models import AdminToken, AdminUser
from appliance.domain.admins.passwords import Passwords
from appliance.domain.admins.service import AdminChange, create_admin, delete_admin, find_admin_by_name, list_admins, update_admin
from appliance.domain.admins.token_service import create_token, list_tokens, revoke_token
from appliance.domain.admins.views import admin_view, token_view
from appliance.domain.tenants.bootstrap import Store

ROLE = click.Choice([role.value for role in Role])
FROM_STDIN = click.option("--password-stdin", is_flag=True, help="Read the password from standard input instead of asking for it.")


@click.group(epilog=SEEN_AT_ONCE)
def admin() -> None:
    """Administrators: who may read, who may change, who manages them."""


@admin.command("create")
@click.argument("name")
@click.option(
    "--role", type=ROLE, default="viewer", show_default=True, help="viewer reads, operator changes, owner manages administrators."
)
@click.option("--no-password", is_flag=True, help="No login: tokens only.")
@FROM_STDIN
@store_options
@fails_clearly
def create_command(name: str, role: str, no_password: bool, password_stdin: bool, **where: str | None) -> None:
    """Add the administrator NAME and ask for a password.

    \b
    fairlane admin create alice --role owner
    """
    check_admin_name(name)
    password = None if no_password else check_password(_read_password(password_stdin), name)

    async def work(store: Store) -> AdminUser:
        password_hash = None if password is None else await Passwords().hash(password)
        async with store.database.write() as session:
            return await create_admin(session, name, Role(role), password_hash, cli_actor())

    row = make_store_and_run(**where, work=work)
    click.echo(f"administrator {row.name} ({row.role}) created as {row.id}; a token for programs: fairlane admin token {row.name}")


@admin.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def list_command(as_json: bool, **where: str | None) -> None:
    """Show all administrators."""

    async def work(session: AsyncSession) -> list[AdminUser]:
        return await list_admins(session)

    found = read_database(**where, work=work)
    if as_json:
        print_json([admin_view(row) for row in found])
        return
    rows = [(r.name, r.role, "yes" if r.password_hash else "no", r.disabled_at, r.id) for r in found]
    print_table(("NAME", "ROLE", "PASSWORD", "DISABLED", "ID"), rows)


@admin.command("role")
@click.argument("name")
@click.argument("role", type=ROLE)
@store_options
@fails_clearly
def role_command(name: str, role: str, **where: str | None) -> None:
    """Give NAME another role; its sessions end, its tokens can do no more than the role."""
    _change(name, AdminChange(role=Role(role)), where)
    click.echo(f"administrator {name} is {role}")


@admin.command("disable")
@click.argument("name")
@store_options
@fails_clearly
def disable_command(name: str, **where: str | None) -> None:
    """Refuse the password and all tokens of NAME from now on."""
    _change(name, AdminChange(disabled=True), where)
    click.echo(f"administrator {name} is disabled")


@admin.command("enable")
@click.argument("name")
@store_options
@fails_clearly
def enable_command(name: str, **where: str | None) -> None:
    """Let NAME in again."""
    _change(name, AdminChange(disabled=False), where)
    click.echo(f"administrator {name} is enabled")


@admin.command("password")
@click.argument("name")
@FROM_STDIN
@store_options
@fails_clearly
def password_command(name: str, password_stdin: bool, **where: str | None) -> None:
    """Ask for a new password of NAME; its sessions end."""
    password = check_password(_read_password(password_stdin), check_admin_name(name))

    async def work(store: Store) -> AdminUser:
        change = AdminChange(password_hash=await Passwords().hash(password))
        async with store.database.write() as session:
            return await update_admin(session, (await find_admin_by_name(session, name)).id, change, None, cli_actor())

    run_on_store(**where, work=work)
    click.echo(f"the password of administrator {name} is changed")


@admin.command("delete")
@click.argument("name")
@store_options
@fails_clearly
def delete_command(name: str, **where: str | None) -> None:
    """Remove NAME with all sessions and tokens; the audit stays."""

    async def work(store: Store) -> None:
        async with store.database.write() as session:
            await delete_admin(session, (await find_admin_by_name(session, name)).id, cli_actor())

    run_on_store(**where, work=work)
    click.echo(f"administrator {name} is removed")


@admin.command("token")
@click.argument("name")
@click.option("--for", "purpose", default="cli", show_default=True, help="What the token is for.")
@click.option("--role", type=ROLE, help="No more than NAME's own role; default: that.")
@click.option("--expires", metavar="TIME", help="Refused from then on, for example 2030-01-31T12:00:00Z; default: never.")
@store_options
@fails_clearly
def token_command(name: str, purpose: str, role: str | None, expires: str | None, **where: str | None) -> None:
    """Make a token of NAME and print it on stdout, alone; it is not stored and not shown again.

    \b
    TOKEN=$(fairlane admin token alice --role viewer)
    """
    expires_at = parse_time("--expires", expires)
    wanted = None if role is None else Role(role)

    async def work(store: Store) -> tuple[AdminToken, str]:
        async with store.database.write() as session:
            admin_id = (await find_admin_by_name(session, name)).id
            return await create_token(
                session, admin_id, name=purpose, role=wanted, expires_at=expires_at, maker=None, pepper=store.pepper, actor=cli_actor()
            )

    row, raw_token = run_on_store(**where, work=work)
    click.echo(f"token {row.id} of {name} as {row.role}; store it now, it is not shown again:", err=True)
    click.echo(raw_token)


@admin.command("tokens")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def tokens_command(name: str, as_json: bool, **where: str | None) -> None:
    """Show the tokens of NAME, revoked ones too; of each only the first and last characters."""

    async def work(session: AsyncSession) -> list[AdminToken]:
        return await list_tokens(session, (await find_admin_by_name(session, name)).id)

    found = read_database(**where, work=work)
    if as_json:
        print_json([token_view(row) for row in found])
        return
    rows = [(r.id, r.name, f"{r.prefix}...{r.last4}", r.role, r.expires_at, r.disabled_at) for r in found]
    print_table(("ID", "FOR", "TOKEN", "ROLE", "EXPIRES", "REVOKED"), rows)


@admin.command("revoke-token")
@click.argument("name")
@click.argument("token_id")
@store_options
@fails_clearly
def revoke_token_command(name: str, token_id: str, **where: str | None) -> None:
    """Refuse the token TOKEN_ID of NAME from now on (`fairlane admin tokens` shows ids). Again is no error."""

    async def work(store: Store) -> AdminToken:
        async with store.database.write() as session:
            return await revoke_token(session, (await find_admin_by_name(session, name)).id, token_id, cli_actor())

    run_on_store(**where, work=work)
    click.echo(f"token {token_id} of {name} is revoked")


def _change(name: str, change: AdminChange, where: dict[str, str | None]) -> None:
    async def work(store: Store) -> AdminUser:
        async with store.database.write() as session:
            return await update_admin(session, (await find_admin_by_name(session, name)).id, change, None, cli_actor())

    run_on_store(**where, work=work)


def _read_password(from_stdin: bool) -> str:
    """From standard input, its line end off, or asked for twice without showing it."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    try:
        return click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(
            "there is no terminal to ask for the password on: give it with --password-stdin (in a container: a terminal by `exec -it`)"
        ) from None
