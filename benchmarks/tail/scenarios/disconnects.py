"""Three of ten clients hang up within two seconds, at 0.7 of capacity: the others must not notice, and nothing may leak."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Results, Scenario, Setup, Stream, poisson

SIZE = (200, 96)
LOAD, LEAVES = 0.7, 0.3


def mix(_setup: Setup) -> tuple[tuple[int, int], ...]:
    return (SIZE,)


def cases(setup: Setup) -> Sequence[Case]:
    duration_s = setup.seconds(40)
    arrivals = poisson(LOAD * setup.capacity_rps, duration_s, *SIZE, seed=5)
    return [
        Case(name=name, sources=(Stream(tenant="crowd", tier="interactive", arrivals=arrivals, leaves=leaves),), duration_s=duration_s)
        for name, leaves in (("nobody-leaves", 0.0), ("three-of-ten-leave", LEAVES))
    ]


def figures(results: Results) -> Sequence[Figure]:
    report = results.get("three-of-ten-leave")
    if report is None:
        return []
    crowd = report.tenants["crowd"]
    return [
        Figure("30 % disconnects: failed among those who stayed", float(crowd.failed), "", 0, 0),
        Figure("30 % disconnects: KV pages used 2 s after the end", report.server.get("pages_used"), "", 0, 0),
        Figure("30 % disconnects: attainment of those who stayed", 100 * crowd.attainment, "%"),
    ]


SCENARIO = Scenario(name="disconnects", about=__doc__, cases=cases, figures=figures, capacity_of=mix)
