"""Sends traces of requests: slow and failed ones, and a share of the rest, in batches behind them."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from prometheus_client import Counter

from appliance.telemetry import families as f
from appliance.telemetry.explain.pieces import Recorded, pieces_of
from appliance.telemetry.otlp.attributes import Sender
from appliance.telemetry.otlp.spans import spans_of
from appliance.telemetry.otlp.transport import Collector, NotSent
from appliance.telemetry.requests import RequestReport

log = structlog.get_logger(__name__)

TRACES_PATH = "v1/traces"
MAX_WAITING = 1_024
MAX_BATCH = 128
"""Requests in one message."""
SEND_EVERY_S = 2.0
TRIES = 4
FIRST_WAIT_S = 1.0
"""Before the second try; then twice as long each time."""
SAY_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    report: RequestReport
    verdict: str


class TraceExporter:
    """Takes settled requests from the event loop; a request is never slower for it, and what is too much is dropped and counted."""

    def __init__(
        self,
        collector: Collector,
        sender: Sender,
        recorded: Callable[[RequestReport], Recorded],
        model_id: Callable[[], str],
        sample_ratio: float,
        counted: Counter,
    ) -> None:
        self._collector = collector
        self._sender = sender
        self._recorded = recorded
        self._model_id = model_id
        self._sample_ratio = sample_ratio
        self._counted = {outcome: counted.labels(outcome) for outcome in f.TRACE_OUTCOMES}
        self._waiting: deque[_Waiting] = deque()
        self._said_s = -SAY_AGAIN_S

    def note(self, report: RequestReport, verdict: str) -> None:
        """A request ended; `verdict` is the sentence of one that was slow or failed, and empty for the rest."""
        if report.trace is None or not (verdict or report.trace.is_sampled(self._sample_ratio)):
            return
        if len(self._waiting) >= MAX_WAITING:
            self._counted["dropped"].inc()
            return
        self._waiting.append(_Waiting(report, verdict))

    async def run(self) -> None:
        """Send what waits, for ever."""
        while True:
            await asyncio.sleep(SEND_EVERY_S)
            while self._waiting:
                await self._send_batch(TRIES)

    async def flush(self, timeout_s: float) -> None:
        """What still waits at the end, as far as it can be sent in this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._waiting:
                    await self._send_batch(1)

    async def _send_batch(self, tries: int) -> None:
        batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
        sent = False
        try:
            cases = [(waiting, self._recorded(waiting.report)) for waiting in batch]  # the ledger belongs to the loop
            message = await asyncio.to_thread(self._message, cases)
            sent = await self._try(message, tries)
        except asyncio.CancelledError:  # at shutdown: `flush` sends it, a collector knows spans that come again by their ids
            self._waiting.extendleft(reversed(batch))
            raise
        except Exception as error:  # a defect of ours costs these traces, and no later ones
            log.error("traces_not_made", error=str(error), exc_info=error)
        self._counted["sent" if sent else "failed"].inc(len(batch))

    async def _try(self, message: ExportTraceServiceRequest, tries: int) -> bool:
        wait_s = FIRST_WAIT_S
        for left in reversed(range(tries)):
            try:
                answer = await self._collector.send(TRACES_PATH, message)
            except NotSent as error:
                if not (left and error.may_retry):
                    self._complain(str(error))
                    return False
                await asyncio.sleep(wait_s)
                wait_s *= 2
            else:
                self._note_answer(answer)
                return True
        return False

    def _note_answer(self, answer: bytes) -> None:
        """A collector may take a part, and says how many spans it did not."""
        with contextlib.suppress(DecodeError):  # one that answers something else has taken it all the same
            partial = ExportTraceServiceResponse.FromString(answer).partial_success
            if partial.rejected_spans:
                self._complain(f"{partial.rejected_spans} spans were refused: {partial.error_message}")

    def _complain(self, reason: str) -> None:
        """Once a minute at most: a collector that is away is not worth a line each time."""
        now_s = time.monotonic()
        if now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            log.warning("traces_not_sent", endpoint=self._collector.endpoint, error=reason)

    def _message(self, cases: Sequence[tuple[_Waiting, Recorded]]) -> ExportTraceServiceRequest:
        wall_ns = time.time_ns() - time.monotonic_ns()
        spans: list[Span] = []
        for waiting, recorded in cases:
            report = waiting.report
            assert report.trace is not None, "only traced requests are kept"
            spans += spans_of(report, report.trace, pieces_of(report, recorded), self._model_id(), waiting.verdict, wall_ns)
        scoped = ScopeSpans(scope=self._sender.scope, spans=spans)
        return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=self._sender.resource, scope_spans=[scoped])])
