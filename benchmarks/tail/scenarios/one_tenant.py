"""What the whole machinery costs where nobody needs it: one tenant keeps all rows busy, under the default policy and under fcfs."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Flight, Results, Scenario, Setup
from benchmarks.tail.flags import FCFS

ROUNDS = 3
POLICIES = {"default": (), "fcfs": FCFS}


def cases(setup: Setup) -> Sequence[Case]:
    flight = Flight(
        tenant="only", tier="standard", in_flight=32, sizes=((110, 128), (110, 96), (110, 160)), overrides={"queue_ttl_ms": None}
    )  # nobody is refused, and answers of different lengths do not all end together
    return [
        Case(name=f"{policy}-{turn}", sources=(flight,), duration_s=setup.seconds(25), flags=flags, warm_s=8)
        for turn in range(ROUNDS)
        for policy, flags in POLICIES.items()
    ]


def figures(results: Results) -> Sequence[Figure]:
    pairs = [
        (results[f"default-{turn}"], results[f"fcfs-{turn}"])
        for turn in range(ROUNDS)
        if {f"default-{turn}", f"fcfs-{turn}"} <= results.keys()
    ]
    if not pairs:
        return []
    default, fcfs = (sum(pair[side].tokens_per_s for pair in pairs) / len(pairs) for side in (0, 1))
    return [
        Figure("one tenant: tokens a second, default / fcfs: what it costs", 100 * (1 - default / fcfs), "%", 5.0, 2.0),
        Figure("one tenant: prompt and output tokens a second", default, "tok/s"),
    ]


SCENARIO = Scenario(name="one_tenant", about=__doc__, cases=cases, figures=figures)
