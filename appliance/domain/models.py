"""All tables, for migrations and schema checks: importing this module fills `Base.metadata`."""

from appliance.db.base import Base
from appliance.db.state import InstallationState
from appliance.domain.access.models import ApiKey
from appliance.domain.admins.models import AdminSession, AdminToken, AdminUser
from appliance.domain.audit.models import AuditEvent
from appliance.domain.peers.models import ServingProcess
from appliance.domain.slas.models import SlaTier
from appliance.domain.tenants.models import Tenant
from appliance.domain.usage.models import UsageHour, UsageMinute, UsageWriter

MODELS: tuple[type[Base], ...] = (
    InstallationState,
    SlaTier,
    Tenant,
    ApiKey,
    UsageMinute,
    UsageHour,
    UsageWriter,
    AuditEvent,
    AdminUser,
    AdminSession,
    AdminToken,
    ServingProcess,
)
