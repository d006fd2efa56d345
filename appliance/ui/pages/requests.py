"""Requests in flight and slow ones, and what became of one: its time line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect, Stream

from appliance.domain.admins.guard import actor_of
from appliance.route_access import READS, WRITES
from appliance.telemetry.explain.review import KEPT_SLOW
from appliance.telemetry.requests import RequestReport
from appliance.ui.forms import one_of
from appliance.ui.parts import Ui
from appliance.ui.streams import live_stream, status_piece
from appliance.ui.timelines import Drawing, drawing_of
from appliance.ui.views import HEADERS
from engine.wire import LANES

MAX_ROWS = 100
STAGES = ("queue", "prefill", "decode")
REASONS = {"ttft": "TTFT missed", "tpot": "TPOT missed", "gap": "a long wait for a token", "failed": "failed", "tail": "slowest hundredth"}

AnyRequest = Request[Any, Any, Any]
Uis = NamedDependency[Ui]
Text = Annotated[str, QueryParameter(max_length=200)]


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A request in flight. Times in seconds."""

    request_id: str
    tenant: str
    lane: str
    stage: str
    age_s: float
    ttft_s: float | None
    ttft_target_s: float | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int

    @property
    def is_late(self) -> bool:
        """Its first token is, or will be, later than its target."""
        return self.ttft_target_s is not None and (self.age_s if self.ttft_s is None else self.ttft_s) > self.ttft_target_s


@dataclass(frozen=True, slots=True)
class Filter:
    """What the lists are narrowed to; empty: all. `kind` is a stage of live requests, or why one was slow."""

    tenant: str = ""
    lane: str = ""
    kind: str = ""

    def takes(self, tenant: str, lane: str, kinds: Iterable[str]) -> bool:
        return self.tenant in ("", tenant) and self.lane in ("", lane) and (not self.kind or self.kind in kinds)


def filter_of(tenant: Text = "", lane: FromQuery[str] = "", stage: FromQuery[str] = "", why: FromQuery[str] = "") -> Filter:
    """As an address has it: `stage` for live requests, `why` for slow ones."""
    return Filter(tenant.strip(), one_of(lane, LANES), one_of(stage, STAGES) or one_of(why, REASONS))


class RequestPages(Controller):
    """Lists, and one request."""

    dependencies = {"chosen": Provide(filter_of, sync_to_thread=False)}

    @get("/requests", opt=READS)
    async def live(self, request: AnyRequest, ui: Uis, chosen: NamedDependency[Filter]) -> Response[str]:
        """What is in flight."""
        pieces, kinds = {**live_pieces(ui, chosen), **status_piece(ui)}, {stage: stage for stage in STAGES}
        return ui.views.page(request, "requests.html", page="requests", chosen=chosen, lanes=LANES, kinds=kinds, pieces=pieces)

    @get("/live/requests", opt=READS)
    async def live_updates(self, request: AnyRequest, ui: Uis, chosen: NamedDependency[Filter]) -> Stream:
        """The list, once a second."""
        return live_stream(request, ui, f"requests {chosen}", lambda: live_pieces(ui, chosen))

    @get("/slow", opt=READS)
    async def slow(self, request: AnyRequest, ui: Uis, chosen: NamedDependency[Filter]) -> Response[str]:
        """What was slow, newest first."""
        pieces = {**slow_pieces(ui, chosen), **status_piece(ui)}
        return ui.views.page(request, "slow.html", page="slow", chosen=chosen, lanes=LANES, kinds=REASONS, pieces=pieces)

    @get("/live/slow", opt=READS)
    async def slow_updates(self, request: AnyRequest, ui: Uis, chosen: NamedDependency[Filter]) -> Stream:
        """The list, once a second."""
        return live_stream(request, ui, f"slow {chosen}", lambda: slow_pieces(ui, chosen))

    @get("/requests/{request_id:str}", opt=READS)
    async def show(self, request: AnyRequest, ui: Uis, request_id: FromPath[str]) -> Response[str]:
        """One request: what happened when, and whose work took its time."""
        report, drawing = await _drawn(ui, request_id)
        is_slow = any(each.id == report.request_id for each in ui.house.telemetry.reviewer.slow(report.tenant_id, KEPT_SLOW))
        return ui.views.page(request, "request.html", page="slow" if is_slow else "requests", report=report, drawing=drawing)

    @get("/requests/{request_id:str}/timeline", opt=READS)
    async def timeline(self, ui: Uis, request_id: FromPath[str]) -> Response[str]:
        """Its time line alone, to be put into a page."""
        _, drawing = await _drawn(ui, request_id)
        return Response(ui.views.fragment("requests/timeline.html", drawing=drawing), media_type="text/html", headers=HEADERS)

    @post("/requests/{request_id:str}/cancel", opt=WRITES)
    async def cancel(self, request: AnyRequest, ui: Uis, request_id: FromPath[str]) -> Response[Any]:
        """End it."""
        await ui.house.canceller.cancel(request_id, actor_of(request))
        return Redirect(f"/ui/requests/{request_id}", status_code=303)


async def _drawn(ui: Ui, request_id: str) -> tuple[RequestReport, Drawing]:
    report, timeline = await ui.house.explainer.timeline(request_id)
    return report, drawing_of(timeline, report.tenant_id)


def live_pieces(ui: Ui, chosen: Filter) -> Mapping[str, str]:
    """The list of requests in flight, those that wait first, oldest first."""
    rows = live_rows(ui.house.backend.reports(), chosen)
    shown = {"rows": rows[:MAX_ROWS], "total": len(rows), "is_filtered": chosen != Filter()}
    return {"live-requests": ui.views.fragment("requests/live.html", **shown)}


def live_rows(reports: Iterable[RequestReport], chosen: Filter) -> list[LiveRow]:
    """Of reports that end now."""
    rows = [live_row(report) for report in reports]
    rows = [row for row in rows if chosen.takes(row.tenant, row.lane, (row.stage,))]
    return sorted(rows, key=lambda row: (STAGES.index(row.stage), -row.age_s))


def live_row(report: RequestReport) -> LiveRow:
    return LiveRow(
        request_id=report.request_id,
        tenant=report.tenant_id,
        lane=report.lane,
        stage="decode" if report.first_token_ns else "prefill" if report.scheduled_ns else "queue",
        age_s=(report.ended_ns - report.received_ns) / 1e9,
        ttft_s=(report.first_sent_ns - report.received_ns) / 1e9 if report.first_sent_ns else None,
        ttft_target_s=report.ttft_target_s,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        generated_tokens=report.generated_tokens,
    )


def slow_pieces(ui: Ui, chosen: Filter) -> Mapping[str, str]:
    """The list of slow requests."""
    reviewer = ui.house.telemetry.reviewer
    found = [each for each in reviewer.slow(chosen.tenant or None, KEPT_SLOW) if chosen.takes(each.tenant, each.lane, each.why)]
    shown = {"rows": found[:MAX_ROWS], "total": len(found), "skipped": reviewer.num_skipped, "reasons": REASONS}
    return {"live-slow": ui.views.fragment("requests/slow.html", **shown, is_filtered=chosen != Filter())}
