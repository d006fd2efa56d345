"""Measures what tenants do to each other's tails.

    python -m benchmarks.tail                         every scenario: about forty minutes
    python -m benchmarks.tail noisy_neighbour flooder
    python -m benchmarks.tail --quick                 a fifth of the time, kept apart: to see that everything works
    python -m benchmarks.tail --table                 no measuring: the figures of what lies there

Each case is kept as soon as it is measured, and a later run goes on with those that are missing (`--again` measures anew).
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peers import ROOT, machine
from benchmarks.tail import ablations, replays
from benchmarks.tail.case import Figure, Scenario, Setup
from benchmarks.tail.machine_room import Show, capacity_rps, run_cases
from benchmarks.tail.plots import draw
from benchmarks.tail.report import CaseReport
from benchmarks.tail.scenarios import disconnects, flooder, noisy_neighbour, one_tenant, overload, replay, slow_readers, straggler
from benchmarks.tail.simulated import SIMULATED, Simulated
from benchmarks.tail.store import Results, Store
from benchmarks.tail.text import case_table, figure_table, point_table

SCENARIOS: dict[str, Scenario | Simulated] = {
    scenario.name: scenario
    for scenario in (
        noisy_neighbour.SCENARIO,
        flooder.SCENARIO,
        replay.scenario_of(replay.ARENA27),
        replay.scenario_of(replay.AZURE),
        overload.SCENARIO,
        disconnects.SCENARIO,
        slow_readers.SCENARIO,
        straggler.SCENARIO,
        one_tenant.SCENARIO,
        ablations.SCENARIO,
        replays.SCENARIO,
        *SIMULATED,
    )
}


class Runner:
    """Runs scenarios, shows where they are, keeps what they measured."""

    def __init__(self, store: Store, setup: Setup, flags: Sequence[str], console: Console, only: Sequence[str] = ()) -> None:
        """`only`: names of cases; none: all."""
        self._only = only
        self._store = store
        self._setup = setup
        self._flags = tuple(flags)
        self._console = console

    def run(self, scenario: Scenario | Simulated) -> None:
        """What is missing of it, then its tables and its plot."""
        results = self._store.load(scenario.name, scenario.about or "")
        with _Bar(self._console, scenario.name) as show:
            if isinstance(scenario, Scenario):
                asyncio.run(self._measure(scenario, results, show))
            elif not results.points:
                results.points = scenario.run(self._setup, show)
                self._store.save(results)
        self._console.print(f"\n{scenario.name}", style="bold")
        self._console.print("\n".join(map(case_table, results.cases.values())) or point_table(results.points), highlight=False)
        draw(results, self._store.path(scenario.name, ".png"))

    def figures(self, scenario: Scenario | Simulated) -> Sequence[Figure]:
        """Of what was measured so far."""
        results = self._store.load(scenario.name, scenario.about or "")
        if isinstance(scenario, Scenario):
            return scenario.figures(results.cases) if results.cases else []
        return scenario.figures(results.points) if results.points else []

    async def _measure(self, scenario: Scenario, results: Results, show: Show) -> None:
        setup = self._setup
        if scenario.capacity_of is not None and not results.capacity_rps:
            show("capacity", 0.0)
            results.capacity_rps = await capacity_rps(self._flags, scenario.capacity_of(setup), show, setup.seconds(1.0))
            self._store.save(results)
        setup = Setup(setup.quick, results.capacity_rps, setup.trace_dir)
        chosen = [case for case in scenario.cases(setup) if case.name in self._only or not self._only]
        missing = [case for case in chosen if case.name not in results.cases]

        def keep(report: CaseReport) -> None:
            results.cases[report.name] = report
            self._store.save(results)

        await run_cases([replace(case, flags=(*case.flags, *self._flags)) for case in missing], show, keep)


class _Bar:
    """A bar on a terminal, a line for each new thing elsewhere."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._shown = ""
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(name, total=1.0)

    def __enter__(self) -> Show:
        self._progress.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, what: str, part: float) -> None:
        self._progress.update(self._task, description=f"{self._name}: {what}", completed=part)
        if not self._console.is_terminal and what != self._shown:
            self._console.print(f"{self._name}: {what}", highlight=False)
        self._shown = what


def main() -> None:
    """Measure, draw, compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tail", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; none: all")
    parser.add_argument("--quick", action="store_true", help="a fifth of each duration, results in var/bench-tail-quick")
    parser.add_argument("--again", action="store_true", help="forget what was measured of these scenarios")
    parser.add_argument("--case", action="append", default=[], help="measure only this case (may be given several times)")
    parser.add_argument("--table", action="store_true", help="only show figures")
    parser.add_argument("--trace-dir", type=Path, default=ROOT.parent / "shared" / "traces", help="where the public traces lie")
    parser.add_argument("--out", type=Path, help="folder for results [default: benchmarks/results/tail]")
    parser.add_argument("--flags", default="", help="more flags of `fairlane serve`, for all cases")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"there is no scenario {unknown[0]}: take some of {', '.join(SCENARIOS)}")
    folder = arguments.out or (ROOT / "var/bench-tail-quick" if arguments.quick else ROOT / "benchmarks/results/tail")
    store = Store(folder, machine(), quick=arguments.quick)
    console = Console(width=None if sys.stdout.isatty() else 200)
    setup = Setup(quick=arguments.quick, trace_dir=arguments.trace_dir)
    runner = Runner(store, setup, shlex.split(arguments.flags), console, arguments.case)
    chosen = [SCENARIOS[name] for name in arguments.scenarios or SCENARIOS]
    for scenario in [] if arguments.table else chosen:
        if arguments.again:
            store.forget(scenario.name)
        runner.run(scenario)
    console.print("\n" + figure_table(figure for scenario in chosen for figure in runner.figures(scenario)), highlight=False)


if __name__ == "__main__":
    main()
