"""How the appliance is: what /livez, /readyz and /health answer."""

from collections.abc import Callable

import msgspec

from appliance.domain.access.directory import Directory
from appliance.domain.admission.gate import Gate, GateState

ENGINE_SILENCE_IS_DEATH_S = 120.0
"""The supervisor replaces a silent engine long before; beyond this the supervisor itself is broken."""


class LiveAnswer(msgspec.Struct, frozen=True):
    """`status` is ok or stuck; the age is that of the engine's last sign of life, null while none is connected."""

    status: str
    engine_heartbeat_age_s: float | None


class ReadyAnswer(msgspec.Struct, frozen=True):
    """`status` is ready, degraded (ready, without the database), warming_up, engine_down or draining."""

    status: str
    phase: str
    percent: int
    reason: str


class Health:
    """Reads the gate, the directory and the engine's last sign of life."""

    def __init__(self, gate: Gate, directory: Directory, heartbeat_age_s: Callable[[], float | None]) -> None:
        self._gate = gate
        self._directory = directory
        self._heartbeat_age_s = heartbeat_age_s

    def live(self) -> tuple[int, LiveAnswer]:
        """HTTP status and body. That it answers at all shows that the event loop turns."""
        age_s = self._heartbeat_age_s()
        is_stuck = age_s is not None and age_s > ENGINE_SILENCE_IS_DEATH_S
        return (503 if is_stuck else 200), LiveAnswer("stuck" if is_stuck else "ok", None if age_s is None else round(age_s, 3))

    def ready(self) -> tuple[int, ReadyAnswer]:
        """HTTP status and body: 200 when requests are taken."""
        condition = self._gate.condition
        if condition.state is not GateState.OPEN:
            return 503, ReadyAnswer(condition.state.value, condition.phase, condition.percent, condition.detail)
        if self._directory.degraded:
            return 200, ReadyAnswer("degraded", condition.phase, 100, "the database does not answer; keys and tenants are as last read")
        return 200, ReadyAnswer("ready", condition.phase, 100, "")
