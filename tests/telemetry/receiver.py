"""An OpenTelemetry collector's OTLP/HTTP receiver as far as tests need it: it parses what comes and keeps it."""

import contextlib
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver(ThreadingHTTPServer):
    """`refusals`: statuses that the next requests for traces are answered with."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[Span]:
        """All there are."""
        return [span for trace in self.traces for of in trace.resource_spans for scope in of.scope_spans for span in scope.spans]

    def newest_metrics(self) -> dict[str, Metric]:
        """Of the last message, by name."""
        return {metric.name: metric for of in self.metrics[-1].resource_metrics for scope in of.scope_metrics for metric in scope.metrics}


class _Handler(BaseHTTPRequestHandler):
    server: Receiver  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["content-type"] == "application/x-protobuf"
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        status, answer = 200, ExportTraceServiceResponse().SerializeToString()
        if self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        elif self.path != "/v1/traces":
            status = 404
        elif self.server.refusals:
            status = self.server.refusals.pop(0)
        else:
            self.server.traces.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join(10)


def values_of(attributes: Iterable[KeyValue]) -> dict[str, object]:
    """Attributes as plain values."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}
