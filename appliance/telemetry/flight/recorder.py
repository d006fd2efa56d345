"""Writes bundles: when the engine is lost, when an alert or an administrator asks, at a signal."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from appliance.settings import SECRETS, Settings
from appliance.telemetry.flight.bundle import Bundle, write_bundle
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import RequestReport
from engine.wire import TenantPolicy

log = structlog.get_logger(__name__)

SPAN_NS = 60_000_000_000
KEPT_BUNDLES = 10
AGAIN_AFTER_S = 10.0
"""Asked again sooner, it gives the bundle it has just made: an alert that is sent many times makes one."""
SETTLE_S = 0.5
"""What requests get to end after the engine was lost."""
_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@\s]*@")


@dataclass(frozen=True, slots=True)
class Sources:
    """What a bundle is made of, beside telemetry."""

    settings: Settings
    version: str
    policies: Callable[[], Iterable[TenantPolicy]]
    running: Callable[[], list[RequestReport]]


@dataclass(frozen=True, slots=True)
class Dumped:
    """A bundle that was written."""

    path: Path
    num_steps: int
    num_requests: int


class FlightRecorder:
    """Keeps nothing itself: ledger, archive and metrics are there anyhow."""

    def __init__(self, telemetry: Telemetry, sources: Sources, folder: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._telemetry = telemetry
        self._sources = sources
        self._folder = folder
        self._clock_ns = clock_ns
        self._turn = asyncio.Lock()
        self._last: Dumped | None = None
        self._last_ns = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def dump(self, reason: str) -> Dumped:
        """Write the last minute to a file; its name has time and reason. Old bundles go."""
        async with self._turn:
            if self._last is not None and (self._clock_ns() - self._last_ns) / 1e9 < AGAIN_AFTER_S:
                return self._last
            bundle = self._bundle(reason)
            path = self._folder / f"flight-{bundle.made_at:%Y%m%dT%H%M%S}-{re.sub('[^a-z0-9]+', '-', reason.lower())[:40]}.json.gz"
            await asyncio.to_thread(self._write, path, bundle)
            self._last, self._last_ns = Dumped(path, len(bundle.steps), len(bundle.requests) + len(bundle.running)), self._clock_ns()
            log.info("flight_recorded", reason=reason, file=str(path), steps=len(bundle.steps))
            return self._last

    def dump_soon(self, reason: str) -> None:
        """As `dump`, from a plain callback; what the event at hand still changes is in it. A full disk is logged."""
        task = asyncio.create_task(self._dump_later(reason))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _dump_later(self, reason: str) -> None:
        await asyncio.sleep(SETTLE_S)
        try:
            await self.dump(reason)
        except OSError as error:
            log.error("flight_not_recorded", reason=reason, error=str(error))

    def _bundle(self, reason: str) -> Bundle:
        """A copy of the lists; what they hold never changes."""
        telemetry, now_ns = self._telemetry, self._clock_ns()
        begin_ns = now_ns - SPAN_NS
        steps = telemetry.ledger.all_between(begin_ns, now_ns)
        is_whole = telemetry.ledger.is_whole and len(steps) == len(telemetry.ledger)
        return Bundle(
            version=self._sources.version,
            reason=reason,
            made_at=datetime.now(UTC),
            made_ns=now_ns,
            settings=masked_settings(self._sources.settings),
            policies=list(self._sources.policies()),
            load=telemetry.engine.load,
            metrics="",
            floor_ns=telemetry.floor_ns,
            since_ns=0 if is_whole or not steps else min(step.planned_ns for step in steps),
            steps=steps,
            requests=[report for report in telemetry.archive if report.ended_ns >= begin_ns],
            running=self._sources.running(),
        )

    def _write(self, path: Path, bundle: Bundle) -> None:
        """In a thread: rendering, encoding and packing take a tenth of a second."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_bundle(path, msgspec.structs.replace(bundle, metrics=self._telemetry.render().decode()))
        for old in sorted(self._folder.glob("flight-*.json.gz"))[:-KEPT_BUNDLES]:
            old.unlink(missing_ok=True)


def masked_settings(settings: Settings) -> dict[str, Any]:
    """All settings as plain values, without secrets and passwords."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    for name in SECRETS:
        values[name] = "(hidden)" if values[name] else ""
    return {name: _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value for name, value in values.items()}
