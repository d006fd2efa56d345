"""Whether the appliance takes requests at all: it warms up, is open, lost its engine, or drains."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from appliance.errors import Unavailable
from appliance.replicas import Replica


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


class Door(Protocol):
    """What requests and /readyz see of one gate, or of several as one."""

    @property
    def condition(self) -> Condition:
        """Now."""
        ...

    def require_open(self) -> None:
        """Raises `Unavailable` unless requests may enter."""
        ...


class Gate:
    """One engine's. Written by the supervisor and by shutdown."""

    def __init__(self) -> None:
        self.was_open = False
        self.condition = Condition(GateState.WARMING_UP, "start", 0, "the engine is starting")

    def warm_up(self, phase: str, percent: int, detail: str) -> None:
        """A step of the first start; also of a restart, which stays `engine_down` until it is open again."""
        state = GateState.WARMING_UP if self.condition.state is GateState.OPEN else self.condition.state
        self._set(Condition(state, phase, percent, detail))

    def open(self) -> None:
        self.was_open = True
        self._set(Condition(GateState.OPEN, "ready", 100, "ready"))

    def lose_engine(self, reason: str) -> None:
        self._set(Condition(GateState.ENGINE_DOWN, "restart", 0, reason))

    def drain(self) -> None:
        """From here on nothing new enters, whatever the engine does."""
        self._set(Condition(GateState.DRAINING, "drain", 100, "the server is shutting down"))

    def require_open(self) -> None:
        """Raises `Unavailable` unless requests may enter."""
        _require_open(self.condition)

    def _set(self, condition: Condition) -> None:
        if self.condition.state is not GateState.DRAINING:
            self.condition = condition


class Gates:
    """The gates of all replicas as one: it opens when every one is open, and from then on stays open while one of them is."""

    def __init__(self, gates: Mapping[Replica, Gate]) -> None:
        self._gates = gates

    @property
    def condition(self) -> Condition:
        conditions = [gate.condition for gate in self._gates.values()]
        shut = [condition for condition in conditions if condition.state is not GateState.OPEN]
        are_all_up = all(gate.was_open for gate in self._gates.values())
        draining = next((condition for condition in shut if condition.state is GateState.DRAINING), None)
        if draining is not None:
            return draining
        if not shut or (are_all_up and len(shut) < len(conditions)):
            return next(condition for condition in conditions if condition.state is GateState.OPEN)
        return replace(shut[0], percent=sum(condition.percent for condition in conditions) // len(conditions))

    @property
    def down(self) -> dict[str, Condition]:
        """Lanes whose engine is not there, while others are."""
        return {
            lane: gate.condition
            for replica, gate in self._gates.items()
            for lane in replica.lanes
            if gate.condition.state is not GateState.OPEN
        }

    def require_open(self) -> None:
        """Raises `Unavailable` unless requests of some lane may enter."""
        _require_open(self.condition)

    def drain(self) -> None:
        """As `Gate.drain`, of all."""
        for gate in self._gates.values():
            gate.drain()


def _require_open(condition: Condition) -> None:
    if condition.state is not GateState.OPEN:
        raise Unavailable(
            f"not serving: {condition.detail} ({condition.phase}, {condition.percent} %); try again later",
            reason=condition.state.value,
            retry_after_s=RETRY_AFTER_S[condition.state],
        )
