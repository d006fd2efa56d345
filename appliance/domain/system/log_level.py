"""`/api/v1/log-level`: what this process logs, changed while it runs."""

import msgspec
from litestar import Controller, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody

from appliance.db.database import Database
from appliance.domain.audit.service import Actor, record
from appliance.logs import Level, LogLevel
from appliance.problems import problem_responses
from appliance.route_access import READS, WRITES


class LogLevelBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least severe line that is written."""

    level: Level


class LogLevelController(Controller):
    """Of the process that answers, until it ends: the next start begins with `log_level` of the settings."""

    path = "/log-level"
    tags = ["System"]

    @get(summary="Show the log level", opt=READS, responses=problem_responses(401, 403))
    async def show(self, log_level: NamedDependency[LogLevel]) -> LogLevelBody:
        """The least severe line that this process writes."""
        return LogLevelBody(log_level.name)

    @put(summary="Change the log level", opt=WRITES, responses=problem_responses(401, 403, 415, 503))
    async def change(
        self,
        data: JSONBody[LogLevelBody],
        log_level: NamedDependency[LogLevel],
        database: NamedDependency[Database],
        actor: NamedDependency[Actor],
    ) -> LogLevelBody:
        """From the next line on. `debug` adds lines about requests, with no text of theirs unless `log_prompts` is set."""
        async with database.write() as session:
            record(session, actor, "log_level.update", "log-level", {"level": log_level.name}, {"level": data.level})
        log_level.name = data.level
        return data
