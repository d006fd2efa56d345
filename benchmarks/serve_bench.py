"""Measures any OpenAI-compatible server that is already running.

    python -m benchmarks.serve_bench --base-url http://127.0.0.1:8000 --model smollm2-135m-instruct --api-key KEY

Prints a table; `--json FILE` writes the numbers.
"""

import argparse
import asyncio
import json
from pathlib import Path

from benchmarks.scenarios import Plan, run_plan, text_table
from benchmarks.sse_client import Endpoint


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say what to measure."""
    parser.add_argument("--levels", default="1,8,32", help="numbers of requests in flight, with commas between; empty: none")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many requests at each number in flight")
    parser.add_argument("--ttft-requests", type=int, default=100, help="requests that time the first token on an idle server; 0: none")
    parser.add_argument("--ttft-interval-s", type=float, default=0.5, help="seconds between those")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts; another seed for another round")


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan that the flags describe."""
    levels = tuple(int(level) for level in arguments.levels.split(",") if level)
    return Plan(levels, arguments.scale, arguments.ttft_requests, arguments.ttft_interval_s, arguments.seed)


def main() -> None:
    """Run the plan against one server."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve_bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    add_plan_arguments(parser)
    arguments = parser.parse_args()
    endpoint = Endpoint(arguments.base_url, arguments.model, arguments.api_key)
    reports = asyncio.run(run_plan(endpoint, plan_of(arguments)))
    print(text_table(reports))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
