"""How long `fairlane simulate` takes, and how much memory: public traces of an hour, and a million requests.

    python -m benchmarks.simulate_speed [--requests 1000000] [--trace-dir FOLDER]

Each case is the command itself, in a process of its own, after one another; times are processor time, of one core. Where the folder lacks a
trace its synthetic twin is replayed. A million requests take about 26 minutes: `--requests 10000` shows the same cost of a request in one.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.record import RESULTS, keep
from benchmarks.tail.case import Figure

HOUR = ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", ("--divide-lengths", "4", "--tenants", "8", "--load", "0.85"))
MINUTES = ("vtc_arena27/arena27_10min.csv", "arena27", ("--load", "0.85"))
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One case."""

    case: str
    requests: int
    steps: int
    virtual_s: float
    cpu_s: float
    peak_mb: float

    @property
    def cpu_ms_per_request(self) -> float:
        return 1e3 * self.cpu_s / self.requests


def run_case(case: str, source: Sequence[str], flags: Sequence[str]) -> Run:
    """The command in a process of its own."""
    before, peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN), 0
    with tempfile.TemporaryFile() as written:
        command = [sys.executable, "-m", "engine.simulation", *source, *flags, "--json", "-"]
        with subprocess.Popen(command, stdout=written) as process:
            while process.poll() is None:
                peak_kb = max(peak_kb, peak_kb_of(process.pid))
                time.sleep(LOOK_EVERY_S)
        if process.returncode:
            raise SystemExit(f"{case}: the simulation ended with {process.returncode}")
        written.seek(0)
        report = json.load(written)
    after, figures = resource.getrusage(resource.RUSAGE_CHILDREN), report["figures"]
    return Run(
        case=case,
        requests=report["requests"],
        steps=figures["steps"],
        virtual_s=figures["virtual_s"],
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_mb=peak_kb / 1024,
    )


def peak_kb_of(process_id: int) -> int:
    """Most memory that the process ever had resident. Not from `wait4`: that tells no less than this process had when it forked."""
    status = Path(f"/proc/{process_id}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def source_of(trace: str, twin: str, trace_dir: Path | None) -> tuple[str, ...]:
    """The trace, or its twin."""
    path = trace_dir / trace if trace_dir is not None else None
    return (str(path),) if path is not None and path.exists() else ("--synthetic", twin)


def main() -> None:
    """Print each figure beside its bar, and keep them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--trace-dir", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs: list[Run] = []
    for case, (trace, twin, flags) in (("hour", HOUR), ("ten minutes", MINUTES)):
        runs.append(run_case(case, source_of(trace, twin, arguments.trace_dir), flags))
        print(runs[-1], flush=True)
    trace, twin, flags = MINUTES
    many = run_case("many requests", source_of(trace, twin, arguments.trace_dir), (*flags, "--requests", str(arguments.requests)))
    print(many, flush=True)
    figures = [
        Figure(f"an hour's trace, {runs[0].requests} requests", runs[0].cpu_s, "s of one core", bar=60.0),
        Figure(f"{many.requests} requests, each", many.cpu_ms_per_request, "ms of one core", bar=1.0, aim=0.36),
        Figure(f"memory with {many.requests} requests", many.peak_mb, "MB", bar=512.0),
    ]
    keep("simulate-speed", figures, {"runs": [asdict(run) for run in (*runs, many)]}, arguments.out)


if __name__ == "__main__":
    main()
