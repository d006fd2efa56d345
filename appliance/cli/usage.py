"""`fairlane usage`: requests and tokens by tenant and time, as `GET /api/v1/usage` answers."""

from typing import Literal, get_args

import click
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.cli.common import fails_clearly, print_json, print_table, read_database, store_options
from appliance.db.base import utc_now
from appliance.domain.tenants.usage_controller import UsageAnswer, usage_answer, usage_csv
from appliance.domain.usage.decisions import span_of
from appliance.domain.usage.service import SUMS, Resolution

COLUMNS = ("tenant", "key_id", "model", "lane", "outcome", *SUMS)


@click.command("usage", short_help="Show requests and tokens of tenants.")
@click.option("--tenant", metavar="SLUG", help="Only this tenant, also a removed one.")
@click.option("--from", "begin", metavar="TIME", help="For example 2030-01-31T00:00:00Z; default: 24 hours before --to.")
@click.option("--to", "end", metavar="TIME", help="Up to then; default: now.")
@click.option("--resolution", type=click.Choice(get_args(Resolution)), default="hour", show_default=True,
              help="Minutes are kept for 14 days, hours for ever.")  # fmt: skip
@click.option("--json", "form", flag_value="json", help="Print JSON, as the API answers.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
@store_options
@fails_clearly
def usage_command(
    tenant: str | None, begin: str | None, end: str | None, resolution: Resolution, form: Literal["json", "csv"] | None, **where: str | None
) -> None:
    """Show requests and tokens by tenant, key, model, lane and outcome; refused and cancelled requests too.

    A running server writes what it counted within seconds.
    """
    first, last = span_of(begin, end, utc_now())

    async def work(session: AsyncSession) -> UsageAnswer:
        return await usage_answer(session, resolution, first, last, tenant)

    found = read_database(**where, work=work)
    if form == "json":
        print_json(found)
    elif form == "csv":
        click.echo(usage_csv(found), nl=False)
    else:
        rows = [(f"{row.began_at:%Y-%m-%d %H:%M}Z", *(getattr(row, name) for name in COLUMNS)) for row in found.usage]
        sums = ("all", *[None] * (len(COLUMNS) - len(SUMS)), *(getattr(found.totals, name) for name in SUMS))
        print_table(("BEGAN", *(name.upper().replace("_", " ") for name in COLUMNS)), [*rows, sums])
