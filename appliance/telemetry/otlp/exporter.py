"""Everything that is sent to an OpenTelemetry collector, where one is configured."""

import asyncio
import os
import socket

from appliance.settings import Settings, otlp_headers
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.otlp.attributes import sender_of
from appliance.telemetry.otlp.metrics import MetricExporter
from appliance.telemetry.otlp.traces import TraceExporter
from appliance.telemetry.otlp.transport import Collector


class Exporter:
    """Traces of requests, and metrics."""

    def __init__(self, settings: Settings, version: str, telemetry: Telemetry) -> None:
        collector = Collector(settings.otlp_endpoint, otlp_headers(settings))
        sender = sender_of(version, f"{socket.gethostname()}:{os.getpid()}")
        self.traces = TraceExporter(
            collector, sender, telemetry.recorded, lambda: telemetry.requests.model_id, settings.otlp_sample_ratio, telemetry.traces
        )
        interval_s = settings.otlp_metrics_interval_s
        self.metrics = MetricExporter(collector, sender, lambda: telemetry.collectors, interval_s) if interval_s else None
        telemetry.note_trace = self.traces.note

    async def run(self) -> None:
        """Send for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.traces.run())
            if self.metrics is not None:
                tasks.create_task(self.metrics.run())

    async def flush(self, timeout_s: float) -> None:
        """Send what is left, as far as this time allows."""
        await self.traces.flush(timeout_s)


def exporter_of(settings: Settings, version: str, telemetry: Telemetry) -> Exporter | None:
    """None where no collector is configured."""
    return Exporter(settings, version, telemetry) if settings.otlp_endpoint else None
