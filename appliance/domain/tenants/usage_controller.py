"""`GET /api/v1/usage`: JSON, or CSV for spreadsheets. It lies with the tenants because it refuses the name of one that never was."""

import csv
import io
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.db.base import utc_now
from appliance.db.database import Database
from appliance.domain.tenants.service import require_known
from appliance.domain.usage.decisions import span_of
from appliance.domain.usage.models import UsageHour, UsageMinute
from appliance.domain.usage.service import KEYS, SUMS, Resolution, read_usage
from appliance.errors import Invalid
from appliance.problems import problem_responses
from appliance.route_access import READS

MAX_ROWS = 50_000
"""A question with a longer answer is refused: ask for less at once."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """All requests that ended in the minute or hour from `began_at` with the same tenant, key, model, lane and outcome."""

    began_at: datetime
    tenant: str
    key_id: str
    model: str
    lane: str
    outcome: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all rows of the answer."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class UsageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    begin: datetime
    end: datetime
    totals: UsageTotals
    usage: list[UsageRow]


class UsageController(Controller):
    """Usage."""

    path = "/usage"
    tags = ["Usage"]

    @get(summary="Usage of tenants", opt=READS, responses=problem_responses(401, 403, 404, 503))
    async def show(
        self,
        database: NamedDependency[Database],
        tenant: FromQuery[str | None] = None,
        begin: Annotated[str | None, QueryParameter(name="from", description="default: 24 hours before `to`")] = None,
        end: Annotated[str | None, QueryParameter(name="to", description="default: now")] = None,
        resolution: FromQuery[Resolution] = "minute",
        format: FromQuery[Literal["json", "csv"]] = "json",
    ) -> Response[UsageAnswer | str]:
        """Requests and tokens by minute (kept 14 days) or hour, refused and cancelled requests too; seconds behind at most."""
        first, last = span_of(begin, end, utc_now())
        async with database.read() as session:
            answer = await usage_answer(session, resolution, first, last, tenant)
        if format == "csv":
            return Response(usage_csv(answer), media_type="text/csv; charset=utf-8")
        return Response(answer)


async def usage_answer(session: AsyncSession, resolution: Resolution, begin: datetime, end: datetime, tenant: str | None) -> UsageAnswer:
    """Usage of a span. Raises `NotFound` (no such tenant, ever) or `Invalid` (too much at once)."""
    if tenant is not None:
        await require_known(session, tenant)
    found = await read_usage(session, resolution, begin, end, tenant, MAX_ROWS + 1)
    if len(found) > MAX_ROWS:
        raise Invalid(f"this is more than {MAX_ROWS} rows: ask for a shorter span, one tenant, or resolution=hour", param="from")
    rows = [_row(each) for each in found]
    totals = UsageTotals(**{name: sum(getattr(row, name) for row in rows) for name in SUMS})
    return UsageAnswer(begin=begin, end=end, totals=totals, usage=rows)


def _row(found: UsageMinute | UsageHour) -> UsageRow:
    return UsageRow(**{name: getattr(found, name) for name in (*KEYS, *SUMS)})


def usage_csv(answer: UsageAnswer) -> str:
    """For spreadsheets."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((*KEYS, *SUMS))
    for row in answer.usage:
        writer.writerow((row.began_at.isoformat(), *map(_cell, msgspec.structs.astuple(row)[1:])))
    return text.getvalue()


def _cell(value: str | int) -> str | int:
    """A name that a spreadsheet would compute is text to it behind an apostrophe (OWASP: CSV injection)."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
