"""For administrators: slow requests, what the tails are made of, service level objectives."""

from typing import Annotated

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from appliance.domain.access.directory import Directory
from appliance.problems import problem_responses
from appliance.route_access import READS, WRITES
from appliance.telemetry.explain.review import KEPT_SLOW, Interference, SlowRequest, TailView
from appliance.telemetry.flight.recorder import FlightRecorder
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.slo import SloView


class SlowAnswer(msgspec.Struct, frozen=True):
    """Newest first. `unexplained`: slow ones of which there were too many at once."""

    slow: list[SlowRequest]
    unexplained: int


class TailAnswer(msgspec.Struct, frozen=True):
    tails: list[TailView]
    interference: list[Interference]


class SloAnswer(msgspec.Struct, frozen=True):
    slos: list[SloView]


class DumpAnswer(msgspec.Struct, frozen=True):
    """A bundle on the server's disk."""

    file: str
    steps: int
    requests: int


class DumpController(Controller):
    """`/api/v1/dump`."""

    path = "/dump"
    tags = ["Explain"]

    @post(opt=WRITES, summary="Write the last minute to a file", status_code=200, responses=problem_responses(401, 403, 415))
    async def dump(self, recorder: NamedDependency[FlightRecorder]) -> DumpAnswer:
        """For `fairlane explain` and `fairlane trace`. Asked again within 10 s it names the file it has just made, so that it may be an
        alert's webhook; the body is not read. Ten files are kept."""
        made = await recorder.dump("asked")
        return DumpAnswer(str(made.path), made.num_steps, made.num_requests)


class SlowController(Controller):
    """`/api/v1/slow`."""

    path = "/slow"
    tags = ["Explain"]

    @get(
        opt=READS, summary="Requests that missed a target, failed, or were their lane's slowest", responses=problem_responses(401, 403, 404)
    )
    async def list(
        self,
        telemetry: NamedDependency[Telemetry],
        directory: NamedDependency[Directory],
        tenant: FromQuery[str | None] = None,
        limit: Annotated[int, QueryParameter(ge=1, le=KEPT_SLOW)] = 50,
    ) -> SlowAnswer:
        """With the sentence of `explain` for each. The newest 500 are kept, a removed tenant's too."""
        found = telemetry.reviewer.slow(tenant, limit)
        if tenant is not None and not found:
            directory.snapshot.require_tenant(tenant, "tenant")
        return SlowAnswer(found, telemetry.reviewer.num_skipped)


class TailController(Controller):
    """`/api/v1/tail`."""

    path = "/tail"
    tags = ["Explain"]

    @get(opt=READS, summary="What the slowest hundredth is made of, and who costs whom time", responses=problem_responses(401, 403))
    async def show(self, telemetry: NamedDependency[Telemetry]) -> TailAnswer:
        """Seconds by part, for each lane and SLO; and seconds that slow requests of one tenant spent on another's work. A lane has a
        slowest hundredth from its 101st request since the start on; `/api/v1/slow` has those that missed a target before."""
        return TailAnswer(telemetry.reviewer.tails(), telemetry.reviewer.interference())


class SloController(Controller):
    """`/api/v1/slo`."""

    path = "/slo"
    tags = ["Explain"]

    @get(opt=READS, summary="Objectives: attainment, budget left, burn rate", responses=problem_responses(401, 403, 404))
    async def list(
        self, telemetry: NamedDependency[Telemetry], directory: NamedDependency[Directory], tenant: FromQuery[str | None] = None
    ) -> SloAnswer:
        """Each tenant's targets by lane, counted against the exact target. Attainment and budget are those of three days."""
        if tenant is not None:
            directory.snapshot.require_tenant(tenant, "tenant")
        return SloAnswer(telemetry.slo.views(tenant))
