"""`fairlane audit`: what administrators changed."""

import click
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import fails_clearly, print_json, print_table, read_database, store_options
from appliance.domain.audit.controller import audit_view
from appliance.domain.audit.models import AuditEvent
from appliance.domain.audit.service import list_events, require_target


@click.group()
def audit() -> None:
    """Audit: who changed what, when and from where."""


@audit.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Newest events shown.")
@click.option("--target", help="Only this target and what belongs to it, for example tenant:acme (with its keys) or tier:standard.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
@fails_clearly
def list_command(limit: int, target: str | None, as_json: bool, **where: str | None) -> None:
    """Show changes, newest first."""

    async def work(session: AsyncSession) -> list[AuditEvent]:
        found = await list_events(session, None, limit, target, within=True)
        if target is not None and not found:
            await require_target(session, target)
        return found

    found = read_database(**where, work=work)
    if as_json:
        print_json([audit_view(row) for row in found])
        return
    rows = [(f"{r.at:%Y-%m-%d %H:%M:%S}Z", r.actor, r.source, r.action, r.target, _text(r.before), _text(r.after)) for r in found]
    print_table(("TIME", "WHO", "FROM", "WHAT", "TARGET", "BEFORE", "AFTER"), rows)


def _text(fields: object) -> str | None:
    return None if fields is None else msgspec.json.encode(fields).decode()
