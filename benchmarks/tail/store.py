"""Results on disk: one JSON file a scenario, a case at a time, so that an interrupted run goes on where it stopped."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.tail.report import CaseReport
from benchmarks.tail.simulated import Point


class Results(msgspec.Struct, kw_only=True):
    """Of one scenario."""

    scenario: str
    about: str
    quick: bool
    machine: dict[str, str | int]
    when: str = ""
    capacity_rps: float = 0.0
    cases: dict[str, CaseReport] = {}
    points: list[Point] = []


class Store:
    """A folder of results. Quick ones live apart: they are no measurements."""

    def __init__(self, folder: Path, machine: dict[str, str | int], *, quick: bool) -> None:
        self._folder = folder
        self._machine = machine
        self._quick = quick

    def load(self, scenario: str, about: str) -> Results:
        """What there is already; empty where there is nothing."""
        path = self.path(scenario)
        if path.is_file():
            return msgspec.json.decode(path.read_bytes(), type=Results)
        return Results(scenario=scenario, about=about.strip(), quick=self._quick, machine=self._machine)

    def save(self, results: Results) -> None:
        """Whole, with the time."""
        results.when = datetime.now(UTC).isoformat(timespec="seconds")
        results.machine = self._machine
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path(results.scenario).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")

    def forget(self, scenario: str) -> None:
        """Measure it anew."""
        self.path(scenario).unlink(missing_ok=True)

    def path(self, scenario: str, suffix: str = ".json") -> Path:
        """Of its file, or of one that belongs to it."""
        return self._folder / f"{scenario}{suffix}"
