"""A picture for each scenario: what happened to whom, case by case."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.tail.report import TIER_TARGETS, CaseReport, TenantReport
from benchmarks.tail.simulated import Point
from benchmarks.tail.store import Results
from engine.simulation.plot_style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, RED, milliseconds, new_figure, save, title

MOST_ROWS = 40


def draw(results: Results, path: Path) -> None:
    """Write the PNG of a scenario; nothing where nothing was measured."""
    about = results.about.strip().partition("\n")[0]
    if results.cases:
        figure = _cases(results, about)
    elif results.points and results.scenario == "sweep":
        figure = _sweep(results.points, about)
    elif results.points:
        figure = _points(results.points, about)
    else:
        return
    save(figure, path)


def _conditions(results: Results) -> str:
    machine = results.machine
    capacity = f" · capacity {results.capacity_rps:.2f} requests/s" if results.capacity_rps else ""
    return f"{machine['cpu']}, {machine['cores']} cores · {results.when[:10]} · {machine['commit']}{capacity}" + " · quick" * results.quick


def _cases(results: Results, about: str) -> Figure:
    """A row for each tenant of each case: tails of TTFT, gaps between tokens, and what became of its requests."""
    rows = [(case, tenant) for case in results.cases.values() for tenant in _shown(case)][:MOST_ROWS]
    figure = new_figure(11, 1.6 + 0.27 * max(5, len(rows)))
    title(figure, about, _conditions(results))
    left, middle, right = figure.subplots(1, 3, sharey=True, width_ratios=(2.2, 1.6, 1.6))
    _ttft(left, [tenant for _, tenant in rows])
    _gaps(middle, [tenant for _, tenant in rows])
    _outcomes(right, [tenant for _, tenant in rows])
    left.set_yticks(range(len(rows)), [f"{case.name} · {tenant.tenant}" for case, tenant in rows], fontsize=8)
    left.set_ylim(len(rows) + 0.1, -0.6)  # room for the legends below the last row
    for index in range(1, len(rows)):
        if rows[index][0] is not rows[index - 1][0]:
            for axes in (left, middle, right):
                axes.axhline(index - 0.5, color=FAINT, linewidth=0.8)
    return figure


def _shown(case: CaseReport) -> list[TenantReport]:
    """Up to three as they are; more are put together by tier, worst tail and mean attainment."""
    tenants = list(case.tenants.values())
    if len(tenants) <= 3:
        return tenants
    return [_merged(tier, [tenant for tenant in tenants if tenant.tier == tier]) for tier in dict.fromkeys(t.tier for t in tenants)]


def _merged(tier: str, tenants: Sequence[TenantReport]) -> TenantReport:
    def total(field: str) -> int:
        return sum(getattr(tenant, field) for tenant in tenants)

    def weighted(field: str) -> dict[str, float]:
        values = [(getattr(tenant, field), tenant.answered) for tenant in tenants if getattr(tenant, field)]
        names = values[0][0] if values else {}
        count = sum(weight for _, weight in values) or 1
        mean = {name: sum(each[name] * weight for each, weight in values) / count for name in names}
        return mean | {name: max(each[name] for each, _ in values) for name in ("p99", "p999") if name in names}

    return TenantReport(
        tenant=f"{len(tenants)} {tier}",
        tier=tier,
        offered=total("offered"),
        answered=total("answered"),
        left=total("left"),
        refused_429=total("refused_429"),
        refused_503=total("refused_503"),
        failed=total("failed"),
        ttft_ms=weighted("ttft_ms"),
        tpot_ms=weighted("tpot_ms"),
        total_ms=weighted("total_ms"),
        gap_p99_ms=max((tenant.gap_p99_ms for tenant in tenants), default=0.0),
        worst_gap_ms=max((tenant.worst_gap_ms for tenant in tenants), default=0.0),
        attainment=sum(tenant.attainment * tenant.offered for tenant in tenants) / max(1, total("offered")),
        prompt_tokens_per_s=sum(tenant.prompt_tokens_per_s for tenant in tenants),
        output_tokens_per_s=sum(tenant.output_tokens_per_s for tenant in tenants),
        errors=[],
    )


def _ttft(axes: Axes, tenants: Sequence[TenantReport]) -> None:
    axes.set_title("Time to the first token")
    for row, tenant in enumerate(tenants):
        if not tenant.ttft_ms:
            continue
        axes.plot([tenant.ttft_ms["p50"], tenant.ttft_ms["p99"]], [row, row], color=FAINT, linewidth=2.2, zorder=1)
        targets = TIER_TARGETS.get(tenant.tier)
        if targets is not None:
            axes.plot([1e3 * targets.fast_ttft_s] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=1.1, zorder=1)
    for name, label, colour, size in (("p50", "P50", BLUE, 24), ("p95", "P95", ORANGE, 20), ("p99", "P99", RED, 28)):
        found = [(tenant.ttft_ms[name], row) for row, tenant in enumerate(tenants) if tenant.ttft_ms]
        axes.scatter([x for x, _ in found], [y for _, y in found], s=size, color=colour, label=label, zorder=2)
    axes.plot([], [], color=INK, linewidth=1.1, label="target")
    milliseconds(axes)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.02), ncols=4, fontsize=7.5, handletextpad=0.2, columnspacing=0.9)


def _gaps(axes: Axes, tenants: Sequence[TenantReport]) -> None:
    axes.set_title("Gap between tokens")
    found = [(row, tenant) for row, tenant in enumerate(tenants) if tenant.worst_gap_ms]
    for row, tenant in found:
        axes.plot([tenant.gap_p99_ms, tenant.worst_gap_ms], [row, row], color=FAINT, linewidth=2.2, zorder=1)
    axes.scatter([t.gap_p99_ms for _, t in found], [row for row, _ in found], s=26, color=ORANGE, label="P99", zorder=2)
    axes.scatter([t.worst_gap_ms for _, t in found], [row for row, _ in found], s=20, color=RED, marker="D", label="worst", zorder=2)
    milliseconds(axes)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, -0.02), ncols=2, fontsize=7.5, handletextpad=0.2)


def _outcomes(axes: Axes, tenants: Sequence[TenantReport]) -> None:
    """Of all offered requests."""
    axes.set_title("What became of requests")
    left = [0.0] * len(tenants)
    good = [tenant.attainment * (tenant.offered - tenant.left) for tenant in tenants]
    for label, colour, counts in (
        ("in time", GREEN, good),
        ("late", ORANGE, [tenant.answered - value for tenant, value in zip(tenants, good, strict=True)]),
        ("refused", RED, [float(tenant.refused_429 + tenant.refused_503) for tenant in tenants]),
        ("failed", INK, [float(tenant.failed) for tenant in tenants]),
        ("left", FAINT, [float(tenant.left) for tenant in tenants]),
    ):
        widths = [100 * max(0.0, count) / max(1, tenant.offered) for count, tenant in zip(counts, tenants, strict=True)]
        if any(widths):
            axes.barh(range(len(tenants)), widths, left=left, height=0.62, color=colour, label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlim(0, 118)
    axes.set_xticks((0, 50, 100), ("0 %", "50 %", "100 %"), fontsize=8)
    axes.grid(axis="y", visible=False)
    for row, tenant in enumerate(tenants):
        axes.text(101.5, row, f"n {tenant.offered}", va="center", fontsize=7, color=GREY)
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.45, -0.02), ncols=5, fontsize=7.5, handlelength=0.8, handletextpad=0.3, columnspacing=0.7
    )


def _points(points: Sequence[Point], about: str) -> Figure:
    """A panel for each number, a bar for each run."""
    names = list(points[0].numbers)
    figure = new_figure(2.2 + 2.3 * len(names), 1.5 + 0.27 * max(5, len(points)))
    title(figure, about, "simulated: the same scheduler under a virtual clock, with measured steps")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        values = [point.numbers[name] for point in points]
        axes.set_title(name.replace("_", " ").replace(" ms", ", ms").replace("ttft", "TTFT").replace("tpot", "TPOT").replace("p99", "P99"))
        axes.barh(range(len(points)), values, height=0.62, color=[BLUE if index < 2 else GREY for index in range(len(points))])
        if max(values) > 20 * max(1e-9, sorted(values)[len(values) // 2]):
            axes.set_xscale("log")
        axes.set_xlim(right=max(values) * (4 if axes.get_xscale() == "log" else 1.25) or 1)
        for row, value in enumerate(values):
            axes.text(value, row, f" {value:.3g}" if value < 1000 else f" {value:,.0f}", va="center", fontsize=7.5)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="x", labelsize=7.5)
    panels[0].set_yticks(range(len(points)), [point.name for point in points], fontsize=8)
    panels[0].invert_yaxis()
    return figure


def _sweep(points: Sequence[Point], about: str) -> Figure:
    """Attainment and P99 TTFT by users and prompt length."""
    users = sorted({point.numbers["users"] for point in points})
    prompts = sorted({point.numbers["prompt_tokens"] for point in points})
    figure = new_figure(10.5, 3.6)
    title(figure, about, "simulated: the same scheduler under a virtual clock, with measured steps")
    by_place = {(point.numbers["users"], point.numbers["prompt_tokens"]): point.numbers for point in points}
    for axes, name, colours, scale, form in zip(
        figure.subplots(1, 2),
        ("attainment", "ttft_p99_ms"),
        ("RdYlGn", "YlOrRd"),
        (100.0, 1e-3),
        ("{:.0f} %", "{:.2g} s"),
        strict=True,
    ):
        grid = [[by_place[user, prompt][name] for prompt in prompts] for user in users]
        axes.imshow(grid, cmap=colours, aspect="auto", norm="log" if name == "ttft_p99_ms" else "linear", alpha=0.75)
        axes.set_title("Within the interactive targets" if name == "attainment" else "P99 of time to the first token")
        axes.set_xticks(range(len(prompts)), [f"{prompt:.0f}" for prompt in prompts])
        axes.set_yticks(range(len(users)), [f"{user:.0f}" for user in users])
        axes.set_xlabel("prompt tokens")
        axes.set_ylabel("users")
        axes.grid(visible=False)
        for row, line in enumerate(grid):
            for column, value in enumerate(line):
                axes.text(column, row, form.format(value * scale), ha="center", va="center", fontsize=8.5)
    return figure
