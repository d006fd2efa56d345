"""`python -m engine.simulation.plot FILE.png < report.json`: what each tenant got. Apart, because it alone needs matplotlib."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from engine.simulation.figures import Tail, TenantFigures
from engine.simulation.plot_style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, RED, milliseconds, new_figure, save, title
from engine.simulation.report import HowManyMore, Report

MOST_TENANTS = 32


def draw(report: Report) -> Figure:
    """Tails by tenant beside attainment; below, how attainment falls with load, where that was asked for."""
    tenants = report.figures.tenants[:MOST_TENANTS]
    height = 1.9 + 0.2 * max(6, len(tenants))
    figure = new_figure(11, height + (2.6 if report.how_many_more else 0))
    attainment = f"{report.figures.total.attainment:.1%} of {report.requests:,} requests within their targets"
    title(
        figure,
        f"{report.trace} at load {report.load:.2f}: {attainment}",
        f"policy {report.policy} · {report.machine.model} on {report.machine.device} · steps measured {report.machine.measured}"
        f" · Jain index {report.figures.jain_index:.3f} · counter gap {report.vtc_ratio:.2f} of its bound",
    )
    upper, lower = _halves(figure, height) if report.how_many_more else (figure, None)
    left, middle, right = upper.subplots(1, 3, sharey=True, width_ratios=(2, 2, 1))
    _tails(left, "Time to the first token", [tenant.ttft for tenant in tenants], report.targets.ttft_ms)
    _tails(middle, "Time per token after it", [tenant.tpot for tenant in tenants], report.targets.tpot_ms)
    _attainment(right, tenants)
    left.set_yticks(range(len(tenants)), [f"{tenant.tenant[:18]}  ({tenant.requests:,})" for tenant in tenants], fontsize=8)
    left.invert_yaxis()
    if lower is not None and report.how_many_more is not None:
        _loads(lower.subplots(), report.how_many_more, report.load)
    return figure


def _halves(figure: Figure, upper_height: float) -> tuple[SubFigure, SubFigure]:
    halves: Any = figure.subfigures(2, 1, height_ratios=(upper_height, 2.6))  # an array, which its types do not say
    return halves[0], halves[1]


def _tails(axes: Axes, name: str, tails: list[Tail], targets_ms: dict[str, float]) -> None:
    rows = range(len(tails))
    axes.set_title(name)
    axes.hlines(rows, [tail.p50_ms for tail in tails], [tail.p999_ms for tail in tails], color=FAINT, linewidth=2.2, zorder=1)
    for label, values, colour, size in (
        ("P50", [tail.p50_ms for tail in tails], BLUE, 22),
        ("P99", [tail.p99_ms for tail in tails], ORANGE, 26),
        ("P99.9", [tail.p999_ms for tail in tails], RED, 14),
    ):
        axes.scatter(values, rows, s=size, color=colour, label=label, zorder=2)
    for lane, target in targets_ms.items():
        axes.axvline(target, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
        axes.text(target, 1.0, f" {lane}", transform=axes.get_xaxis_transform(), fontsize=7.5, color=INK, va="top", rotation=90, ha="right")
    milliseconds(axes)
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", fontsize=7.5, handletextpad=0.1, borderpad=0.1)


def _attainment(axes: Axes, tenants: list[TenantFigures]) -> None:
    values = [100 * tenant.attainment for tenant in tenants]
    axes.set_title("Within targets")
    axes.barh(
        range(len(tenants)), values, height=0.62, color=[GREEN if value >= 99 else ORANGE if value >= 95 else RED for value in values]
    )
    axes.set_xlim(0, 112)
    axes.set_xticks((0, 50, 100), ("0 %", "50 %", "100 %"), fontsize=8)
    axes.grid(axis="y", visible=False)
    for row, value in enumerate(values):
        axes.text(min(value, 100) + 1.5, row, f"{value:.4g}", va="center", fontsize=7.5)


def _loads(axes: Axes, more: HowManyMore, load: float) -> None:
    axes.set_title("How many more users: attainment over load")
    axes.plot([trial.load for trial in more.tried], [100 * trial.attainment for trial in more.tried], "o-", color=BLUE, markersize=4)
    axes.axhline(100 * more.objective, color=INK, linewidth=0.9, linestyle=(0, (3, 3)))
    axes.axvline(load, color=GREY, linewidth=0.9)
    axes.text(load, 0.03, " this trace", transform=axes.get_xaxis_transform(), fontsize=8, color=GREY)
    if more.largest_load:
        axes.axvline(more.largest_load, color=GREEN, linewidth=1.4)
        axes.text(more.largest_load, 0.12, f" {more.largest_load:.2f} holds", transform=axes.get_xaxis_transform(), fontsize=8, color=GREEN)
    axes.set_ylabel("% within targets")
    axes.set_xlabel("load, of capacity")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.simulation.plot", description="Draw what each tenant got.")
    parser.add_argument(
        "path", type=Path, help="FILE.png to write; the report (`fairlane simulate --json -`) is read from the standard input"
    )
    path = parser.parse_args(arguments).path
    save(draw(msgspec.json.decode(sys.stdin.buffer.read(), type=Report)), path)


if __name__ == "__main__":
    main(sys.argv[1:])
