"""How the engines' last starts went: each phase, and when each program was compiled and first called."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from engine.wire import Progress

MAX_EARLIER = 20


@dataclass(frozen=True, slots=True)
class Phase:
    """From the beginning of the start, in seconds. `end_s` is None while it goes on."""

    name: str
    begin_s: float
    end_s: float | None


@dataclass(slots=True)
class Start:
    """One engine's."""

    engine: str
    began_s: float
    """Of a clock that only grows."""
    began_at: datetime
    phases: dict[str, Phase] = field(default_factory=dict)
    programs: dict[str, dict[str, float]] = field(default_factory=dict)
    """By shape: after how many seconds it was compiled, and first called."""

    @property
    def seconds(self) -> float:
        return max((phase.end_s or phase.begin_s for phase in self.phases.values()), default=0.0)


class StartLog:
    """Of each engine its last start; and the starts before them."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._wall_s = wall_s
        self.starts: dict[str, Start] = {}
        self.earlier: deque[Start] = deque(maxlen=MAX_EARLIER)
        """Newest first."""

    def note(self, engine: str, step: Progress) -> None:
        """An engine got on. A first phase that comes again is a new start."""
        start = self.starts.get(engine)
        if start is None or (step.phase == "prepare" and not step.done):
            if start is not None:
                self.earlier.appendleft(start)
            start = self.starts[engine] = Start(engine, self._clock_s(), datetime.fromtimestamp(self._wall_s(), UTC))
        at_s = self._clock_s() - start.began_s
        known = start.phases.get(step.phase)
        begin_s = known.begin_s if known else start.seconds  # what an engine does before it reports a phase belongs to it
        is_over = step.total > 0 and step.done >= step.total
        start.phases[step.phase] = Phase(step.phase, begin_s, at_s if is_over else known.end_s if known else None)
        if step.phase in ("compile", "warmup") and step.done and step.detail:
            start.programs.setdefault(step.detail, {})[step.phase] = at_s
