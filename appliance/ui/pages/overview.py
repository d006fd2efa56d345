"""The overview: is it ready, how busy is each lane, whose targets are met, what was refused."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency
from litestar.response import Stream

from appliance.domain.system.lanes import lane_loads
from appliance.route_access import READS
from appliance.telemetry.lane_times import Quantiles
from appliance.telemetry.slo import SloView
from appliance.ui.bars import Slice, slices
from appliance.ui.parts import Ui
from appliance.ui.streams import live_stream
from appliance.ui.targets import Target
from appliance.ui.tenant_facts import worst_by_tenant

SHOWN_TENANTS = 12
SHOWN_HOLDERS = 3

AnyRequest = Request[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane now."""

    lane: str
    running: int
    queued: int
    oldest_wait_s: float
    ttft: Quantiles
    target: Target | None
    """The tightest of all tenants' targets."""

    @property
    def is_late(self) -> bool:
        return self.target is not None and self.ttft.p99 is not None and self.ttft.p99 > self.target.seconds


@dataclass(frozen=True, slots=True)
class TenantRow:
    """How far a tenant's worst objective is met."""

    tenant: str
    worst: SloView


class OverviewController(Controller):
    """Its live parts; the page itself is `/ui/`."""

    @get("/live/status", opt=READS)
    async def status(self, request: AnyRequest, ui: NamedDependency[Ui]) -> Stream:
        """The one line in the menu, for pages that show nothing else that moves."""
        return live_stream(request, ui, "status", dict)

    @get("/live/overview", opt=READS)
    async def live(self, request: AnyRequest, ui: NamedDependency[Ui]) -> Stream:
        """Every piece of the overview, and the points of its charts."""
        return live_stream(request, ui, "overview", lambda: overview_pieces(ui), with_points=True)


def overview_page(request: AnyRequest, ui: Ui) -> Response[str]:
    """The page, for whom a session was found."""
    return ui.views.page(request, "overview.html", page="overview", pieces=overview_pieces(ui))


def overview_pieces(ui: Ui) -> Mapping[str, str]:
    """All that moves on it."""
    telemetry = ui.house.telemetry
    status = ui.house.health.ready()[1]
    last = ui.pulse.last
    values: dict[str, dict[str, Any]] = {
        "ready": {"status": status, "model": model_of(ui), "last": last},
        "lanes": {"lanes": lane_rows(ui)},
        "memory": {"bar_parts": kv_bar(ui)},
        "objectives": {"tenants": objective_rows(telemetry.slo.views(counted_only=True)), "shown": SHOWN_TENANTS},
        "refusals": {"refusals": ui.pulse.refusals()},
    }
    return {f"live-{name}": ui.views.fragment(f"overview/{name}.html", **given) for name, given in values.items()}


def model_of(ui: Ui) -> str:
    """The model that serves, or served last; empty before the first."""
    return ui.house.telemetry.requests.model_id


def lane_rows(ui: Ui) -> list[LaneRow]:
    """Every lane, busy or not."""
    telemetry, targets = ui.house.telemetry, ui.targets.by_lane
    return [
        LaneRow(lane, load.running, load.queued, load.oldest_wait_s, telemetry.lanes.ttft(lane), targets.get(lane))
        for lane, load in lane_loads(telemetry).items()
    ]


def objective_rows(views: Iterable[SloView]) -> list[TenantRow]:
    """A row a tenant that had requests, by the budget that its worst objective has left."""
    rows = [TenantRow(tenant, view) for tenant, view in worst_by_tenant(views).items()]
    return sorted(rows, key=lambda row: (row.worst.budget_left, row.tenant))


def kv_bar(ui: Ui) -> list[Slice]:
    """Pages of the KV pool: used, by the tenants that use most of it, cached, free; empty without an engine."""
    load = ui.house.telemetry.engine.load
    if load is None:
        return []
    by_tenant = ui.house.telemetry.engine.pages_by_tenant()
    most = sorted(by_tenant.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_HOLDERS]
    others = load.pages_used - sum(pages for _, pages in most)
    parts: list[tuple[str, str, float]] = [(tenant_id, f"tenant-{index}", pages) for index, (tenant_id, pages) in enumerate(most)]
    parts += [("others" if most else "used", "tenant-3", others)] if others > 0 or not most else []
    return slices([*parts, ("cached for reuse", "cached", load.pages_cached), ("free", "free", load.pages_free)])
