"""A 10-token answer twice a second beside eight answers of 2,000 tokens that are always running."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Flight, Results, Scenario, Setup, Stream, every


def cases(setup: Setup) -> Sequence[Case]:
    duration_s = setup.seconds(40)
    short = Stream(tenant="short", tier="interactive", arrivals=every(0.5, duration_s, 70, 10))
    long = Flight(tenant="long", tier="standard", in_flight=8, sizes=((70, 2000),))
    return [
        Case(name="alone", sources=(short,), duration_s=duration_s),
        Case(name="beside-long-answers", sources=(short, long), duration_s=duration_s, warm_s=10),
    ]


def figures(results: Results) -> Sequence[Figure]:
    if "alone" not in results or "beside-long-answers" not in results:
        return []
    alone, beside = (results[name].tenants["short"] for name in ("alone", "beside-long-answers"))
    return [
        Figure("straggler: whole 10-token answer, P99 / alone", beside.total_ms["p99"] / alone.total_ms["p99"], "x"),
        Figure("straggler: whole 10-token answer, P99", beside.total_ms["p99"], "ms"),
    ]


SCENARIO = Scenario(name="straggler", about=__doc__, cases=cases, figures=figures)
