"""Reports and times the phases of a start, and keeps the control plane hearing from us while Python is busy."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import EngineGone
from engine.link import Link
from engine.wire import Heartbeat, Progress

BEAT_S = 0.5
"""While starting; `wire.HEARTBEAT_S` is for an engine that serves."""


class Startup:
    """One start. `seconds` by phase, in the order they were entered."""

    def __init__(self, link: Link, clock: Callable[[], int]) -> None:
        self._link = link
        self._clock = clock
        self._lock = threading.Lock()  # the beat and the phases send from two threads
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; its first and last progress frames are sent here."""
        started_ns = self._clock()
        self.progress(name, 0, 1)
        yield
        self.seconds[name] = (self._clock() - started_ns) / 1e9
        self.progress(name, 1, 1)

    def progress(self, phase: str, done: int, total: int, detail: str = "") -> None:
        self.send(Progress(phase, done, total, detail))

    def send(self, message: Progress | Heartbeat) -> None:
        with self._lock:
            self._link.send(message)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Send heartbeats from a thread until the block ends."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                try:
                    self.send(Heartbeat(None))
                except EngineGone:
                    return  # the main thread finds out at its next frame

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
