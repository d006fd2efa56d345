"""Scenarios on the simulator: the same scheduler, the steps of `engine/simulation/machine.json`, no machine that is noisy."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.tail.case import Figure, Setup
from benchmarks.tail.flags import ABLATIONS
from benchmarks.tail.report import TIER_TARGETS
from benchmarks.tail.scenarios.replay import ARENA27, AZURE, LOADS, rows_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner
from engine.scheduling.simulator import Served, Simulator
from engine.scheduling.step_model import StepModel
from engine.simulation.figures import Collector
from engine.simulation.machine import DEFAULT_MACHINE, read_machine
from engine.simulation.options import config_of
from engine.simulation.study import Study
from engine.simulation.trace import TraceRow, in_order
from engine.simulation.workload import Shape, prompt_of, submits
from engine.wire import Submit, TenantPolicy

PRIORITIES = {"interactive": 10, "standard": 0}
QUIET_S = 300.0
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


# ---- ablations


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who is there beside the quiet tenant, which asks for 32 tokens behind 70 new ones every second."""

    name: str
    noisy: int
    """Prompts of 1,500 tokens that another tenant keeps in flight."""
    batch: int = 0
    """Prompts of 700 tokens that a third one keeps in flight in the batch lane, for 200 tokens each."""
    prefix_tokens: int = 0
    """Of the quiet tenant's prompts, before the new ones, always the same."""
    flags: tuple[str, ...] = ()


CROWDS = (
    Crowd(name="alone", noisy=0),
    Crowd(name="beside", noisy=16),
    Crowd(name="alone, long prefix", noisy=0, prefix_tokens=512),
    Crowd(name="crowded", noisy=16, batch=8, prefix_tokens=512, flags=("--num-gpu-blocks-override", "700")),
)
"""The second and the fourth are measured with every part switched off in turn; crowded means that memory is scarce."""


def measure_crowd(crowd: Crowd, flags: Sequence[str], duration_s: float) -> dict[str, float]:
    """What becomes of the quiet tenant, and how much the others get."""
    tiers = {"quiet": policy_of("interactive", 4.0), "noisy": policy_of("standard", 1.0), "batch": policy_of("standard", 1.0)}
    policies = {tenant: msgspec.structs.replace(policy, tenant_id=tenant) for tenant, policy in tiers.items()}
    study = study_of([], engine_flags((*crowd.flags, *flags)), tiers)
    limits = study.limits()
    scheduler = Scheduler(limits, model=StepModel(study.machine.times))
    scheduler.set_policies(policies.values())
    collector, served_tokens, numbers = Collector(policies), 0, itertools.count()

    def request(row: TraceRow) -> Submit:
        number = next(numbers)
        (submit,) = submits([row], Shape(lane="batch" if row.tenant == "batch" else ""), policies, limits.vocab_size)
        prompt = prompt_of(row, number, limits.vocab_size)
        return msgspec.structs.replace(submit, sequence_id=number, prompt=prompt)

    def of_quiet(at_s: float) -> TraceRow:
        blocks = (limits.vocab_size,) if crowd.prefix_tokens else ()
        return TraceRow(at_s, "quiet", crowd.prefix_tokens + 70, 32, blocks, crowd.prefix_tokens)

    others = {"noisy": (1500, 64), "batch": (700, 200)}

    def on_end(served: Served) -> None:
        nonlocal served_tokens
        collector.take(served, 0)
        tenant = served.submit.tenant_id
        if tenant in others and served.ended_ns < duration_s * 1e9:
            served_tokens += len(served.submit.prompt) + len(served.token_times_ns)
            simulator.add([request(TraceRow(served.ended_ns / 1e9, tenant, *others[tenant]))])

    simulator = Simulator(scheduler, QuickRunner(limits.vocab_size), study.machine.times, on_end=on_end)
    for tenant, in_flight in (("noisy", crowd.noisy), ("batch", crowd.batch)):
        simulator.add(request(TraceRow(0.0, tenant, *others[tenant])) for _ in range(in_flight))
    simulator.add(request(of_quiet(5.0 + second)) for second in range(round(duration_s) - 10))
    simulator.run()
    quiet = next(tenant for tenant in collector.tenants() if tenant.tenant == "quiet")
    return {
        "ttft_p99_ms": quiet.ttft.p99_ms,
        "tpot_p99_ms": quiet.tpot.p99_ms,
        "worst_gap_ms": quiet.worst_gap_ms,
        "attainment": quiet.attainment,
        "others_tokens_per_s": served_tokens / duration_s,
    }


def run_ablations(setup: Setup, show: Show) -> list[Point]:
    duration_s = setup.seconds(QUIET_S)
    points: list[Point] = []
    for index, crowd in enumerate(CROWDS):
        for name, flags in ABLATIONS.items() if crowd.noisy else [("", ())]:
            show(f"{crowd.name} {name}", index / len(CROWDS))
            points.append(Point(name=f"{crowd.name}: {name}" if name else crowd.name, numbers=measure_crowd(crowd, flags, duration_s)))
    return points


def ablation_figures(points: Sequence[Point]) -> list[Figure]:
    by_name = {point.name: point.numbers["ttft_p99_ms"] for point in points}
    alone = {"beside": by_name["alone"], "crowded": by_name["alone, long prefix"]}
    cases = [(name, name.partition(":")[0]) for name in by_name if ":" in name]
    return [Figure(f"simulated, {name}: quiet P99 TTFT / alone", by_name[name] / alone[crowd], "x") for name, crowd in cases]


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
        name="ablations",
        about="A quiet tenant beside sixteen long prompts, with each part of the scheduler switched off in turn.",
        run=run_ablations,
        figures=ablation_figures,
    ),
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
