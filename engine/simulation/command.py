"""`fairlane simulate`."""

import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.errors import EngineError, TraceError
from engine.simulation.machine import DEFAULT_MACHINE, read_machine
from engine.simulation.options import config_of, engine_flags
from engine.simulation.policies import FIELDS, check_tenants, read_policies
from engine.simulation.report import HowManyMore, Report, targets_of, text_of, tried_loads
from engine.simulation.study import Study, largest_load
from engine.simulation.synthetic import TWINS, synthetic_rows
from engine.simulation.trace import TraceRow, in_order, read_trace
from engine.simulation.workload import Shape, possible_tenants
from engine.wire import TenantPolicy

MOST_SYNTHETIC_ROWS = 50_000
"""More requests than that repeat them."""
QUEUE_TTL_HELP = (
    "Above 0, whoever can no longer begin in time for its TTFT target ends unserved, as with a tier's queue limit; 0: waits on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line, apart from the engine's settings."""

    trace: Path | None
    synthetic: str | None
    machine: Path
    policies: Path | None
    load: float | None
    speed: float | None
    tenants: int
    requests: int
    divide_lengths: float
    queue_ttl_s: float
    lane: str | None
    ttft_ms: tuple[float, float]
    tpot_ms: tuple[float, float]
    how_many_more: bool
    objective: float
    seed: int
    json: Path | None
    plot: Path | None


@click.command(context_settings={"show_default": True})
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("--synthetic", type=click.Choice(sorted(TWINS)), help="A seeded twin of a public trace instead of a file.")
@click.option(
    "--machine",
    type=click.Path(path_type=Path),
    default=DEFAULT_MACHINE,
    show_default="a committed one",
    help="Measured steps: var/model/machine.json of a server.",
)
@click.option("--load", type=click.FloatRange(0.001, 1000), help="Speed the trace up or down to this part of the machine's capacity.")
@click.option("--speed", type=click.FloatRange(0.0001, 10_000), help="Requests come so many times as fast. [default: 1]")
@click.option(
    "--tenants", type=click.IntRange(0), default=0, help="Deal requests to so many tenants, few of which send most; 0: the trace's own."
)
@click.option("--requests", type=click.IntRange(0), default=0, help="So many requests; a shorter trace is repeated. 0: all of it, once.")
@click.option("--divide-lengths", type=click.FloatRange(1.0), default=1.0, help="Prompts and outputs become so many times shorter.")
@click.option("--queue-ttl-s", type=click.FloatRange(0), default=10.0, help=QUEUE_TTL_HELP)
@click.option("--lane", type=click.Choice(["fast", "slow", "batch"]), help="All requests in this lane.")
@click.option("--ttft-ms", type=(float, float), default=(500.0, 3000.0), help="TTFT targets of the fast and the slow lane; 0: none.")
@click.option("--tpot-ms", type=(float, float), default=(50.0, 100.0), help="The same for TPOT.")
@click.option("--policies", type=click.Path(path_type=Path), help=f"JSON list of tenants' policies: {', '.join(FIELDS)}.")
@click.option("--how-many-more", is_flag=True, help="Find the largest load at which attainment holds.")
@click.option("--objective", type=click.FloatRange(0.0, 1.0), default=0.99, help="Attainment asked for by --how-many-more.")
@click.option("--seed", type=int, default=0, help="Of --synthetic, and of what --tenants deals.")
@click.option("--json", type=click.Path(path_type=Path, dir_okay=False), help="Write all numbers here; - for stdout.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write a PNG here (needs matplotlib).")
@engine_flags
def simulate(**flags: Any) -> None:
    """Replay TRACE on the engine's scheduler under a virtual clock, and say what each tenant would get.

    TRACE is a CSV or JSON lines file: arrived_at_s,tenant,prompt_tokens,output_tokens, or one of Azure's, Mooncake's or Vidur's public
    traces as they are. The control plane's admission is not simulated: everybody enters, and whoever is late or waits in vain is a miss.
    """
    asked = Asked(**{name: flags.pop(name) for name in Asked.__dataclass_fields__})
    _check(asked)
    try:
        report = _answer(asked, flags)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    _write(asked, report)


def _check(asked: Asked) -> None:
    if (asked.trace is None) == (asked.synthetic is None):
        raise click.UsageError("give one of TRACE and --synthetic")
    if asked.load is not None and asked.speed is not None:
        raise click.UsageError("give one of --load and --speed: both say how fast requests come")
    for flag, path in (("--json", asked.json), ("--plot", asked.plot)):
        # now, and not after minutes of work
        if path is not None and path != Path("-") and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise click.UsageError(f"{flag} {path}: it can not be written: give a path in a folder that exists and is yours")
    if asked.plot is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib")


def _answer(asked: Asked, flags: dict[str, Any]) -> Report:
    began_s = time.monotonic()
    shape = _shape(asked)
    study = _study(asked, flags, shape)
    capacity_rps, own_rps = study.capacity_rps(shape), study.trace_rps(shape)
    if own_rps == 0 and (asked.load or asked.speed or asked.how_many_more):
        leave_out = "leave out --load, --speed and --how-many-more"
        raise TraceError(f"{_name(asked)}: all its requests come at once, so there is no rate to change: {leave_out}")
    if asked.load is not None:
        shape = replace(shape, speed=asked.load * capacity_rps / own_rps)
    load = shape.speed * own_rps / capacity_rps
    with _Bar() as bar:
        figures = study.run(shape, bar.update)
        more = _how_many_more(study, shape, load, asked.objective, bar) if asked.how_many_more else None
    return Report(
        trace=_name(asked),
        machine=study.machine.facts,
        policy=study.config.scheduling_policy,
        requests=figures.total.requests,
        capacity_rps=capacity_rps,
        load=load,
        targets=targets_of(study.base_policy, shape.lane),
        own_targets={policy.tenant_id: targets_of(policy, shape.lane) for policy in study.given_policies},
        figures=figures,
        vtc_ratio=figures.vtc_ratio,
        simulated_in_s=time.monotonic() - began_s,
        how_many_more=more,
    )


def _shape(asked: Asked) -> Shape:
    return Shape(
        speed=asked.speed or 1.0,
        num_requests=asked.requests,
        num_tenants=asked.tenants,
        length_divisor=asked.divide_lengths,
        lane=asked.lane or "",
        seed=asked.seed,
    )


def _study(asked: Asked, flags: dict[str, Any], shape: Shape) -> Study:
    base, rows = _base_policy(asked), _rows(asked)
    given = read_policies(asked.policies, base) if asked.policies else ()
    if asked.policies:
        check_tenants(asked.policies, given, possible_tenants(rows, shape))
    return Study(rows, read_machine(asked.machine), config_of(flags), base, given)


def _name(asked: Asked) -> str:
    return asked.trace.name if asked.trace else f"synthetic {asked.synthetic}, seed {asked.seed}"


def _rows(asked: Asked) -> list[TraceRow]:
    if asked.trace is not None:
        return read_trace(asked.trace)
    assert asked.synthetic is not None
    return in_order(synthetic_rows(TWINS[asked.synthetic], min(asked.requests, MOST_SYNTHETIC_ROWS), asked.seed))


def _base_policy(asked: Asked) -> TenantPolicy:
    lanes = ("fast", "slow")
    ttft_s, tpot_s = ({lane: ms / 1e3 for lane, ms in zip(lanes, table, strict=True) if ms > 0} for table in (asked.ttft_ms, asked.tpot_ms))
    return TenantPolicy(tenant_id="", ttft_s=ttft_s, tpot_s=tpot_s, queue_ttl_s=asked.queue_ttl_s or None)


def _how_many_more(study: Study, shape: Shape, load: float, objective: float, bar: "_Bar") -> HowManyMore:
    def attainment_at(tried: float) -> float:
        bar.describe(f"load {tried:.2f}")
        return study.run(replace(shape, speed=shape.speed * tried / load), bar.update).total.attainment

    found, trials = largest_load(attainment_at, objective, load)
    return HowManyMore(objective=objective, largest_load=found, times=found / load, tried=tried_loads(trials))


def _write(asked: Asked, report: Report) -> None:
    document = msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n"
    if asked.json == Path("-"):
        click.echo(document, nl=False)
    else:
        click.echo(text_of(report), nl=False)
        if asked.json is not None:
            asked.json.write_text(document)
    if asked.plot is not None:
        command = [sys.executable, "-m", "engine.simulation.plot", str(asked.plot)]
        drawn = subprocess.run(command, input=document, text=True, capture_output=True, check=False)
        if drawn.returncode:
            raise click.ClickException(f"{asked.plot} could not be drawn: {drawn.stderr.strip().splitlines()[-1]}")


class _Bar:
    """Progress on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._task = self._progress.add_task("replaying", total=None)

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def describe(self, text: str) -> None:
        self._progress.reset(self._task, description=text)

    def update(self, done: int, of: int) -> None:
        if done % 100 == 0 or done == of:
            self._progress.update(self._task, completed=done, total=of)
