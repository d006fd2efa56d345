"""An administrator ends a request that runs: `/api/v1/requests/{id}/cancel`."""

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from appliance.db.database import Database
from appliance.domain.audit.service import Actor, record
from appliance.domain.inference.backend import Backend
from appliance.errors import EndedByOperator, NotFound
from appliance.problems import problem_responses
from appliance.route_access import WRITES


class CancelAnswer(msgspec.Struct, frozen=True):
    """Which request was ended, and whose it was."""

    id: str
    tenant: str


class Canceller:
    """Ends requests, and writes down who did."""

    def __init__(self, backend: Backend, database: Database) -> None:
        self._backend = backend
        self._database = database

    async def cancel(self, request_id: str, actor: Actor) -> CancelAnswer:
        """Its client gets an error that says so. Raises `NotFound` where it does not run (any more), `Unavailable` without audit."""
        report = self._backend.report_of(request_id)
        if report is None:
            raise self._not_running(request_id)
        async with self._database.write() as session:
            record(session, actor, "request.cancel", f"tenant:{report.tenant_id}", None, {"request": request_id, "lane": report.lane})
        message = f"an operator of this server ended the request {request_id}: ask them before sending it again"
        if not self._backend.cancel(request_id, EndedByOperator(message)):
            raise self._not_running(request_id)
        return CancelAnswer(request_id, report.tenant_id)

    def _not_running(self, request_id: str) -> NotFound:
        return NotFound(f"no request {request_id[:80]!r} is running here: it may have ended meanwhile", code="request_not_found")


class RequestController(Controller):
    """Requests in flight; what became of one is told by `GET /v1/requests/{id}/explain`."""

    path = "/requests"
    tags = ["Explain"]

    @post(
        "/{request_id:str}/cancel",
        summary="End a request that runs",
        opt=WRITES,
        status_code=200,
        responses=problem_responses(401, 403, 404, 415, 503),
    )
    async def cancel(self, request_id: FromPath[str], canceller: NamedDependency[Canceller], actor: NamedDependency[Actor]) -> CancelAnswer:
        """The id is that of `x-request-id`. Its client is answered 503 `cancelled_by_operator`, in a stream as an
        error event, and told not to try again."""
        return await canceller.cancel(request_id, actor)
