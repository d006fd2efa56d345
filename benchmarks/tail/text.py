"""Reports as text."""

from collections.abc import Iterable, Sequence

from benchmarks.tail.case import Figure
from benchmarks.tail.report import CaseReport, TenantReport
from benchmarks.tail.simulated import Point

MOST_TENANTS = 8


def case_table(report: CaseReport) -> str:
    """A line a tenant; who sent most comes first."""
    numbers = f"{'TTFT P50':>10}{'P99':>8}{'TPOT P50':>10}{'P99':>7}{'gap P99':>9}{'worst':>7}{'attained':>10}{'tok/s':>8}"
    lines = [
        f"{report.name}  {' '.join(report.flags)}",
        f"  {'tenant':<14}{'offered':>8}{'429':>5}{'503':>5}{'failed':>7}{'left':>5}{numbers}",
    ]
    tenants = sorted(report.tenants.values(), key=lambda tenant: -tenant.offered)
    lines += [_line(tenant) for tenant in tenants[:MOST_TENANTS]]
    lines += [f"  ... and {len(tenants) - MOST_TENANTS} more"] * (len(tenants) > MOST_TENANTS)
    lines.append(f"  sent at most {report.lag_p99_ms:.1f} ms late (P99); the generator took {report.generator_cpu_share:.0%} of a CPU")
    return "\n".join(lines)


def _line(tenant: TenantReport) -> str:
    tails = "".join(
        f"{values.get(name, float('nan')):>{width}.{digits}f}"
        for values, name, width, digits in (
            (tenant.ttft_ms, "p50", 10, 0),
            (tenant.ttft_ms, "p99", 8, 0),
            (tenant.tpot_ms, "p50", 10, 1),
            (tenant.tpot_ms, "p99", 7, 1),
        )
    )
    counts = f"{tenant.offered:>8}{tenant.refused_429:>5}{tenant.refused_503:>5}{tenant.failed:>7}{tenant.left:>5}"
    tokens_per_s = tenant.prompt_tokens_per_s + tenant.output_tokens_per_s
    rest = f"{tenant.gap_p99_ms:>9.0f}{tenant.worst_gap_ms:>7.0f}{tenant.attainment:>10.1%}{tokens_per_s:>8.0f}"
    return f"  {tenant.tenant[:13]:<14}{counts}{tails}{rest}"


def point_table(points: Sequence[Point]) -> str:
    """Simulated runs, a line each."""
    names = list(points[0].numbers) if points else []
    lines = [f"  {'':<24}" + "".join(f"{name:>24}" for name in names)]
    return "\n".join([*lines, *(f"  {point.name:<24}" + "".join(f"{point.numbers[name]:>24.3f}" for name in names) for point in points)])


def figure_table(figures: Iterable[Figure]) -> str:
    """Every figure beside its bar and aim."""
    lines = [f"{'figure':<72}{'measured':>12}{'bar':>9}{'aim':>9}  verdict"]
    for figure in figures:
        value = "-" if figure.value is None else f"{figure.value:.3g} {figure.unit}".strip()
        bounds = "".join(f"{'' if bound is None else f'{bound:g}':>9}" for bound in (figure.bar, figure.aim))
        lines.append(f"{figure.name:<72}{value:>12}{bounds}  {figure.verdict}".rstrip())
    return "\n".join(lines)
