"""How busy the engine is: `GET /load` for autoscalers, `GET /api/v1/lanes` for operators."""

import time
from collections.abc import Callable

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency

from appliance.domain.admission.service import Admission
from appliance.problems import problem_responses
from appliance.route_access import READS
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.lane_times import Quantiles
from engine.wire import LANES, Load


class LaneLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One lane now."""

    running: int
    """Sequences that hold a row of the batch."""
    queued: int
    """Sequences waiting for a row."""
    oldest_wait_s: float
    """Since the receipt of the request that has waited longest for its first step; 0 where none waits."""


class LoadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an autoscaler wants to know. Without an engine all numbers are 0."""

    status: str
    """As /readyz: ready, degraded, warming_up, engine_down or draining."""
    running: int
    queued: int
    queued_tokens: int
    """Prompt tokens not yet computed."""
    oldest_wait_s: float
    kv_used_ratio: float
    """Pages that live sequences use, of all; cached pages are free to whoever needs them."""
    lanes: dict[str, LaneLoad]


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """One lane: its queue now, its times over the last five minutes, in seconds."""

    lane: str
    running: int
    queued: int
    oldest_wait_s: float
    kept_requests: int
    """Requests that were refused and told when to come back: places are kept for them."""
    kept_tokens: int
    """Prompt tokens that newcomers of their tenants are told to stand back for."""
    ttft: Quantiles
    inter_token: Quantiles


class LanesAnswer(msgspec.Struct, frozen=True):
    lanes: list[LaneView]


def lane_loads(telemetry: Telemetry, clock_ns: Callable[[], int] = time.monotonic_ns) -> dict[str, LaneLoad]:
    """Every lane, busy or not."""
    load, oldest_ns, now_ns = telemetry.engine.load, telemetry.engine.oldest_queued_ns(), clock_ns()
    return {
        lane: LaneLoad(
            running=load.running.get(lane, 0) if load else 0,
            queued=load.queued.get(lane, 0) if load else 0,
            oldest_wait_s=round(max(0, now_ns - oldest_ns.get(lane, now_ns)) / 1e9, 3),
        )
        for lane in LANES
    }


def load_answer(telemetry: Telemetry, status: str) -> LoadAnswer:
    """The whole engine, and by lane."""
    lanes, load = lane_loads(telemetry), telemetry.engine.load
    return LoadAnswer(
        status=status,
        running=sum(lane.running for lane in lanes.values()),
        queued=sum(lane.queued for lane in lanes.values()),
        queued_tokens=sum(tenant.queued_tokens for tenant in load.tenants) if load else 0,
        oldest_wait_s=max(lane.oldest_wait_s for lane in lanes.values()),
        kv_used_ratio=round(_used_ratio(load), 4) if load else 0.0,
        lanes=lanes,
    )


def _used_ratio(load: Load) -> float:
    return load.pages_used / max(1, load.pages_free + load.pages_used + load.pages_cached)


class LaneController(Controller):
    """`/api/v1/lanes`."""

    path = "/lanes"
    tags = ["System"]

    @get(summary="Lanes: queues now, TTFT and gaps of the last five minutes", opt=READS, responses=problem_responses(401, 403))
    async def list(self, telemetry: NamedDependency[Telemetry], admission: NamedDependency[Admission]) -> LanesAnswer:
        """P50, P90, P99 and P99.9 are true within 10 % from 4 ms to 13 s."""
        kept = {lane: admission.kept(lane) for lane in LANES}
        return LanesAnswer(
            [
                LaneView(
                    lane=lane,
                    running=load.running,
                    queued=load.queued,
                    oldest_wait_s=load.oldest_wait_s,
                    kept_requests=kept[lane].requests,
                    kept_tokens=round(kept[lane].tokens),
                    ttft=telemetry.lanes.ttft(lane),
                    inter_token=telemetry.lanes.inter_token(lane),
                )
                for lane, load in lane_loads(telemetry).items()
            ]
        )
