"""`/api/v1/config`: export, plan, apply."""

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from appliance.db.database import Database
from appliance.domain.access.directory import Directory
from appliance.domain.audit.service import Actor
from appliance.domain.configuration.decisions import Configuration, Plan
from appliance.domain.configuration.service import apply_configuration, plan_configuration, read_configuration
from appliance.problems import problem_responses
from appliance.route_access import READS, WRITES


class ExportedConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """All tiers and tenants at a version of the database."""

    version: int
    config: Configuration


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document, and whether what it does not name goes."""

    config: Configuration
    prune: bool = False


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document as in a plan; `version` is the plan's, 409 where the database has moved on since; null does not ask."""

    config: Configuration
    prune: bool = False
    version: int | None = None


class ConfigurationController(Controller):
    """Configuration as code."""

    path = "/config"
    tags = ["Configuration"]

    @get(summary="Export the configuration", opt=READS, responses=problem_responses(401, 403, 503))
    async def export(self, database: NamedDependency[Database]) -> ExportedConfiguration:
        """All tiers and tenants as one document, without keys and secrets; of each what is not at its default."""
        async with database.read() as session:
            version, config = await read_configuration(session)
        return ExportedConfiguration(version=version, config=config)

    @post("/plan", summary="Compare with a document", opt=READS, status_code=200, responses=problem_responses(401, 403, 409, 415, 503))
    async def plan(self, data: JSONBody[PlanRequest], database: NamedDependency[Database]) -> Plan:
        """What it would take to bring the database to a document. Changes nothing."""
        async with database.read() as session:
            return await plan_configuration(session, data.config, prune=data.prune)

    @post("/apply", summary="Apply a document", opt=WRITES, status_code=200, responses=problem_responses(401, 403, 404, 409, 415, 503))
    async def apply(
        self,
        data: JSONBody[ApplyRequest],
        database: NamedDependency[Database],
        directory: NamedDependency[Directory],
        actor: NamedDependency[Actor],
    ) -> Plan:
        """Bring the database to a document, all of it or nothing; again changes nothing. Requests are judged by it from now on."""
        async with database.write() as session:
            plan = await apply_configuration(session, data.config, prune=data.prune, version=data.version, actor=actor)
        await directory.refresh()
        return plan
