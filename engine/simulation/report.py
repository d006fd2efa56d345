"""A simulation's answer: one JSON document, and the same as text."""

from collections.abc import Iterable

import msgspec

from engine.simulation.figures import Figures, TenantFigures
from engine.simulation.machine import Facts
from engine.simulation.study import Trial
from engine.wire import TenantPolicy

SHOWN_TENANTS = 30
OFFLINE_HINT = (
    "the trace has no times, so all of it waits from the start; if that is offline work, take --lane batch, which has no targets\n"
)


class TriedLoad(msgspec.Struct, frozen=True):
    load: float
    attainment: float


class HowManyMore(msgspec.Struct, frozen=True, kw_only=True):
    """The largest load at which attainment holds, by bisection over the speed of the trace."""

    objective: float
    largest_load: float
    """Of capacity; 0: no load holds."""
    times: float
    """So many times the requests of the trace at the load asked about: as many times its users."""
    tried: list[TriedLoad]


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """By lane, in milliseconds; a lane that is not there has none."""

    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    late_end: bool
    """Whoever can no longer begin in time ends unserved; else it waits on."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`--json` writes this."""

    trace: str
    machine: Facts
    policy: str
    requests: int
    capacity_rps: float
    """Requests a second where there are always more."""
    load: float
    """The trace's requests a second over that; 0 where the trace has no times."""
    targets: Targets
    """Of tenants that `--policies` does not name."""
    own_targets: dict[str, Targets]
    """Of those that it names."""
    figures: Figures
    vtc_ratio: float
    """Gap over bound."""
    simulated_in_s: float
    how_many_more: HowManyMore | None = None


def tried_loads(trials: Iterable[Trial]) -> list[TriedLoad]:
    return [TriedLoad(round(trial.load, 4), round(trial.attainment, 5)) for trial in trials]


def targets_of(policy: TenantPolicy, lane: str) -> Targets:
    """Of requests in `lane`; in any where it is empty."""
    ttft_ms, tpot_ms = (
        {each: seconds * 1e3 for each, seconds in table.items() if lane in ("", each)} for table in (policy.ttft_s, policy.tpot_s)
    )
    return Targets(ttft_ms=ttft_ms, tpot_ms=tpot_ms, late_end=policy.queue_ttl_s is not None)


def text_of(report: Report) -> str:
    """For a terminal."""
    figures = report.figures
    rate = f"{report.capacity_rps * report.load:.2f} a second, load {report.load:.2f} of" if report.load else "all at once, capacity"
    head = (
        f"{report.trace}: {report.requests} requests, {rate} {report.capacity_rps:.2f} a second; policy {report.policy}\n"
        f"{report.machine.model} on {report.machine.device}, {report.machine.backend}, steps measured {report.machine.measured}\n"
        f"{_targets(report)}\n"
    )
    foot = (
        f"\n{figures.virtual_s:.0f} s of virtual time, {figures.steps} steps, {figures.tokens_per_s:.0f} tokens a second (prompts too),"
        f" simulated in {report.simulated_in_s:.1f} s\n"
        f"Jain index {figures.jain_index:.3f}; counter gap {figures.vtc_gap:.0f} of at most {figures.vtc_bound:.0f}"
        f" ({figures.vtc_ratio:.3f})\n"
    )
    more = _more(report.how_many_more, report.load) if report.how_many_more else ""
    hint = OFFLINE_HINT if not report.load and report.targets.ttft_ms and figures.total.attainment < 1 else ""
    return head + _table(figures) + foot + more + hint


def _targets(report: Report) -> str:
    """A line for all, and one for each tenant with targets of its own."""
    named = {"targets": report.targets} | {f"of {name}": each for name, each in report.own_targets.items() if each != report.targets}
    lines = [f"{name}: {_words(each)}\n" for name, each in list(named.items())[: SHOWN_TENANTS + 1]]
    hidden = len(named) - len(lines)
    return "".join(lines) + f"... and of {hidden} more tenants (--json has all)\n" * (hidden > 0)


def _words(targets: Targets) -> str:
    tables = (("TTFT", targets.ttft_ms), ("TPOT", targets.tpot_ms))
    parts = [f"{name} " + (", ".join(f"{lane} {ms:.10g} ms" for lane, ms in table.items()) or "none") for name, table in tables]
    late = "whoever can no longer begin in time ends unserved" if targets.late_end else "whoever is late waits on"
    return "; ".join([*parts, *([late] if targets.ttft_ms else [])])


def _table(figures: Figures) -> str:
    tails = "".join(f"{name:>8}" for name in ("P50", "P99", "P99.9"))
    lines = [
        f"{'':<25}{'TTFT ms':>24}{'TPOT ms':>24}{'worst':>9}{'waited':>8}{'attain-':>9}{'served':>8}",
        f"{'tenant':<16}{'requests':>9}{tails}{tails}{'gap ms':>9}{'in vain':>8}{'ment':>9}{'in time':>8}",
    ]
    lines += [_line(tenant) for tenant in figures.tenants[:SHOWN_TENANTS]]
    hidden = len(figures.tenants) - SHOWN_TENANTS
    lines += [f"... and {hidden} more tenants (--json has all)"] * (hidden > 0)
    return "\n".join([*lines, _line(figures.total)]) + "\n"


def _line(tenant: TenantFigures) -> str:
    tails = "".join(f"{value:>8.0f}" for value in (tenant.ttft.p50_ms, tenant.ttft.p99_ms, tenant.ttft.p999_ms))
    tails += "".join(f"{value:>8.1f}" for value in (tenant.tpot.p50_ms, tenant.tpot.p99_ms, tenant.tpot.p999_ms))
    rest = f"{tenant.worst_gap_ms:>9.0f}{tenant.expired:>8}{tenant.attainment:>9.2%}{tenant.served_share:>8.1%}"
    return f"{tenant.tenant[:15]:<16}{tenant.requests:>9}{tails}{rest}"


def _more(answer: HowManyMore, load: float) -> str:
    if not answer.largest_load:
        return f"no load of this trace holds {answer.objective:.1%}; the table is of load {load:.2f}\n"
    more = (answer.times - 1) * 100
    verdict = f"{more:.0f} % more users" if more >= 0 else f"{-more:.0f} % fewer users"
    holds = f"{answer.objective:.1%} of requests are within their targets up to load {answer.largest_load:.2f}"
    return f"{holds}: {verdict} than this trace; the table is of load {load:.2f}\n"
