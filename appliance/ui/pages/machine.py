"""The machine: what the scheduler decides, what the engine has compiled and holds, how everything is."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.response import Stream
from sqlalchemy import text

from appliance.db.base import Base
from appliance.db.revision import read_schema
from appliance.errors import ApplianceError
from appliance.route_access import READS
from appliance.telemetry import families as f
from appliance.telemetry.device_time import shares_of
from appliance.telemetry.host import process_use
from appliance.ui.bars import Slice, slices
from appliance.ui.parts import Ui
from appliance.ui.start_log import Start
from appliance.ui.streams import live_stream
from appliance.ui.views import AnyRequest
from engine.wire import StepRecord, TenantLoad

Uis = NamedDependency[Ui]
SHOWN_STEPS = 40
SHOWN_TENANTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """One tenant with work in the engine."""

    tenant: str
    weight: float
    counter: float
    debt: float
    running: int
    queued: int
    queued_tokens: int
    pages: int
    share: float
    """Of the work of the remembered steps."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step, and whose work it did."""

    record: StepRecord
    work: list[Slice]

    @property
    def seconds(self) -> float:
        return (self.record.done_ns - self.record.dispatched_ns) / 1e9


@dataclass(slots=True)
class ShapeRow:
    """A compiled shape, and how the remembered steps used it."""

    shape: str
    compiled_s: float | None = None
    called_s: float | None = None
    steps: int = 0
    seconds: float = 0.0
    predicted_s: float = 0.0
    tokens: int = 0
    pad_tokens: int = 0


class MachineController(Controller):
    """Pages about the machine."""

    @get("/scheduler", opt=READS)
    async def scheduler(self, request: AnyRequest, ui: Uis) -> Response[str]:
        """Counters, debts and shares; the last steps with their limits."""
        return ui.views.page(request, "machine/scheduler.html", page="scheduler", pieces=scheduler_pieces(ui))

    @get("/live/scheduler", opt=READS)
    async def live_scheduler(self, request: AnyRequest, ui: Uis) -> Stream:
        """The same, once a second."""
        return live_stream(request, ui, "scheduler", lambda: scheduler_pieces(ui))

    @get("/engine", opt=READS)
    async def engine(self, request: AnyRequest, ui: Uis) -> Response[str]:
        """Model, shapes, start, prefix cache, cards."""
        starts = [(start, start_bar(start)) for start in ui.house.starts.starts.values()]
        return ui.views.page(request, "machine/engine.html", page="engine", pieces=engine_pieces(ui), starts=starts)

    @get("/live/engine", opt=READS)
    async def live_engine(self, request: AnyRequest, ui: Uis) -> Stream:
        """The same, once a second."""
        return live_stream(request, ui, "engine", lambda: engine_pieces(ui))

    @get("/health", opt=READS)
    async def health(self, request: AnyRequest, ui: Uis) -> Response[str]:
        """What is ready, the last starts, the database, the books."""
        house = ui.house
        database = await _database_facts(ui)
        values = {
            "live": house.health.live()[1],
            "starts": [(start, start_bar(start)) for start in house.starts.starts.values()],
            "earlier": [(start, start_bar(start)) for start in house.starts.earlier],
            "engines_up": house.engines.are_up(),
            "engine_starts": house.engines.num_starts(),
            "database": database,
            "unwritten_s": house.usage.unwritten_s,
            "num_usage_lost": house.usage.num_lost,
            "spooled_bytes": house.usage.spooled_bytes,
            "sums": [(name, found) for name, read in house.telemetry.accounting.checks.items() if (found := read()) is not None],
            "processes": _processes(ui),
        }
        return ui.views.page(request, "machine/health.html", page="health", **values)


def scheduler_pieces(ui: Ui) -> Mapping[str, str]:
    """What moves on the scheduler's page."""
    telemetry = ui.house.telemetry
    newest = list(islice(telemetry.ledger.newest_first(), SHOWN_STEPS))
    tenants = tenant_shares(telemetry.engine.load.tenants if telemetry.engine.load else (), telemetry.engine.pages_by_tenant(), newest)
    values: dict[str, dict[str, Any]] = {
        "tenants": {"tenants": tenants[:SHOWN_TENANTS], "more": max(0, len(tenants) - SHOWN_TENANTS)},
        "steps": {"steps": [StepRow(record, work_of(record)) for record in newest], "max_step_ms": ui.house.settings.engine.max_step_ms},
    }
    return {f"live-{name}": ui.views.fragment(f"machine/{name}.html", **given) for name, given in values.items()}


def tenant_shares(loads: tuple[TenantLoad, ...], pages: Mapping[str, int], records: list[StepRecord]) -> list[TenantShare]:
    """A row a tenant, who was served least first, as the scheduler takes them."""
    work: defaultdict[str, float] = defaultdict(float)
    for record in records:
        for tenant_id, share in shares_of(record).items():
            work[tenant_id] += share * (record.done_ns - record.dispatched_ns)
    total = sum(work.values()) or 1.0
    by_tenant: defaultdict[str, list[TenantLoad]] = defaultdict(list)
    for load in loads:
        by_tenant[load.tenant_id].append(load)
    rows = [
        TenantShare(
            tenant=tenant_id,
            weight=lanes[0].weight,
            counter=lanes[0].counter,
            debt=lanes[0].debt,
            running=sum(load.running_rows for load in lanes),
            queued=sum(load.queued_rows for load in lanes),
            queued_tokens=sum(load.queued_tokens for load in lanes),
            pages=pages.get(tenant_id, 0),
            share=work.get(tenant_id, 0.0) / total,
        )
        for tenant_id, lanes in by_tenant.items()
    ]
    return sorted(rows, key=lambda row: (row.counter, row.tenant))


def work_of(record: StepRecord) -> list[Slice]:
    """Whose work a step did, most first; shades tell the tenants apart within a step."""
    shares = sorted(shares_of(record).items(), key=lambda item: -item[1])
    return slices([(tenant_id, f"shade-{min(index, 4)}", share) for index, (tenant_id, share) in enumerate(shares)])


def engine_pieces(ui: Ui) -> Mapping[str, str]:
    """What moves on the engine's page."""
    telemetry = ui.house.telemetry
    load, totals = telemetry.engine.load, telemetry.engine.totals()
    looked_up = totals[f.PREFIX_QUERIES.name]
    values: dict[str, dict[str, Any]] = {
        "engines": {"books": list(telemetry.engine.books.values())},
        "shapes": {"shapes": shape_rows(ui)},
        "cache": {"load": load, "looked_up": looked_up, "found": totals[f.PREFIX_HITS.name], "totals": totals},
        "cards": {"cards": telemetry.host.cards.read()},
    }
    return {f"live-{name}": ui.views.fragment(f"machine/{name}.html", **given) for name, given in values.items()}


def shape_rows(ui: Ui) -> list[ShapeRow]:
    """Every shape that was compiled or used, the most used first, the others as they were compiled."""
    rows: dict[str, ShapeRow] = {}
    for start in ui.house.starts.starts.values():
        for shape, times in start.programs.items():
            rows.setdefault(shape, ShapeRow(shape, times.get("compile"), times.get("warmup")))
    for record in ui.house.telemetry.ledger.newest_first():
        row = rows.setdefault(record.bucket, ShapeRow(record.bucket))
        row.steps += 1
        row.seconds += (record.done_ns - record.dispatched_ns) / 1e9
        row.predicted_s += record.predicted_s
        row.tokens += record.decode_rows + record.prefill_tokens
        row.pad_tokens += record.pad_tokens
    return sorted(rows.values(), key=lambda row: -row.steps)


def start_bar(start: Start) -> list[Slice]:
    """The phases of a start, one after the other."""
    kinds = ("shade-0", "shade-1", "shade-2", "shade-3", "shade-4", "shade-5")
    phases = sorted(start.phases.values(), key=lambda phase: phase.begin_s)
    return slices(
        [(phase.name, kinds[index % len(kinds)], (phase.end_s or start.seconds) - phase.begin_s) for index, phase in enumerate(phases)]
    )


async def _database_facts(ui: Ui) -> dict[str, Any]:
    """Kind, schema and time of an answer; why not where it does not answer."""
    database, directory = ui.house.control.store.database, ui.house.control.directory
    clock_s = asyncio.get_running_loop().time
    began_s = clock_s()
    facts: dict[str, Any] = {"kind": database.engine.dialect.name, "flaw": directory.flaw, "version": directory.snapshot.version}
    if directory.is_lost:  # one that hangs is not waited for
        return facts | {"answers_s": None, "schema": None, "problem": directory.flaw}
    try:
        async with database.read() as session:
            await session.execute(text("SELECT 1"))
        facts |= {"answers_s": clock_s() - began_s, "schema": await read_schema(database, Base.metadata), "problem": ""}
    except ApplianceError as error:
        facts |= {"answers_s": None, "schema": None, "problem": error.message}
    return facts


def _processes(ui: Ui) -> list[tuple[str, int, Any]]:
    """Name, number and use of each process."""
    engines = [(f"engine {index}", pid) for index, pid in enumerate(ui.house.engines.pids())]
    return [(name, pid, process_use(pid)) for name, pid in [("control plane", os.getpid()), *engines]]
