"""Two tenants of one tier with requests alike; one sends 32 times as many as the other, and more than the machine can serve."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Results, Scenario, Setup, Stream, poisson

QUIET_PER_S, TIMES = 0.75, 32
PROMPT_TOKENS, OUTPUT_TOKENS = 70, 32


def cases(setup: Setup) -> Sequence[Case]:
    duration_s = setup.seconds(40)
    quiet = Stream(tenant="quiet", tier="standard", arrivals=poisson(QUIET_PER_S, duration_s, PROMPT_TOKENS, OUTPUT_TOKENS, seed=1))
    flood = Stream(tenant="flood", tier="standard", arrivals=poisson(TIMES * QUIET_PER_S, duration_s, PROMPT_TOKENS, OUTPUT_TOKENS, seed=2))
    return [
        Case(name="alone", sources=(quiet,), duration_s=duration_s),
        Case(name="flooded", sources=(quiet, flood), duration_s=duration_s),
    ]


def figures(results: Results) -> Sequence[Figure]:
    if "flooded" not in results or "alone" not in results:
        return []
    quiet, alone = results["flooded"].tenants["quiet"], results["alone"].tenants["quiet"]
    return [
        Figure("1:32 flooder: quiet P99 TTFT / alone", quiet.ttft_ms["p99"] / alone.ttft_ms["p99"], "x"),
        Figure("1:32 flooder: quiet requests refused", float(quiet.refused_429 + quiet.refused_503), "", 0, 0),
        Figure("1:32 flooder: quiet attainment", 100 * quiet.attainment, "%"),
    ]


SCENARIO = Scenario(name="flooder", about=__doc__, cases=cases, figures=figures)
