"""Runs a scenario's cases: one server for all cases with the same flags, tenants made through the administration API."""

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from benchmarks.noisy_neighbour import ADMIN_TOKEN, tenant_endpoint
from benchmarks.servers import Running, Server, ours, running
from benchmarks.sse_client import Endpoint
from benchmarks.tail.case import Arrival, Case, Source, Stream, tenants_of
from benchmarks.tail.report import CaseReport, tenant_report
from benchmarks.tail.traffic import Traffic

WATCHED = {
    "pages_used": re.compile(r'^fairlane_kv_pages\{[^}]*state="used"[^}]*\} (\S+)', re.MULTILINE),
    "rows_running": re.compile(r"^fairlane_running_requests\{[^}]*\} (\S+)", re.MULTILINE),
    "rows_waiting": re.compile(r"^fairlane_queue_depth\{[^}]*\} (\S+)", re.MULTILINE),
}
SETTLE_S = 2.0
IDLE_TIMEOUT_S = 60.0
CAPACITY_REQUESTS = 200
CAPACITY_TENANTS = 4
"""One alone would leave rows empty that are kept for others."""
CAPACITY_PART = 0.9
"""The end of a backlog does not count: rows stand empty there. As `fairlane simulate` has it."""
CAPACITY_DRAIN_S = 220.0

type Show = Callable[[str, float], None]
"""What is going on, and how much of it is done (0 to 1)."""


def server_of(flags: Sequence[str]) -> Server:
    """This appliance with a known administration token."""
    made = ours(list(flags))
    return Server(made.name, made.model, made.ready_path, made.command, {**made.env, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN_TOKEN})


async def run_cases(cases: Iterable[Case], show: Show, keep: Callable[[CaseReport], None]) -> None:
    """Measure each case; `keep` gets each report as soon as it is there."""
    for flags, group in groupby(cases, key=lambda case: case.flags):
        show(f"starting a server {' '.join(flags)}", 0.0)
        async with running(server_of(flags)) as ready:
            room = _Room(ready)
            for case in group:
                keep(await room.measure(case, show))


async def capacity_rps(flags: Sequence[str], sizes: tuple[tuple[int, int], ...], show: Show, part: float = 1.0) -> float:
    """Requests of this mix a second where there are always more: a backlog of `CAPACITY_REQUESTS` (a part of them), nine tenths of which
    have ended after so long."""
    reports: list[CaseReport] = []
    await run_cases([backlog_of(sizes, round(part * CAPACITY_REQUESTS), tuple(flags))], show, reports.append)
    return rate_of_backlog(reports[0])


def backlog_of(sizes: tuple[tuple[int, int], ...], count: int, flags: tuple[str, ...] = ()) -> Case:
    """So many requests of the mix at once, of tenants that wait however long it takes."""
    streams = tuple(
        Stream(
            tenant=f"capacity{index}",
            tier="standard",
            arrivals=tuple(Arrival(0.0, *sizes[number % len(sizes)]) for number in range(index, count, CAPACITY_TENANTS)),
            overrides={"max_concurrency": None, "max_queued": None, "queue_ttl_ms": None},
        )
        for index in range(CAPACITY_TENANTS)
    )
    return Case(name="capacity", sources=streams, duration_s=1.0, flags=flags, drain_s=CAPACITY_DRAIN_S)


def rate_of_backlog(report: CaseReport) -> float:
    """Requests a second. Raises SystemExit where some failed: then it is no backlog any more."""
    tenants = report.tenants.values()
    count, answered = sum(tenant.offered for tenant in tenants), sum(tenant.answered for tenant in tenants)
    if answered < count:
        raise SystemExit(f"capacity: {count - answered} of {count} requests were not answered ({[tenant.errors for tenant in tenants]})")
    return CAPACITY_PART * count / (sum(tenant.total_ms["p90"] for tenant in tenants) / len(tenants) / 1e3)


class _Room:
    """One running server, and the tenants it knows by now."""

    def __init__(self, ready: Running) -> None:
        self._ready = ready
        self._endpoints: dict[tuple[str, str, str], Endpoint] = {}

    async def measure(self, case: Case, show: Show) -> CaseReport:
        tenants = tenants_of(case.sources)
        endpoints = {tenant: await self._endpoint(source) for tenant, source in tenants.items()}
        await self._until_idle()
        traffic = Traffic(case, endpoints)
        cpu_before_s = time.process_time()
        await traffic.run(lambda second, _: show(f"{case.name}", second / case.duration_s))
        cpu_share = (time.process_time() - cpu_before_s) / (traffic.end_s - traffic.begin_s + case.warm_s)
        await asyncio.sleep(SETTLE_S)
        lags = sorted(each.outcome.sent_s - each.outcome.scheduled_s for each in traffic.sent if each.is_open)
        return CaseReport(
            name=case.name,
            flags=list(case.flags),
            duration_s=case.duration_s,
            tenants={
                tenant: tenant_report(tenant, source.tier, [s for s in traffic.sent if s.tenant == tenant], traffic.begin_s, traffic.end_s)
                for tenant, source in tenants.items()
            },
            lag_p99_ms=1e3 * lags[round(0.99 * (len(lags) - 1))] if lags else 0.0,
            generator_cpu_share=cpu_share,
            server=await asyncio.to_thread(self._watched),
        )

    async def _endpoint(self, source: Source) -> Endpoint:
        overrides = dict(source.overrides)
        key = source.tenant, source.tier, repr(overrides)
        if key not in self._endpoints:
            slug = f"{source.tenant}-{source.tier}-{len(self._endpoints)}"
            self._endpoints[key] = await asyncio.to_thread(tenant_endpoint, self._ready.endpoint, slug, source.tier, **overrides)
        return self._endpoints[key]

    async def _until_idle(self) -> None:
        for _ in range(round(IDLE_TIMEOUT_S / 0.25)):
            watched = await asyncio.to_thread(self._watched)
            if not watched["rows_running"] and not watched["rows_waiting"]:
                return
            await asyncio.sleep(0.25)

    def _watched(self) -> dict[str, float]:
        with urllib.request.urlopen(self._ready.endpoint.base_url + "/metrics", timeout=10) as response:
            text = response.read().decode()
        return {name: sum(map(float, pattern.findall(text))) for name, pattern in WATCHED.items()}
