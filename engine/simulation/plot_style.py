"""How our plots look: quiet axes, few colours, numbers a person can read."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

INK, FAINT, PAPER = "#22303c", "#c9d1d8", "#ffffff"
BLUE, ORANGE, GREEN, RED, GREY = "#2a6fbb", "#e08a1e", "#3a9d6b", "#c8452f", "#8a97a3"
CYCLE = (BLUE, ORANGE, GREEN, RED, "#7a5bb5", GREY)


def new_figure(width: float, height: float) -> Figure:
    """In inches, without a display."""
    mpl.rcParams.update({
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.edgecolor": FAINT, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#e9edf0", "axes.axisbelow": True,
        "legend.frameon": False, "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "figure.facecolor": PAPER,
    })  # fmt: skip
    return Figure(figsize=(width, height), layout="constrained")


def title(figure: Figure, text: str, below: str) -> None:
    """A sentence that says what is seen, and a smaller line with the conditions."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=12.5 if len(text) < 90 else 10.5, fontweight="bold")
    figure.text(0.012, -0.005, below, ha="left", va="top", fontsize=8, color=GREY)


def milliseconds(axes: Axes, which: str = "x") -> None:
    """A logarithmic axis with plain labels: 20 ms, 1 s; over three decades and more only those are named, or they would touch."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))

    def minor(value: float, _: int | None) -> str:
        low, high = axis.get_view_interval()
        return _time(value) if f"{value:.0e}"[0] in "25" and high < 1000 * low else ""

    axis.set_minor_formatter(FuncFormatter(minor))
    axes.tick_params(axis="x" if which == "x" else "y", which="both", labelsize=8, length=0)


def save(figure: Figure, path: Path) -> None:
    """As PNG."""
    figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.15, metadata={"Software": ""})


def _time(value_ms: float) -> str:
    return f"{value_ms / 1000:g} s" if value_ms >= 1000 else f"{value_ms:g} ms"
