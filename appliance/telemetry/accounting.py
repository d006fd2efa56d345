"""Sums that must hold. One that does not is a defect of ours: it is counted, logged once a minute, and an alert fires."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

from appliance.telemetry import families as f
from appliance.telemetry.requests import counter

log = structlog.get_logger(__name__)

SAY_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Sum:
    """Two numbers that must be equal."""

    found: float
    expected: float
    meaning: str
    """What they are, for the log."""


class Accounting:
    """Checks, by name; each gives a `Sum`, or None while there is nothing to compare."""

    def __init__(self, registry: CollectorRegistry, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.checks: Mapping[str, Callable[[], Sum | None]] = {}
        """Set by whoever has the numbers; names are of `families.ACCOUNTING_CHECKS`."""
        self._clock_s = clock_s
        self._said_s: dict[str, float] = {}
        self.mismatches: Counter = counter(registry, f.MISMATCHES)
        for name in f.ACCOUNTING_CHECKS:
            self.mismatches.labels(name)

    def check(self) -> list[str]:
        """Compare all; the names of the sums that do not hold."""
        wrong: list[str] = []
        for name, read in self.checks.items():
            found = read()
            if found is None or found.found == found.expected:
                continue
            wrong.append(name)
            self.mismatches.labels(name).inc()
            if self._clock_s() - self._said_s.get(name, -SAY_AGAIN_S) >= SAY_AGAIN_S:
                self._said_s[name] = self._clock_s()
                log.error("accounting_mismatch", check=name, found=found.found, expected=found.expected, meaning=found.meaning)
        return wrong
