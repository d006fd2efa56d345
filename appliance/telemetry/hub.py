"""All telemetry of a process in one place: what happens is told to it, what was is read from it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import prometheus_client
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.accounting import Accounting
from appliance.telemetry.device_time import DeviceTime
from appliance.telemetry.engine import ONE_FOR_ALL, EngineMetrics
from appliance.telemetry.explain.pieces import Recorded
from appliance.telemetry.explain.review import Reviewer
from appliance.telemetry.exposition import Client, Exposition
from appliance.telemetry.host import Cards, HostMetrics, Nvml
from appliance.telemetry.lane_times import LaneTimes
from appliance.telemetry.ledger import RequestArchive, StepLedger
from appliance.telemetry.requests import Outcome, RequestMetrics, RequestReport, counter
from appliance.telemetry.slo import SloBook
from appliance.telemetry.split import split_of
from appliance.telemetry.tenant_labels import TenantLabels
from appliance.telemetry.tenant_limits import TenantLimits
from appliance.telemetry.tenant_memory import TenantMemory
from appliance.telemetry.vllm_names import VllmNames
from engine.wire import ONLY_ENGINE, Load, Ready, StepDone, TenantPolicy

log = structlog.get_logger("fairlane.request")

LOOK_EVERY_S = 5.0
"""How often `Telemetry.look` wants to be called."""
REBALANCE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """What of it is configured."""

    max_tenants: int = 100
    """Tenants with series of their own."""
    vllm_names: bool = False
    """Show some series under vLLM's names, too."""
    device_hour_price: float = 0.0


class Telemetry:
    """Metrics, ledger and the request log."""

    def __init__(
        self,
        registry: CollectorRegistry,
        options: TelemetryOptions | None = None,
        cards: Cards | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        engines: Mapping[str, tuple[str, ...]] = ONE_FOR_ALL,
    ) -> None:
        """`engines`: the lanes of each engine replica."""
        prometheus_client.disable_created_metrics()
        options = options or TelemetryOptions()
        self._clock_s = clock_s
        self._rebalanced_s = clock_s()
        self.tenants = TenantLabels(options.max_tenants)
        self.requests = RequestMetrics(registry, self.tenants)
        self.lanes = LaneTimes(registry)
        self.device_time = DeviceTime(self.tenants.of)
        self.engine = EngineMetrics(registry, engines)
        self.memory = TenantMemory(self.tenants, self.engine.books)
        self.limits = TenantLimits(registry, self.tenants)
        self.slo = SloBook(registry, self.tenants, clock_s)
        self.reviewer = Reviewer(self.recorded, self.tenants.of, time.time)
        self.host = HostMetrics(registry, cards or Nvml(), options.device_hour_price)
        self.accounting = Accounting(registry)
        self.traces = counter(registry, f.TRACES)
        for outcome in f.TRACE_OUTCOMES:
            self.traces.labels(outcome)
        self._registry = registry
        for collector in (self.device_time, self.memory, self.reviewer):
            registry.register(collector)
        self.ledger = StepLedger()
        self.archive = RequestArchive()
        self.record_usage: Callable[[RequestReport], None] = lambda report: None
        """Takes each settled request; set by whoever keeps the books."""
        self.watchers: list[Callable[[RequestReport], None]] = []
        """Who else looks at each settled request."""
        self.note_trace: Callable[[RequestReport, str], None] = lambda report, verdict: None
        """Takes each settled request once, with its sentence where it was slow or failed; set by whoever sends traces."""
        self.reviewer.on_explained = lambda report, found: self.note_trace(report, found.verdict)
        self.reviewer.on_skipped = lambda report: self.note_trace(report, "")
        self.floor_ns = 0
        """What a step with next to no work takes: the least that an engine measured, as all have one model and device."""
        self._exposition = Exposition()
        self._rendering = threading.Lock()
        of_tenants = (
            *self.requests.metrics,
            *self.lanes.metrics,
            self.device_time,
            self.memory,
            *self.limits.metrics,
            *self.slo.metrics,
            self.reviewer,
        )
        for collector in (*of_tenants, *self.engine.metrics, *self.host.metrics, self.traces, self.accounting.mismatches):
            self._exposition.add(collector)
        if options.vllm_names:
            self.show(VllmNames(self.requests, self.engine))

    def show(self, collector: Collector) -> None:
        """Add what another part of the process has to tell."""
        self._registry.register(collector)
        self._exposition.add(collector)

    def note_ready(self, ready: Ready, engine: str = ONLY_ENGINE) -> None:
        model = (ready.card.model_id, ready.card.quantization, ready.device)
        self.requests.bind(*model)
        self.lanes.bind(*model)
        self.device_time.bind(*model)
        self.limits.bind(*model)
        self.slo.bind(*model)
        self.reviewer.bind(*model)
        self.engine.books[engine].bind(ready)
        self.floor_ns = min(filter(None, (book.floor_ns for book in self.engine.books.values())), default=0)

    def recorded(self, report: RequestReport) -> Recorded:
        """What the ledger has of a request's time."""
        records = self.ledger.between(report.submitted_ns, report.ended_ns, report.engine) if report.submitted_ns else []
        return Recorded(records, self.ledger.since_ns(report.engine), self.floor_ns)

    def note_step(self, step: StepDone, engine: str = ONLY_ENGINE) -> None:
        book = self.engine.books[engine]
        book.note_load(step.load)
        if step.record is not None:
            self.ledger.append(msgspec.structs.replace(step.record, engine=engine))
            self.device_time.note_step(step.record, book.note_step(step.record))

    def note_load(self, load: Load, engine: str = ONLY_ENGINE) -> None:
        self.engine.books[engine].note_load(load)

    def sync_tenants(self, tenant_ids: Iterable[str]) -> None:
        """All tenants there are: new ones get series that begin at 0 while there is room, those of removed ones go."""
        self._forget(self.tenants.sync(tenant_ids))

    def sync_policies(self, policies: Mapping[str, TenantPolicy]) -> None:
        """As `sync_tenants`, with their targets, limits and shares of the memory."""
        self.sync_tenants(policies)
        self.limits.sync(policies)
        self.slo.sync(policies)

    def gap_observer(self, lane: str, tenant_id: str) -> Callable[[float], None]:
        """Takes each gap (seconds) between two token events of an output."""
        of_tenant, of_lane = self.requests.gaps_of(lane, tenant_id), self.lanes.observe_gap

        def observe(seconds: float) -> None:
            of_tenant.observe(seconds)
            of_lane(lane, seconds)

        return observe

    def settle(self, report: RequestReport) -> None:
        """A request ended: count it and write its one log line, which holds no text of the request."""
        self.requests.observe(report)
        missed = [slo for slo, is_good in self.slo.note(report).items() if not is_good]
        if report.first_sent_ns and report.outcome is not Outcome.REJECTED:
            self.lanes.observe_ttft(
                report.lane, (report.first_sent_ns - report.received_ns) / 1e9, _names(report) if "ttft" in missed else None
            )
        if not self.reviewer.note(report, missed):
            self.note_trace(report, "")
        self.tenants.note(report.tenant_id, report.billed.tokens)
        self.archive.add(report)
        self.record_usage(report)
        for watch in self.watchers:
            watch(report)
        write = log.warning if report.outcome is Outcome.FAILED else log.info
        write("request", **_log_fields(report))

    def look(self) -> None:
        """What is to be done now and then: check the sums, give labels to the tenants that are busy now."""
        self.accounting.check()
        if self._clock_s() - self._rebalanced_s >= REBALANCE_EVERY_S:
            self._rebalanced_s = self._clock_s()
            self._forget(self.tenants.rebalance())
        self.slo.show()
        self.limits.show()

    def render(self, *, openmetrics: bool = False) -> bytes:
        """The exposition. Call it from a thread: 100 tenants take up to 12 ms."""
        with self._rendering:
            return self._exposition.render(openmetrics=openmetrics)

    @property
    def collectors(self) -> Sequence[Client | Collector]:
        """All that is rendered, in its order."""
        return tuple(self._exposition.collectors)

    def _forget(self, labels: Iterable[str]) -> None:
        labels = tuple(labels)
        self.device_time.forget(labels)
        self.slo.forget(labels)
        self.limits.forget(labels)
        self.reviewer.forget(labels)
        self.requests.show_tenants()


def _names(report: RequestReport) -> dict[str, str]:
    """Under which a request is found elsewhere."""
    return {"request_id": report.request_id, **({"trace_id": report.trace.trace_id} if report.trace else {})}


def _log_fields(report: RequestReport) -> dict[str, object]:
    """Times in milliseconds, rounded; what is empty is left out."""

    def ms(from_ns: int, to_ns: int) -> float | None:
        return round((to_ns - from_ns) / 1e6, 3) if from_ns and to_ns else None

    parts = split_of(report) if report.outcome is not Outcome.REJECTED else None
    pieces = (
        {f"{name}_ms": round(getattr(parts, f"{name}_s") * 1e3, 3) for name in ("queue", "prefill", "decode", "write")} if parts else {}
    )
    billed = report.billed.tokens
    fields: dict[str, object] = {
        **_names(report),
        "route": report.route,
        "tenant": report.tenant_id,
        "lane": report.lane,
        "outcome": report.outcome.value,
        "status": report.status,
        "error": report.error_code,
        "rejection": report.rejection,
        "shadowed": report.shadowed,
        "stage": report.stage,
        "cause": report.cause,
        "streamed": report.streamed,
        "sequences": report.num_sequences,
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "generated_tokens": report.generated_tokens,
        "billed_tokens": None if billed == report.prompt_tokens + report.generated_tokens else billed,
        "held_ms": round(report.held_ns / 1e6, 3) if report.held_ns else None,
        **pieces,
        "ttft_ms": ms(report.received_ns, report.first_sent_ns),
        "total_ms": ms(report.received_ns, report.ended_ns),
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}
