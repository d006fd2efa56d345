"""Takes a sample of our own metrics now and then."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog
from prometheus_client.registry import Collector

from appliance.telemetry.exposition import Client
from appliance.telemetry.history import History
from appliance.telemetry.readings import read_slowly

log = structlog.get_logger(__name__)


class Sampler:
    """Fills a history every `interval_s` seconds."""

    def __init__(self, history: History, collectors: Callable[[], Sequence[Client | Collector]], interval_s: float) -> None:
        self._history = history
        self._collectors = collectors
        self._interval_s = interval_s

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await asyncio.to_thread(self.sample)
            except Exception as error:  # a defect of ours costs this sample, and no later one
                log.error("sample_not_taken", error=str(error), exc_info=error)
            await asyncio.sleep(self._interval_s)

    def sample(self) -> None:
        """All families as they are now."""
        time_ms = time.time_ns() // 1_000_000
        for series in read_slowly(self._collectors()):
            self._history.note(series)
        self._history.seal(time_ms)
