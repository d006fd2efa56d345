"""`GET /v1/requests/{id}/explain`."""

from typing import Any

from litestar import Controller, Request, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import bearer
from appliance.domain.access.principal import Scope
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.doorstep import Doorstep
from appliance.errors import ApplianceError, Unauthenticated
from appliance.problems import problem_responses
from appliance.route_access import TENANTS_OR_ADMINS
from appliance.strict_requests import sole_header
from appliance.telemetry.explain.answer import Explanation


class ExplainController(Controller):
    """For the request's own tenant, and for administrators."""

    tags = ["Explain"]
    security = [{"bearer": []}]

    @get(
        "/v1/requests/{request_id:str}/explain",
        summary="Why was this request slow?",
        opt=TENANTS_OR_ADMINS,
        responses=problem_responses(401, 403, 404),
    )
    async def explain(
        self,
        request: Request[Any, Any, Any],
        request_id: FromPath[str],
        directory: NamedDependency[Directory],
        explainer: NamedDependency[ExplainService],
        doorstep: NamedDependency[Doorstep],
    ) -> Explanation:
        """Where its time went: parts that add up to the whole, each with the tenant whose work took it, and one sentence.

        The id is that of `x-request-id` or of the answer's body. Another tenant is named to administrators only.
        """
        async with doorstep.check():
            tenant_id = viewer_of(request, directory)
        if tenant_id is not None:
            await doorstep.spend_turn(tenant_id)
        return await explainer.explain(request_id, tenant_id)


def viewer_of(request: Request[Any, Any, Any], directory: Directory) -> str | None:
    """The tenant whose requests the caller may see; None is an administrator, who sees all. Raises as `authenticate`."""
    token = bearer(sole_header(request.headers, "authorization"))
    tenant = sole_header(request.headers, "x-tenant-id")
    if not token:
        message = (
            "no credential: send the header `Authorization: Bearer KEY` with a key of the request's tenant, or an administrator's token"
        )
        raise Unauthenticated(message, code="missing_api_key")
    try:
        directory.authenticate_admin(token, Scope.ADMIN_READ)
    except ApplianceError:
        return directory.authenticate(token, tenant).tenant_id
    return None
