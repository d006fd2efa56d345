"""A simulation's answer: one JSON document, and the same as text."""

from collections.abc import Iterable

import msgspec

from engine.simulation.figures import Figures, TenantFigures
from engine.simulation.machine import Facts
from engine.simulation.study import Trial

SHOWN_TENANTS = 30


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
    targets_ms: dict[str, dict[str, float]]
    """TTFT and TPOT by lane, of tenants that `--policies` does not name."""
    figures: Figures
    vtc_ratio: float
    """Gap over bound."""
    simulated_in_s: float
    how_many_more: HowManyMore | None = None


def tried_loads(trials: Iterable[Trial]) -> list[TriedLoad]:
    return [TriedLoad(round(trial.load, 4), round(trial.attainment, 5)) for trial in trials]


def text_of(report: Report) -> str:
    """For a terminal."""
    figures = report.figures
    head = (
        f"{report.trace}: {report.requests} requests, {report.capacity_rps * report.load:.2f} a second, load {report.load:.2f}"
        f" of {report.capacity_rps:.2f} a second; policy {report.policy}\n"
        f"{report.machine.model} on {report.machine.device}, {report.machine.backend}, steps measured {report.machine.measured}\n\n"
    )
    foot = (
        f"\n{figures.virtual_s:.0f} s of virtual time, {figures.steps} steps, {figures.tokens_per_s:.0f} tokens a second (prompts too),"
        f" simulated in {report.simulated_in_s:.1f} s\n"
        f"Jain index {figures.jain_index:.3f}; counter gap {figures.vtc_gap:.0f} of at most {figures.vtc_bound:.0f}"
        f" ({figures.vtc_ratio:.3f})\n"
    )
    return head + _table(figures) + foot + (_more(report.how_many_more) if report.how_many_more else "")


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


def _more(answer: HowManyMore) -> str:
    if not answer.largest_load:
        return f"no load of this trace holds {answer.objective:.1%}\n"
    more = (answer.times - 1) * 100
    verdict = f"{more:.0f} % more users" if more >= 0 else f"{-more:.0f} % fewer users"
    return f"{answer.objective:.1%} of requests are within their targets up to load {answer.largest_load:.2f}: {verdict} than this trace\n"
