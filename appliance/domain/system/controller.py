"""Health, readiness, metrics."""

import asyncio
import ipaddress
from typing import Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import bearer
from appliance.domain.access.principal import Scope
from appliance.domain.system.health import Health, LiveAnswer, ReadyAnswer
from appliance.problems import problem_responses
from appliance.telemetry.hub import Telemetry

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST.removesuffix("; charset=utf-8")
"""Litestar adds the charset; twice it would be an error to Prometheus."""


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

    @get("/livez", summary="Is the process alive?")
    async def livez(self, health: NamedDependency[Health]) -> Response[LiveAnswer]:
        """200 while the event loop turns and the engine is heard; 503 means: restart the process."""
        status, answer = health.live()
        return Response(answer, status_code=status)

    @get(["/readyz", "/health"], summary="May it get requests?")
    async def readyz(self, health: NamedDependency[Health]) -> Response[ReadyAnswer]:
        """200 when requests are taken; 503 with phase, percent and reason while warming up, without engine, and draining."""
        status, answer = health.ready()
        return Response(answer, status_code=status)

    @get("/metrics", summary="Prometheus metrics", media_type="text/plain", responses=problem_responses(401, 403))
    async def metrics(
        self,
        request: Request[Any, Any, Any],
        telemetry: NamedDependency[Telemetry],
        directory: NamedDependency[Directory],
        metrics_need_key: NamedDependency[bool],
    ) -> Response[bytes]:
        """Without a key where the server listens on loopback only; elsewhere with a key of scope `metrics`."""
        if metrics_need_key:
            directory.authenticate(bearer(request.headers.get("authorization")), None, Scope.METRICS)
        telemetry.requests.sync_tenants(directory.snapshot.policies)
        return Response(await asyncio.to_thread(telemetry.render), media_type=METRICS_MEDIA_TYPE)
