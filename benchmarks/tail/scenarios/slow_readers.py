"""Sixteen clients read long answers at 1 KB/s beside a quiet tenant: they may hold neither rows nor memory that others need."""

from collections.abc import Sequence

from benchmarks.tail.case import Case, Figure, Flight, Results, Scenario, Setup, Stream, every

READERS, BYTES_PER_S = 16, 1024


def cases(setup: Setup) -> Sequence[Case]:
    duration_s = setup.seconds(40)
    quiet = Stream(tenant="quiet", tier="interactive", arrivals=every(0.5, duration_s, 70, 32))
    readers = Flight(tenant="slow", tier="standard", in_flight=READERS, sizes=((70, 1500),), read_bytes_per_s=BYTES_PER_S)
    return [
        Case(name="alone", sources=(quiet,), duration_s=duration_s),
        Case(name="beside-slow-readers", sources=(quiet, readers), duration_s=duration_s, warm_s=8),
    ]


def figures(results: Results) -> Sequence[Figure]:
    if "alone" not in results or "beside-slow-readers" not in results:
        return []
    alone, beside = (results[name].tenants["quiet"] for name in ("alone", "beside-slow-readers"))
    return [
        Figure("slow readers: quiet P99 TTFT / alone", beside.ttft_ms["p99"] / alone.ttft_ms["p99"], "x"),
        Figure("slow readers: quiet requests not answered", float(beside.offered - beside.answered), "", 0, 0),
    ]


SCENARIO = Scenario(name="slow_readers", about=__doc__, cases=cases, figures=figures)
