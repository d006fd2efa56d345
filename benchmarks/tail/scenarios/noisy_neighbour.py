"""A quiet tenant alone, and beside one that keeps 4, 16 and 64 prompts of 1,500 tokens in flight; the same under fcfs."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Flight, Results, Scenario, Setup, Stream, every
from benchmarks.tail.flags import FCFS

IN_FLIGHT = (0, 4, 16, 64)
FCFS_IN_FLIGHT = (0, 16)
INTERVAL_S, REQUESTS = 0.5, 300
WARM_S = 10.0


def cases(setup: Setup) -> Sequence[Case]:
    return [_case(f"{name}-{number}", flags, number, setup) for name, flags, numbers in _servers() for number in numbers]


def _servers() -> tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]:
    return ("vtc", (), IN_FLIGHT), ("fcfs", FCFS, FCFS_IN_FLIGHT)


def _case(name: str, flags: tuple[str, ...], in_flight: int, setup: Setup) -> Case:
    duration_s = setup.seconds(REQUESTS * INTERVAL_S)
    quiet = Stream(tenant="quiet", tier="interactive", arrivals=every(INTERVAL_S, duration_s, 70, 32))
    noisy = Flight(
        tenant="noisy", tier="standard", in_flight=in_flight, sizes=((1500, 64),), overrides={"queue_ttl_ms": None}
    )  # nobody is refused
    sources = (quiet, noisy) if in_flight else (quiet,)
    return Case(name=name, sources=sources, duration_s=duration_s, flags=flags, warm_s=WARM_S * bool(in_flight))


def figures(results: Results) -> Sequence[Figure]:
    def ratio(policy: str, in_flight: int) -> float | None:
        alone, beside = results.get(f"{policy}-0"), results.get(f"{policy}-{in_flight}")
        if alone is None or beside is None:
            return None
        return beside.tenants["quiet"].ttft_ms["p99"] / alone.tenants["quiet"].ttft_ms["p99"]

    def of_quiet(name: str, field: str) -> float | None:
        return getattr(results[name].tenants["quiet"], field) if name in results else None

    def noisy_tokens(name: str) -> float | None:
        report = results.get(name)
        return report.tenants["noisy"].prompt_tokens_per_s + report.tenants["noisy"].output_tokens_per_s if report else None

    kept, under_fcfs = noisy_tokens("vtc-16"), noisy_tokens("fcfs-16")
    refused = results["vtc-16"].tenants["quiet"] if "vtc-16" in results else None
    return [
        *(Figure(f"quiet P99 TTFT, {number} in flight / alone", ratio("vtc", number), "x", 1.5, 1.2) for number in IN_FLIGHT[1:]),
        Figure("the same under fcfs, 16 in flight", ratio("fcfs", 16), "x"),
        Figure("quiet requests refused, 16 in flight", refused and float(refused.refused_429 + refused.refused_503), "", 0, 0),
        Figure("quiet P99 gap between tokens, 16 in flight", of_quiet("vtc-16", "gap_p99_ms"), "ms", 75, 50),
        Figure("quiet worst gap between tokens, 16 in flight", of_quiet("vtc-16", "worst_gap_ms"), "ms", 150, 75),
        Figure("neighbour's tokens kept, against fcfs", kept / under_fcfs if kept and under_fcfs else None, "", 0.6, 0.8, at_most=False),
    ]


SCENARIO = Scenario(name="noisy_neighbour", about=__doc__, cases=cases, figures=figures)
