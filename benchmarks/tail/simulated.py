"""Scenarios on the simulator: the same scheduler, the steps of `engine/simulation/machine.json`, no machine that is noisy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.tail.case import Figure, Setup
from benchmarks.tail.report import TIER_TARGETS
from benchmarks.tail.scenarios.replay import ARENA27, AZURE, LOADS, rows_of
from engine.simulation.machine import DEFAULT_MACHINE, read_machine
from engine.simulation.options import config_of
from engine.simulation.study import Study
from engine.simulation.trace import TraceRow, in_order
from engine.simulation.workload import Shape
from engine.wire import TenantPolicy

PRIORITIES = {"interactive": 10, "standard": 0}
USERS, PROMPTS = (4, 8, 16, 32, 64), (64, 256, 512, 1024, 2048)
USER_EVERY_S, USER_OUTPUT_TOKENS, SWEEP_S = 10.0, 64, 180.0

type Show = Callable[[str, float], None]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One simulated run."""

    name: str
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A scenario without a server."""

    name: str
    about: str
    run: Callable[[Setup, Show], list[Point]]
    figures: Callable[[Sequence[Point]], list[Figure]]


def policy_of(tier: str, weight: float) -> TenantPolicy:
    """A tier's targets as the scheduler reads them."""
    targets = TIER_TARGETS[tier]
    return TenantPolicy(
        tenant_id=tier,
        weight=weight,
        priority=PRIORITIES[tier],
        ttft_s={"fast": targets.fast_ttft_s, "slow": targets.slow_ttft_s},
        tpot_s={"fast": targets.fast_tpot_s, "slow": targets.slow_tpot_s},
        queue_ttl_s=None,
    )


def study_of(rows: Sequence[TraceRow], flags: dict[str, object], tiers: dict[str, TenantPolicy] | None = None) -> Study:
    """A replay on the committed machine; `tiers` by tenant."""
    given = tuple(msgspec.structs.replace(policy, tenant_id=tenant) for tenant, policy in (tiers or {}).items())
    return Study(rows, read_machine(DEFAULT_MACHINE), config_of(flags), policy_of("interactive", 1.0), given)


def engine_flags(flags: Sequence[str]) -> dict[str, object]:
    """`--max-step-ms 0`, `--no-enable-kv-quota` and the like as fields of the engine's configuration."""
    found: dict[str, object] = {}
    rest = list(flags)
    while rest:
        name = rest.pop(0).removeprefix("--").replace("-", "_")
        if rest and not rest[0].startswith("--"):
            found[name] = rest.pop(0)
        else:
            found[name.removeprefix("no_")] = not name.startswith("no_")
    return found


# ---- the counters' gap


def run_vtc_gap(setup: Setup, show: Show) -> list[Point]:
    points: list[Point] = []
    runs = [(trace, load, policy) for trace in (ARENA27, AZURE) for load in LOADS for policy in ("vtc", "fcfs")]
    for index, (trace, load, policy) in enumerate(runs):
        show(f"{trace.name} at {load}, {policy}", index / len(runs))
        rows = rows_of(trace, setup.trace_dir)[: round(setup.seconds(1500))]
        study = study_of(rows, {"scheduling_policy": policy})
        figures = study.run(Shape(speed=load * study.capacity_rps(Shape()) / study.trace_rps(Shape())))
        numbers = {"vtc_ratio": figures.vtc_ratio, "jain": figures.jain_index, "attainment": figures.total.attainment}
        points.append(Point(name=f"{trace.name} {load} {policy}", numbers=numbers))
    return points


def gap_figures(points: Sequence[Point]) -> list[Figure]:
    ours = [point for point in points if point.name.endswith("vtc")]
    worst = max(point.numbers["vtc_ratio"] for point in ours)
    return [Figure("VTC gap over its bound, the worst of eight simulated replays", worst, "", 1.0, 1.0)]


# ---- users and prompt lengths


def run_sweep(setup: Setup, show: Show) -> list[Point]:
    points: list[Point] = []
    for index, (users, prompt) in enumerate((users, prompt) for users in USERS for prompt in PROMPTS):
        show(f"{users} users, {prompt} tokens", index / (len(USERS) * len(PROMPTS)))
        points.append(sweep_point(users, prompt, setup.seconds(SWEEP_S)))
    return points


def sweep_point(users: int, prompt_tokens: int, duration_s: float) -> Point:
    """So many users, each of whom asks every ten seconds."""
    rows = in_order(
        TraceRow(turn * USER_EVERY_S + USER_EVERY_S * user / users, f"user{user:02}", prompt_tokens, USER_OUTPUT_TOKENS)
        for user in range(users)
        for turn in range(round(duration_s / USER_EVERY_S))
    )
    total = study_of(rows, {}).run(Shape()).total
    numbers = {"users": float(users), "prompt_tokens": float(prompt_tokens), "attainment": total.attainment}
    return Point(name=f"{users} x {prompt_tokens}", numbers=numbers | {"ttft_p99_ms": total.ttft.p99_ms})


SIMULATED = (
    Simulated(
        name="vtc_gap",
        about="How far the virtual counters of waiting tenants drift apart in replays, over the bound.",
        run=run_vtc_gap,
        figures=gap_figures,
    ),
    Simulated(
        name="sweep",
        about="Users that ask every ten seconds for 64 tokens, by number and prompt length: how many keep the interactive targets.",
        run=run_sweep,
        figures=lambda _: [],
    ),
)
