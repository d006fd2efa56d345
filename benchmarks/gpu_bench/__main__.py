"""`make gpu-bench`: the GPU kernels and whole steps on the clock of a real card. Never yet run on one: see docs/gpu.md.

usage: python -m benchmarks.gpu_bench [--sections NAME,...] [--out FOLDER] [--fresh] [--dry-run [--card NAME]] [--tiny]

Sections, in order: correctness (every kernel against its twin on this device), decode, contiguous (one page, pages in order, scattered:
what paging costs), verify (several query tokens a row), prefill, write, steps. Each writes FOLDER/<section>.json when it is done and
is not run again on this card with these versions unless --fresh, so an interrupted run is taken up where it stopped.
`--dry-run` shows what would run and about how long it takes, on any machine. `--tiny` runs tiny shapes in Pallas's interpreter, to
see that the script works; its times mean nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import jax

from benchmarks.gpu_bench.cards import CARDS
from benchmarks.gpu_bench.clock import Bench, Measurement, Row
from benchmarks.gpu_bench.correctness import correctness
from benchmarks.gpu_bench.kernels import contiguous, decode, prefill, verify, write
from benchmarks.gpu_bench.steps import steps
from engine.kernels.gpu_backends import backends_of, gpu_backends
from engine.kernels.pallas_triton import PallasTritonBackend

BUDGET_S = 480
"""A borrowed card is not there for long."""

SECTIONS: dict[str, Callable[[Bench], Iterator[Measurement]]] = {
    "correctness": correctness,
    "decode": decode,
    "contiguous": contiguous,
    "verify": verify,
    "prefill": prefill,
    "write": write,
    "steps": steps,
}

REMEDY = """With a card: `make gpu-bench` installs requirements/cuda12.lock where it finds nvidia-smi; GPU_BENCH_PYTHON=python3 takes a
Python whose JAX has CUDA already as it is. Without one: --dry-run shows what would run."""

type Facts = dict[str, object]


def card_named(part: str) -> str:
    """The whole name of the one card that has `part` in its name."""
    found = [name for name in CARDS if part.lower() in name.lower()]
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"{part} is in the names of {len(found)} of these cards: {', '.join(CARDS)}")
    return found[0]


def bench_of_card(name: str) -> Bench:
    """For an estimate: with the backends that can run a shape on that card."""
    card = CARDS[name]
    return Bench(backends_of(card.capability), card)


def estimates_s(bench: Bench) -> dict[str, tuple[int, float]]:
    """Measurements and seconds of each section."""
    return {name: (len(planned := list(section(bench))), sum(m.estimate_s for m in planned)) for name, section in SECTIONS.items()}


def show_plan(bench: Bench, names: Sequence[str]) -> None:
    """What would run, and how long about."""
    total_s = 0.0
    for name, (count, seconds) in estimates_s(bench).items():
        if name in names:
            total_s += seconds
            print(f"{name:12} {count:4} measurements {seconds:6.0f} s")
    card = "an unknown card" if bench.card is None else bench.card.name
    print(f"{'all':12} {'':17} {total_s:6.0f} s on {card}, of at most {BUDGET_S}")


def run_section(name: str, bench: Bench, about: Facts, out: Path, *, fresh: bool) -> bool:
    """Whether all that it found is right; a section that is wrong writes nothing."""
    path = out / f"{name}.json"
    if not fresh and is_done(path, about):
        print(f"{name}: done before, see {path}")
        return True
    started_s = time.perf_counter()
    rows = [measurement.run() for measurement in SECTIONS[name](bench)]
    seconds = round(time.perf_counter() - started_s, 1)
    print(f"== {name}, {seconds} s\n{table(rows)}", flush=True)
    if not all(row.get("ok", True) for row in rows):
        return False
    path.write_text(json.dumps(about | {"seconds": seconds, "rows": rows}, indent=1) + "\n")
    return True


def is_done(path: Path, about: Facts) -> bool:
    """Whether a section's file is of this card, driver and versions."""
    if not path.exists():
        return False
    kept = json.loads(path.read_text())
    return {key: kept.get(key) for key in about} == about


def table(rows: Sequence[Row]) -> str:
    """Columns as wide as what is in them."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [heads, *([_shown(row.get(key)) for key in heads] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) and value < 1e-2 else str(value)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"of {', '.join(SECTIONS)}; default all")
    parser.add_argument("--out", type=Path, default=Path("var/gpu-bench"))
    parser.add_argument("--fresh", action="store_true", help="run sections again that are done")
    parser.add_argument("--dry-run", action="store_true", help="show what would run and how long it takes")
    parser.add_argument("--card", default="NVIDIA H200", type=card_named, help="of the estimate of --dry-run: H200, H100, A100 or B200")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes in the interpreter, on any machine")
    options = parser.parse_args(arguments)
    names = options.sections.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"--sections has {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    if options.dry_run:
        show_plan(bench_of_card(options.card), names)
        return 0
    device = jax.devices()[0]
    backends = (PallasTritonBackend((9, 0), interpret=True),) if options.tiny else gpu_backends(device)
    if not backends:
        print(f"JAX of {sys.executable} finds no NVIDIA GPU that the kernels run on, only {device.device_kind}.\n{REMEDY}", file=sys.stderr)
        return 2
    memory_bytes = 0 if options.tiny else device.memory_stats()["bytes_limit"]
    bench = Bench(backends, CARDS.get(device.device_kind), options.tiny, memory_bytes)
    show_plan(bench, names)
    options.out.mkdir(parents=True, exist_ok=True)
    about: Facts = {"device": device.device_kind, "jax": jax.__version__, "jaxlib": version("jaxlib"), "tiny": options.tiny}
    about |= {"platform": device.client.platform_version}
    for name in names:
        if not run_section(name, bench, about, options.out, fresh=options.fresh):
            print("a kernel is wrong on this device: nothing more is measured", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
