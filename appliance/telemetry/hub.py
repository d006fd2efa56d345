"""All telemetry of a process in one place: what happens is told to it, what was is read from it."""

from collections.abc import Callable

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry

from appliance.telemetry.engine import EngineMetrics
from appliance.telemetry.ledger import StepLedger
from appliance.telemetry.requests import Outcome, RequestMetrics, RequestReport
from engine.wire import Load, Ready, StepDone

log = structlog.get_logger("fairlane.request")


class Telemetry:
    """Metrics, ledger and the request log."""

    def __init__(self, registry: CollectorRegistry, engine_id: str = "0") -> None:
        prometheus_client.disable_created_metrics()
        self._registry = registry
        self.requests = RequestMetrics(registry)
        self.engine = EngineMetrics(registry, engine_id)
        self.ledger = StepLedger()
        self.record_usage: Callable[[RequestReport], None] = lambda report: None
        """Takes each settled request; set by whoever keeps the books."""

    def note_ready(self, ready: Ready) -> None:
        self.requests.bind(ready.card.model_id, ready.card.quantization, ready.device)
        self.engine.bind(ready)

    def note_step(self, step: StepDone) -> None:
        self.engine.note_load(step.load)
        if step.record is not None:
            self.ledger.append(step.record)
            self.engine.note_step(step.record)

    def note_load(self, load: Load) -> None:
        self.engine.note_load(load)

    def settle(self, report: RequestReport) -> None:
        """A request ended: count it and write its one log line, which holds no text of the request."""
        self.requests.observe(report)
        self.record_usage(report)
        write = log.warning if report.outcome is Outcome.FAILED else log.info
        write("request", **_log_fields(report))

    def render(self) -> bytes:
        """The exposition. Some 8 microseconds a series: call it from a thread."""
        return prometheus_client.generate_latest(self._registry)


def _log_fields(report: RequestReport) -> dict[str, object]:
    """Times in milliseconds, rounded; what is empty is left out."""

    def ms(from_ns: int, to_ns: int) -> float | None:
        return round((to_ns - from_ns) / 1e6, 3) if from_ns and to_ns else None

    fields: dict[str, object] = {
        "request_id": report.request_id,
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
        "queue_ms": ms(report.received_ns, report.scheduled_ns),
        "ttft_ms": ms(report.received_ns, report.first_sent_ns),
        "total_ms": ms(report.received_ns, report.ended_ns),
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}
