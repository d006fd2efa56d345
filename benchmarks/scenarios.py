"""The scenarios of the speed table, and what is reported of each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load import Outcome, Request, Run, closed_loop, open_loop
from benchmarks.prompts import prompt, words_of_tokens
from benchmarks.sse_client import Endpoint

PROMPT_TOKENS = 110
OUTPUT_TOKENS = 128
TTFT_WORDS = 60
TTFT_OUTPUT_TOKENS = 4
REQUESTS_PER_LEVEL = {1: 6, 8: 32, 32: 96}
"""Requests sent at each number in flight."""

type Report = dict[str, float | int | str | list[str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which scenarios to run, and how long."""

    levels: tuple[int, ...] = (1, 8, 32)
    scale: float = 1.0
    ttft_requests: int = 100
    ttft_interval_s: float = 0.5
    seed: int = 0


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed (nearest rank, so P99 of 100 is the 99th)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


async def run_plan(endpoint: Endpoint, plan: Plan) -> dict[str, Report]:
    """All scenarios of the plan on a running server, after three requests that do not count."""
    rng = random.Random(plan.seed)
    await closed_loop(endpoint, [Request(prompt(rng, TTFT_WORDS), 8) for _ in range(3)], 1)
    reports: dict[str, Report] = {}
    if plan.ttft_requests:
        quick = [Request(prompt(rng, TTFT_WORDS), TTFT_OUTPUT_TOKENS) for _ in range(plan.ttft_requests)]
        reports["ttft"] = report(await open_loop(endpoint, quick, plan.ttft_interval_s))
    for level in plan.levels:
        num = max(level, round(REQUESTS_PER_LEVEL.get(level, 3 * level) * plan.scale))
        long = [Request(prompt(rng, words_of_tokens(PROMPT_TOKENS)), OUTPUT_TOKENS) for _ in range(num)]
        reports[f"in_flight_{level}"] = report(await closed_loop(endpoint, long, level))
    return reports


def report(run: Run) -> Report:
    """Numbers of one load. Requests that failed are counted, and their tokens are not."""
    good: list[Outcome] = [outcome for outcome in run.outcomes if not outcome.error]
    errors = sorted({outcome.error.splitlines()[0][:200] for outcome in run.outcomes if outcome.error})
    base: Report = {
        "requests": len(run.outcomes),
        "failed": len(run.outcomes) - len(good),
        "wall_s": run.wall_s,
        "generator_cpu_share": run.generator_cpu_s / run.wall_s,
        "generator_lag_p99_ms": 1e3 * quantile([outcome.sent_s - outcome.scheduled_s for outcome in run.outcomes], 0.99),
    }
    if errors:
        base["errors"] = errors
    if not good:
        return base
    ttfts, tpots, gaps = [o.ttft_s for o in good], [o.tpot_s for o in good], [o.worst_gap_s for o in good]
    return base | {
        "output_tok_s": sum(o.completion_tokens for o in good) / run.wall_s,
        "prompt_tokens_mean": sum(o.prompt_tokens for o in good) / len(good),
        "output_tokens_mean": sum(o.completion_tokens for o in good) / len(good),
        "ttft_p50_ms": 1e3 * quantile(ttfts, 0.5),
        "ttft_p99_ms": 1e3 * quantile(ttfts, 0.99),
        "tpot_p50_ms": 1e3 * quantile(tpots, 0.5),
        "tpot_p99_ms": 1e3 * quantile(tpots, 0.99),
        "worst_gap_ms": 1e3 * max(gaps),
    }


COLUMNS = {
    "requests": ("n", 5, ".0f"),
    "failed": ("failed", 8, ".0f"),
    "output_tok_s": ("out tok/s", 11, ".1f"),
    "ttft_p50_ms": ("TTFT P50", 10, ".1f"),
    "ttft_p99_ms": ("P99 ms", 8, ".1f"),
    "tpot_p50_ms": ("TPOT P50", 10, ".1f"),
    "tpot_p99_ms": ("P99 ms", 8, ".1f"),
    "generator_lag_p99_ms": ("lag ms", 8, ".1f"),
    "generator_cpu_share": ("own CPU", 9, ".1%"),
}


def text_table(reports: dict[str, Report]) -> str:
    """A line for each scenario; errors beneath it."""
    lines = [f"{'scenario':<14}" + "".join(f"{title:>{width}}" for title, width, _ in COLUMNS.values())]
    for name, numbers in reports.items():
        cells = ((numbers.get(key), width, form) for key, (_, width, form) in COLUMNS.items())
        lines.append(f"{name:<14}" + "".join(f"{'-' if cell is None else format(cell, form):>{width}}" for cell, width, form in cells))
        errors = numbers.get("errors")
        lines += [f"    {error}" for error in errors] if isinstance(errors, list) else []
    return "\n".join(lines)
