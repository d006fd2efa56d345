"""A public trace at 0.5, 0.85, 1.0 and 1.5 of what the machine can serve of it; a synthetic twin where the trace is not there.

As operators do, tenants that send most are on tier `standard` and everybody else on `interactive`. Attainment is of the interactive ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.tail.case import Arrival, Case, Figure, Results, Scenario, Setup, Stream
from engine.simulation.synthetic import TWINS, synthetic_rows
from engine.simulation.trace import TraceRow, read_trace
from engine.simulation.workload import Shape, shaped

LOADS = (0.5, 0.85, 1.0, 1.5)
MAX_TOKENS = 8000
STANDARD_PART = 0.5
"""Of all requests, those of the busiest tenants."""
CAPACITY_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Trace:
    """A file beside the project, and what is done to it."""

    name: str
    file: str
    num_tenants: int = 0
    length_divisor: float = 1.0
    duration_s: float = 195.0
    """Of one load: hundreds of interactive requests at 0.85, and less than four minutes with everything around it."""


ARENA27 = Trace("arena27", "vtc_arena27/arena27_10min.csv")
AZURE = Trace("azure", "azure2023/AzureLLMInferenceTrace_conv.csv", num_tenants=8, length_divisor=4.0)


@cache
def rows_of(trace: Trace, folder: Path) -> tuple[TraceRow, ...]:
    """The rows to replay: the trace's own, or its twin's."""
    path = folder / trace.file
    rows = read_trace(path) if path.is_file() else list(synthetic_rows(TWINS[trace.name], 3000, 0))
    return tuple(shaped(rows[:3000], Shape(num_tenants=trace.num_tenants, length_divisor=trace.length_divisor), MAX_TOKENS))


def tiers_of(rows: Sequence[TraceRow]) -> dict[str, str]:
    """By tenant: the busiest ones, which together send half of all, are `standard`."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.tenant] = counts.get(row.tenant, 0) + 1
    tiers: dict[str, str] = {}
    seen = 0
    for tenant in sorted(counts, key=lambda name: -counts[name]):
        tiers[tenant] = "standard" if seen < STANDARD_PART * len(rows) else "interactive"
        seen += counts[tenant]
    return tiers


def scenario_of(trace: Trace) -> Scenario:
    """The scenario of a trace."""

    def mix(setup: Setup) -> tuple[tuple[int, int], ...]:
        rows = rows_of(trace, setup.trace_dir)
        picked = [rows[index * len(rows) // CAPACITY_SAMPLE] for index in range(CAPACITY_SAMPLE)]
        return tuple((row.prompt_tokens, row.output_tokens) for row in picked)

    def cases(setup: Setup) -> Sequence[Case]:
        rows = rows_of(trace, setup.trace_dir)
        own_rps = (len(rows) - 1) / rows[-1].arrived_s
        duration_s = setup.seconds(trace.duration_s)
        tiers = tiers_of(rows)
        found = []
        for load in LOADS:
            speed = load * setup.capacity_rps / own_rps
            taken = [row for row in rows if row.arrived_s / speed < duration_s]
            sent = dict.fromkeys(row.tenant for row in taken)
            streams = tuple(
                Stream(
                    tenant=tenant,
                    tier=tiers[tenant],
                    arrivals=tuple(
                        Arrival(row.arrived_s / speed, row.prompt_tokens, row.output_tokens) for row in taken if row.tenant == tenant
                    ),
                )
                for tenant in sent
            )
            found.append(Case(name=f"load-{load}", sources=streams, duration_s=duration_s))
        return found

    def figures(results: Results) -> Sequence[Figure]:
        found: list[Figure] = []
        for load in LOADS:
            report = results.get(f"load-{load}")
            if report is None:
                continue
            for tier in ("interactive", "standard"):
                ours = [tenant for tenant in report.tenants.values() if tenant.tier == tier]
                offered = sum(tenant.offered for tenant in ours)
                value = 100 * sum(tenant.attainment * tenant.offered for tenant in ours) / max(1, offered)
                is_judged = load == 0.85 and tier == "interactive"
                bars = (97.0, 99.0) if is_judged else (None, None)
                found.append(Figure(f"{trace.name} at load {load}: {tier} attainment", value, "%", *bars, at_most=False))
        return found

    return Scenario(name=f"replay_{trace.name}", about=__doc__, cases=cases, figures=figures, capacity_of=mix)
