"""Whether the appliance takes requests at all: it warms up, is open, lost its engine, or drains."""

from dataclasses import dataclass
from enum import StrEnum

from appliance.errors import Unavailable


class GateState(StrEnum):
    """The values but `open` are also the error codes and rejection reasons."""

    WARMING_UP = "warming_up"
    OPEN = "open"
    ENGINE_DOWN = "engine_down"
    DRAINING = "draining"


RETRY_AFTER_S = {GateState.WARMING_UP: 5.0, GateState.ENGINE_DOWN: 5.0, GateState.DRAINING: 10.0}
"""How long a refused client should wait: a restart with warm caches, another replica taking over."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The gate at a moment. `phase` is the engine's start-up phase, `percent` how much of start-up is done."""

    state: GateState
    phase: str
    percent: int
    detail: str


class Gate:
    """Written by the supervisor and by shutdown, read by every request and by /readyz."""

    def __init__(self) -> None:
        self.condition = Condition(GateState.WARMING_UP, "start", 0, "the engine is starting")

    def warm_up(self, phase: str, percent: int, detail: str) -> None:
        """A step of the first start; also of a restart, which stays `engine_down` until it is open again."""
        state = GateState.WARMING_UP if self.condition.state is GateState.OPEN else self.condition.state
        self._set(Condition(state, phase, percent, detail))

    def open(self) -> None:
        self._set(Condition(GateState.OPEN, "ready", 100, "ready"))

    def lose_engine(self, reason: str) -> None:
        self._set(Condition(GateState.ENGINE_DOWN, "restart", 0, reason))

    def drain(self) -> None:
        """From here on nothing new enters, whatever the engine does."""
        self._set(Condition(GateState.DRAINING, "drain", 100, "the server is shutting down"))

    def require_open(self) -> None:
        """Raises `Unavailable` unless requests may enter."""
        condition = self.condition
        if condition.state is not GateState.OPEN:
            raise Unavailable(
                f"not serving: {condition.detail} ({condition.phase}, {condition.percent} %); try again later",
                reason=condition.state.value,
                retry_after_s=RETRY_AFTER_S[condition.state],
            )

    def _set(self, condition: Condition) -> None:
        if self.condition.state is not GateState.DRAINING:
            self.condition = condition
