"""How the appliance is: what /livez, /readyz and /health answer."""

from collections.abc import Callable, Mapping

import msgspec

from appliance.domain.access.directory import Directory
from appliance.domain.admission.gate import Condition, Door, GateState

ENGINE_SILENCE_IS_DEATH_S = 120.0
"""The supervisor replaces a silent engine long before; beyond this the supervisor itself is broken."""


class LiveAnswer(msgspec.Struct, frozen=True):
    """`status` is ok or stuck; the age is that of the engine's last sign of life, null while none is connected."""

    status: str
    engine_heartbeat_age_s: float | None


class ReadyAnswer(msgspec.Struct, frozen=True):
    """`status` is ready, degraded (ready, but without a database or the engine of some lanes: `reason` says which), warming_up,
    engine_down or draining."""

    status: str
    phase: str
    percent: int
    reason: str


class Health:
    """Reads the gate, the directory and the engine's last sign of life."""

    def __init__(
        self,
        gate: Door,
        directory: Directory,
        heartbeat_age_s: Callable[[], float | None],
        lanes_down: Callable[[], Mapping[str, Condition]] = dict,
    ) -> None:
        """`lanes_down`: lanes whose engine is not there, and how it is with it."""
        self._gate = gate
        self._directory = directory
        self._heartbeat_age_s = heartbeat_age_s
        self._lanes_down = lanes_down

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
        flaws = [
            f"the engine of lane {lane} is being started again ({each.phase}, {each.percent} %: {each.detail})"
            for lane, each in self._lanes_down().items()
        ]
        if self._directory.flaw:
            flaws.append(self._directory.flaw)
        if flaws:
            return 200, ReadyAnswer("degraded", condition.phase, 100, "; ".join(flaws))
        return 200, ReadyAnswer("ready", condition.phase, 100, "")
