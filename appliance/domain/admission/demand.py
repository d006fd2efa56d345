"""What tenants ask of this process, admitted or not: by it, processes that share a limit divide it (`peers`)."""

import math
from collections.abc import Collection

from appliance.domain.peers.decisions import IDLE

MEMORY_S = 20.0
"""Demand so old counts a third of what comes now."""
TIGHT_S = 60.0
"""A tenant that met its limit is told of for so long."""


class Demand:
    """Running sums that forget. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._units: dict[str, float] = {}
        self._tight_until_s: dict[str, float] = {}
        self._faded_s = 0.0

    def note(self, tenant_id: str, units: float) -> None:
        """Somebody asks for so much of a tenant's limit."""
        self._units[tenant_id] = self._units.get(tenant_id, 0.0) + units

    def note_limit(self, tenant_id: str, now_s: float) -> None:
        """A request was refused for the tenant's own limit."""
        self._tight_until_s[tenant_id] = now_s + TIGHT_S

    def wants(self, others_name: Collection[str], now_s: float) -> dict[str, float]:
        """Demand of the tenants that are at their limits here, and of those that others name and that are asked for here as well."""
        ratio = math.exp((self._faded_s - now_s) / MEMORY_S) if self._faded_s else 1.0
        self._faded_s = now_s
        self._units = {tenant_id: units * ratio for tenant_id, units in self._units.items() if units * ratio >= IDLE}
        self._tight_until_s = {tenant_id: until_s for tenant_id, until_s in self._tight_until_s.items() if until_s > now_s}
        named = {*self._tight_until_s, *others_name}
        return {tenant_id: round(self._units.get(tenant_id, 0.0), 1) for tenant_id in sorted(named)}
