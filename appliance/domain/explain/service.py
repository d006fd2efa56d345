"""Finds a request, running or ended, and explains it."""

import asyncio
from collections.abc import Callable

from appliance.errors import NotFound
from appliance.telemetry.explain.answer import Explanation, explain
from appliance.telemetry.explain.pieces import Recorded
from appliance.telemetry.explain.timeline import Timeline, timeline_of
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import RequestReport

ID_PREFIX = "req_"


def raw_id(request_id: str) -> str:
    """The id of `x-request-id` behind a body's id: `cmpl-req_1` is `req_1`."""
    _, prefix, rest = request_id.rpartition(ID_PREFIX)
    return prefix + rest


class ExplainService:
    """One explanation at a time, in a thread: a long request's takes milliseconds."""

    def __init__(self, telemetry: Telemetry, running: Callable[[str], RequestReport | None], *, names_tenants: bool) -> None:
        """`running` finds the report so far of a request that goes on. `names_tenants`: to tenants, too."""
        self._telemetry = telemetry
        self._running = running
        self._names_tenants = names_tenants
        self._turn = asyncio.Lock()

    async def explain(self, request_id: str, tenant_id: str | None) -> Explanation:
        """Why a request took its time, as `tenant_id` may see it (None: an administrator). Raises `NotFound`."""
        async with self._turn:
            report, recorded, is_running = self._found(raw_id(request_id), tenant_id)
            names = self._names_tenants or tenant_id is None
            return await asyncio.to_thread(explain, report, recorded, is_running=is_running, names_tenants=names)

    async def timeline(self, request_id: str) -> tuple[RequestReport, Timeline]:
        """A request as an administrator may see it, drawn. Raises `NotFound`."""
        async with self._turn:
            report, recorded, is_running = self._found(raw_id(request_id), None)
            return report, await asyncio.to_thread(timeline_of, report, recorded, is_running=is_running)

    def _found(self, request_id: str, tenant_id: str | None) -> tuple[RequestReport, Recorded, bool]:
        """The report, the steps of its time, and whether it goes on."""
        running = self._running(request_id)
        report = running or self._telemetry.archive.find(request_id)
        if report is None or (tenant_id is not None and report.tenant_id != tenant_id):
            raise self._unknown(request_id)
        recorded = self._telemetry.recorded(report)
        if report.submitted_ns and report.ended_ns < recorded.since_ns:
            raise self._unknown(request_id)
        return report, recorded, running is not None

    def _unknown(self, request_id: str) -> NotFound:
        """The same words whether it is forgotten, another tenant's, or never was."""
        ledger, archive = self._telemetry.ledger, self._telemetry.archive
        return NotFound(
            f"no request {request_id[:80]!r} of this tenant is remembered: the ledger keeps the newest {ledger.kept_steps} steps"
            f" ({ledger.span_s:.0f} s at present) and {archive.kept_requests} requests",
            param="request_id",
            code="request_not_found",
        )
