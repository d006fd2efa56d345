"""The replays on the simulator, tiers as they are seeded, no admission: what becomes of interactive requests, and what could at most."""

from collections.abc import Sequence
from heapq import heappop, heappush

from appliance.domain.slas.decisions import SEED_TIERS, policy_of
from benchmarks.tail.case import Figure, Setup
from benchmarks.tail.report import TIER_TARGETS
from benchmarks.tail.scenarios.replay import ARENA27, AZURE, LOADS, Trace, rows_of, tiers_of
from benchmarks.tail.simulated import Point, Show, Simulated, study_of
from engine.scheduling.step_model import NO_WORK, StepTimes, Work
from engine.simulation.trace import TraceRow
from engine.simulation.workload import Shape

ROWS = 1500


def run(setup: Setup, show: Show) -> list[Point]:
    """Each trace at each load."""
    runs = [(trace, load) for trace in (ARENA27, AZURE) for load in LOADS]
    points: list[Point] = []
    for index, (trace, load) in enumerate(runs):
        show(f"{trace.name} at {load}", index / len(runs))
        points.append(replayed(trace, load, setup))
    return points


def replayed(trace: Trace, load: float, setup: Setup) -> Point:
    """One replay."""
    rows = rows_of(trace, setup.trace_dir)[: round(setup.seconds(ROWS))]
    tiers = tiers_of(rows)
    policies = {tenant: policy_of(tenant, tenant, tier, SEED_TIERS[tier], 1) for tenant, tier in tiers.items()}
    study = study_of(rows, {}, policies)
    speed = load * study.capacity_rps(Shape()) / study.trace_rps(Shape())
    tenants = study.run(Shape(speed=speed)).tenants
    ours = [row for row in rows if tiers[row.tenant] == "interactive"]
    numbers = {
        tier: sum(each.attainment * each.requests for each in tenants if tiers[each.tenant] == tier)
        / max(1, sum(each.requests for each in tenants if tiers[each.tenant] == tier))
        for tier in ("interactive", "standard")
    }
    bound = in_time_alone(ours, speed, study.machine.times) / max(1, len(ours))
    return Point(name=f"{trace.name} {load}", numbers=numbers | {"requests": float(len(ours)), "bound": bound})


def in_time_alone(rows: Sequence[TraceRow], speed: float, times: StepTimes) -> int:
    """How many first tokens could be in time on a machine that computes nothing but these prompts, each at the speed of the program that
    does most of them, whichever has the earliest deadline first, without those that would be late. Where that is all of them, it is what
    a policy could reach that gave interactive requests everything."""
    targets = TIER_TARGETS["interactive"]
    waiting: list[tuple[float, int, float]] = []
    now_s, in_time = 0.0, 0
    arrivals = [(row.arrived_s / speed, row.prompt_tokens) for row in rows]
    for number, (at_s, tokens) in enumerate(arrivals):
        target_s = targets.fast_ttft_s if tokens <= targets.fast_prompt_tokens else targets.slow_ttft_s
        now_s = max(now_s, at_s)
        heappush(waiting, (at_s + target_s, number, least_s(tokens, times)))
        until_s = arrivals[number + 1][0] if number + 1 < len(arrivals) else float("inf")
        while waiting and now_s < until_s:
            deadline_s, other, left_s = heappop(waiting)
            if now_s + left_s > deadline_s:
                continue
            done_s = min(left_s, until_s - now_s)
            now_s += done_s
            if done_s < left_s:
                heappush(waiting, (deadline_s, other, left_s - done_s))
            else:
                in_time += 1
    return in_time


def least_s(tokens: int, times: StepTimes) -> float:
    """Of a prompt: its tokens at the rate of the best program, and its attention."""
    own = NO_WORK.with_chunk(tokens, 0)
    rates = [each.prefill_tokens / times.seconds(each, Work(each.prefill_tokens)) for each in times.base_s if each.prefill_tokens]
    return tokens / max(rates) + own.prefill_pairs * times.prefill_pair_s


def figures(points: Sequence[Point]) -> list[Figure]:
    """Beside the bar of the same replay over HTTP, which is the one that counts."""
    found: list[Figure] = []
    for point in points:
        found.append(Figure(f"simulated {point.name}: interactive attainment", 100 * point.numbers["interactive"], "%"))
        found.append(Figure(f"simulated {point.name}: with nothing else to compute", 100 * point.numbers["bound"], "%"))
    return found


SCENARIO = Simulated(name="replays", about=__doc__ or "", run=run, figures=figures)
