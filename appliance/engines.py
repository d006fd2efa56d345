"""All engine replicas of this process: started one after the other, watched, spoken of as one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.runtime import Runtime
from appliance.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Engine:
    """One replica: what its life does to us, and who keeps it alive."""

    runtime: Runtime
    supervisor: Supervisor


class Engines:
    """The replicas in the order of configuration; at least one."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def num_starts(self) -> dict[str, int]:
        """Processes that came to take requests, by replica."""
        return {engine.runtime.engine: engine.runtime.num_starts for engine in self._engines}

    def are_up(self) -> dict[str, bool]:
        """Which replicas take requests."""
        return {engine.runtime.engine: engine.runtime.is_up for engine in self._engines}

    @property
    def heartbeat_age_s(self) -> float | None:
        """Since the last sign of life of the engine that is silent longest; None while none is connected."""
        return max((age_s for engine in self._engines if (age_s := engine.runtime.heartbeat_age_s) is not None), default=None)

    def pids(self) -> list[int]:
        """Of the engines' processes."""
        return [pid for engine in self._engines if (pid := engine.supervisor.pid) is not None]

    async def run(self) -> None:
        """Keep all of them running until cancelled. Raises `StartFailed`.

        Each starts when the one before it has come up: it finds compiled what that one compiled, and no two measure at once what
        memory is free and what a step takes.
        """
        tasks = [asyncio.create_task(self._run(index)) for index in range(len(self._engines))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def _run(self, index: int) -> None:
        if index:
            await self._engines[index - 1].runtime.came_up.wait()
        await self._engines[index].supervisor.run()
