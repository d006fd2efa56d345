"""`GET /api/v1/usage`: JSON, or CSV for spreadsheets."""

import csv
import io
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from appliance.db.base import utc_now
from appliance.db.database import Database
from appliance.domain.usage.decisions import span_of
from appliance.domain.usage.models import UsageHour, UsageMinute
from appliance.domain.usage.service import KEYS, SUMS, Resolution, read_usage
from appliance.errors import Invalid
from appliance.problems import problem_responses
from appliance.route_access import READS

MAX_ROWS = 50_000
"""A question with a longer answer is refused: ask for less at once."""


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

    @get(summary="Usage of tenants", opt=READS, responses=problem_responses(401, 403, 503))
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
            found = await read_usage(session, resolution, first, last, tenant, MAX_ROWS + 1)
        if len(found) > MAX_ROWS:
            raise Invalid(f"this is more than {MAX_ROWS} rows: ask for a shorter span, one tenant, or resolution=hour", param="from")
        rows = [_row(each) for each in found]
        if format == "csv":
            return Response(_csv(rows), media_type="text/csv; charset=utf-8")
        totals = UsageTotals(**{name: sum(getattr(row, name) for row in rows) for name in SUMS})
        return Response(UsageAnswer(begin=first, end=last, totals=totals, usage=rows))


def _row(found: UsageMinute | UsageHour) -> UsageRow:
    return UsageRow(**{name: getattr(found, name) for name in (*KEYS, *SUMS)})


def _csv(rows: list[UsageRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow((*KEYS, *SUMS))
    for row in rows:
        writer.writerow((row.began_at.isoformat(), *msgspec.structs.astuple(row)[1:]))
    return text.getvalue()
