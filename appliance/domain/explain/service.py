"""Finds a request, running or ended, and explains it."""

import asyncio
from collections.abc import Callable

from appliance.errors import NotFound
from appliance.telemetry.explain.answer import Explanation, explain
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
        wanted = raw_id(request_id)
        async with self._turn:
            running = self._running(wanted)
            report = running or self._telemetry.archive.find(wanted)
            if report is None or (tenant_id is not None and report.tenant_id != tenant_id):
                raise self._unknown(wanted)
            recorded = self._telemetry.recorded(report)
            if report.submitted_ns and report.ended_ns < recorded.since_ns:
                raise self._unknown(wanted)
            names = self._names_tenants or tenant_id is None
            return await asyncio.to_thread(explain, report, recorded, is_running=running is not None, names_tenants=names)

    def _unknown(self, request_id: str) -> NotFound:
        """The same words whether it is forgotten, another tenant's, or never was."""
        ledger, archive = self._telemetry.ledger, self._telemetry.archive
        return NotFound(
            f"no request {request_id[:80]!r} of this tenant is remembered: the ledger keeps the newest {ledger.kept_steps} steps"
            f" ({ledger.span_s:.0f} s at present) and {archive.kept_requests} requests",
            param="request_id",
            code="request_not_found",
        )
