"""Health, readiness, metrics."""

import asyncio
import ipaddress
from typing import Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency

from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import bearer
from appliance.domain.system.health import Health, LiveAnswer, ReadyAnswer
from appliance.domain.system.lanes import LoadAnswer, load_answer
from appliance.problems import problem_responses
from appliance.route_access import MEASURES, PUBLIC
from appliance.strict_requests import sole_header
from appliance.telemetry.exposition import OPENMETRICS_MEDIA_TYPE, TEXT_MEDIA_TYPE, wants_openmetrics
from appliance.telemetry.hub import Telemetry


def is_loopback(host: str) -> bool:
    """Whether an address to listen on reaches this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class SystemController(Controller):
    """What load balancers, Kubernetes and Prometheus ask."""

    tags = ["System"]

    @get("/livez", summary="Is the process alive?", opt=PUBLIC)
    async def livez(self, health: NamedDependency[Health]) -> Response[LiveAnswer]:
        """200 while the event loop turns and the engine is heard; 503 means: restart the process."""
        status, answer = health.live()
        return Response(answer, status_code=status)

    @get(["/readyz", "/health"], summary="May it get requests?", opt=PUBLIC)
    async def readyz(self, health: NamedDependency[Health]) -> Response[ReadyAnswer]:
        """200 when requests are taken; 503 with phase, percent and reason while warming up, without engine, and draining."""
        status, answer = health.ready()
        return Response(answer, status_code=status)

    @get("/load", summary="How busy is it?", opt=MEASURES, responses=problem_responses(401, 403))
    async def load(
        self,
        request: Request[Any, Any, Any],
        telemetry: NamedDependency[Telemetry],
        directory: NamedDependency[Directory],
        health: NamedDependency[Health],
        metrics_need_key: NamedDependency[bool],
    ) -> LoadAnswer:
        """Queues and memory now, for autoscalers and gateways. The key rules of /metrics."""
        _require_metrics_key(request, directory, metrics_need_key)
        return load_answer(telemetry, health.ready()[1].status)

    @get("/metrics", summary="Prometheus metrics", opt=MEASURES, media_type="text/plain", responses=problem_responses(401, 403))
    async def metrics(
        self,
        request: Request[Any, Any, Any],
        telemetry: NamedDependency[Telemetry],
        directory: NamedDependency[Directory],
        metrics_need_key: NamedDependency[bool],
    ) -> Response[bytes]:
        """Without a key where the server listens on loopback only; elsewhere with `metrics_key` or a key of scope `metrics`."""
        _require_metrics_key(request, directory, metrics_need_key)
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        media_type = OPENMETRICS_MEDIA_TYPE if openmetrics else TEXT_MEDIA_TYPE
        return Response(await asyncio.to_thread(telemetry.render, openmetrics=openmetrics), media_type=media_type)


def _require_metrics_key(request: Request[Any, Any, Any], directory: Directory, needed: bool) -> None:
    if needed:
        directory.require_metrics(bearer(sole_header(request.headers, "authorization")))
