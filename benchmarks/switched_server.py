"""This appliance with a switch that the product does not have: while a file exists, nothing is counted and no sample is taken.

    FAIRLANE_BENCHMARK_SWITCH=FILE python -m benchmarks.switched_server serve ...

What goes on without metrics: limits, admission, usage, the step ledger, `explain` and the request's log line. The switch itself is a
call more at each place, on and off alike.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.cli.main import cli
from appliance.telemetry.accounting import Accounting
from appliance.telemetry.device_time import DeviceTime
from appliance.telemetry.engine_book import EngineBook
from appliance.telemetry.explain.review import Reviewer
from appliance.telemetry.histogram import Cells
from appliance.telemetry.lane_times import LaneTimes
from appliance.telemetry.requests import RequestMetrics
from appliance.telemetry.sampler import Sampler
from appliance.telemetry.slo import SloBook

VARIABLE = "FAIRLANE_BENCHMARK_SWITCH"
LOOK_EVERY_S = 0.05

COUNTING: tuple[tuple[type, str, object], ...] = (
    (Accounting, "check", []),
    (Cells, "observe", 0),
    (DeviceTime, "note_step", None),
    (EngineBook, "note_step", 0.0),
    (LaneTimes, "observe_gap", None),
    (LaneTimes, "observe_ttft", None),
    (RequestMetrics, "observe", None),
    (Reviewer, "note", True),
    (Sampler, "sample", None),
    (SloBook, "note", {}),
    (SloBook, "show", None),
)
"""Where metrics are counted or shown, and what is answered while they are off."""


class Switch:
    """Metrics are off while the file exists; looked at now and then, in a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_off = False

    def start(self) -> None:
        """Watch until the process ends."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.is_off = self._path.exists()
            time.sleep(LOOK_EVERY_S)

    def around(self, counting: Callable[..., Any], answer: object) -> Callable[..., Any]:
        """The same with the switch on."""
        return lambda *given, **named: answer if self.is_off else counting(*given, **named)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.switched_server", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of `fairlane`")
    arguments = parser.parse_args().arguments
    if not os.environ.get(VARIABLE):
        parser.error(f"{VARIABLE} names no file")
    switch = Switch(Path(os.environ[VARIABLE]))
    for owner, name, answer in COUNTING:
        setattr(owner, name, switch.around(getattr(owner, name), answer))
    switch.start()
    cli(arguments)


if __name__ == "__main__":
    main()
