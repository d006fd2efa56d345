"""A conformant tenant with a contract for what it sends, 0.4 of capacity; another steps from 0.4 to 1.1 (together 1.5), and floods
with ten times its 0.4."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Results, Scenario, Setup, Stream, poisson

SIZE = (110, 64)
CONFORMANT = 0.4
CONTRACT_MARGIN = 1.5
"""Its minute may hold so many times its mean: arrivals are random."""
STEPS = {"calm": 0.4, "step-1.5": 1.1, "flood-10x": 4.0}


def mix(_setup: Setup) -> tuple[tuple[int, int], ...]:
    return (SIZE,)


def cases(setup: Setup) -> Sequence[Case]:
    duration_s, rate = setup.seconds(30), setup.capacity_rps
    contract = {"committed_tpm": round(CONTRACT_MARGIN * CONFORMANT * rate * sum(SIZE) * 60)}
    arrivals = poisson(CONFORMANT * rate, duration_s, *SIZE, seed=3)
    steady = Stream(tenant="steady", tier="interactive", arrivals=arrivals, overrides=contract)
    return [
        Case(
            name=name,
            sources=(steady, Stream(tenant="surge", tier="standard", arrivals=poisson(load * rate, duration_s, *SIZE, seed=4))),
            duration_s=duration_s,
        )
        for name, load in STEPS.items()
    ]


def figures(results: Results) -> Sequence[Figure]:
    found: list[Figure] = []
    for name in ("step-1.5", "flood-10x"):
        if name in results:
            steady = results[name].tenants["steady"]
            found.append(Figure(f"{name}: conformant requests refused", float(steady.refused_429 + steady.refused_503), "", 0, 0))
            found.append(Figure(f"{name}: conformant attainment", 100 * steady.attainment, "%"))
    return found


SCENARIO = Scenario(name="overload", about=__doc__, cases=cases, figures=figures, capacity_of=mix)
