"""Request families: one report a request, and the gaps between its tokens as they happen."""

from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge

from appliance.telemetry import families as f
from appliance.telemetry.histogram import Cells, Histogram
from appliance.telemetry.tenant_labels import TenantLabels
from appliance.telemetry.trace_context import TraceContext
from engine.wire import ONLY_ENGINE


class Outcome(StrEnum):
    """How a request ended; each has exactly one."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


MAX_BLOCKED_SPANS = 64
"""A report stays small, however slowly a client reads."""
MAX_MESSAGE_CHARS = 400


@dataclass(frozen=True, slots=True)
class Billed:
    """Tokens that a request costs its tenant."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.generated


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """All there is to know of a request at its end. Times are `monotonic_ns`, 0 where it never came so far."""

    request_id: str
    route: str
    tenant_id: str
    """Empty where the key was refused."""
    key_id: str = ""
    """As `tenant_id`."""
    lane: str
    outcome: Outcome
    status: int
    """HTTP status of the answer; 499 where the client had gone, 200 where a stream failed on its way."""
    error_code: str = ""
    rejection: str = ""
    shadowed: str = ""
    """The own limit that would have refused it, but for shadow mode."""
    stage: str = ""
    cause: str = ""
    streamed: bool = False
    num_sequences: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    delivered_tokens: int = 0
    """Of a stream: those whose text was written to the client."""
    received_ns: int
    scheduled_ns: int = 0
    first_token_ns: int = 0
    first_sent_ns: int = 0
    last_token_ns: int = 0
    ended_ns: int
    tokens_after_first: int = 0
    """Of the output that ran longest, as `first_token_ns` and `last_token_ns`."""
    worst_gap_s: float = 0.0
    """Longest wait between two tokens of one output that its reader did not make, or for a next one that never came."""
    held_ns: int = 0
    """How long it stood at the door before anything of its body was read."""
    read_ns: int = 0
    """The body was there."""
    tokenized_ns: int = 0
    """The prompts were tokens."""
    submitted_ns: int = 0
    """Admitted and handed to the engine."""
    over_ns: int = 0
    """The engine's last event of the last output to end was there."""
    fed_ns: int = 0
    """It was text."""
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    """Of the tenant's tier for the lane, as the tier was when the request was admitted."""
    sequence_ids: tuple[int, ...] = ()
    """The engine's names of its outputs."""
    blocked_ns: tuple[tuple[int, int], ...] = ()
    """From, to: when the client took nothing and writing had to wait; the first `MAX_BLOCKED_SPANS`."""
    paused_ns: tuple[tuple[int, int], ...] = ()
    """From, to: when its sequences were paused, because the client had not taken what there was."""
    message: str = ""
    """What a refused or failed request was told."""
    trace: TraceContext | None = None
    engine: str = ONLY_ENGINE
    """The replica whose steps are its own."""

    @property
    def billed(self) -> Billed:
        """What it costs: nothing where it was refused or given up before its first step, and where we failed it only what the client had
        got of a stream."""
        match self.outcome:
            case Outcome.REJECTED:
                return Billed()
            case Outcome.FAILED:
                return Billed(self.prompt_tokens, self.cached_tokens, self.delivered_tokens) if self.delivered_tokens else Billed()
            case Outcome.CANCELLED | Outcome.EXPIRED if not self.scheduled_ns:
                return Billed()
            case _:
                return Billed(self.prompt_tokens, self.cached_tokens, self.generated_tokens)

    @property
    def paused_s(self) -> float:
        return sum(ended_ns - began_ns for began_ns, ended_ns in self.paused_ns) / 1e9


class _Counters:
    """Counters of one tenant and lane; they exist at 0 from here on."""

    def __init__(self, metrics: "RequestMetrics", labels: tuple[str, ...]) -> None:
        self.outcome = {value: metrics.requests.labels(*labels, value) for value in f.OUTCOMES}
        self.rejection = {value: metrics.rejections.labels(*labels, value) for value in f.REJECTIONS}
        self.shadowed = {value: metrics.shadow_rejections.labels(*labels, value) for value in f.SHADOW_REASONS}
        self.pauses = metrics.pauses.labels(*labels)
        self.paused_s = metrics.paused_s.labels(*labels)
        self.holds = metrics.holds.labels(*labels)
        self.held_s = metrics.held_s.labels(*labels)
        self.tokens = {value: metrics.tokens.labels(*labels, value) for value in f.DIRECTIONS}
        self.cancellation = {(s, c): metrics.cancellations.labels(*labels, s, c) for s in f.STAGES for c in f.CAUSES}


class _Times:
    """Histograms of one tenant and lane, made with the first value: they are the bulk of all series."""

    def __init__(self, metrics: "RequestMetrics", labels: tuple[str, ...]) -> None:
        self.ttft = metrics.ttft.labels(*labels)
        self.tpot = metrics.tpot.labels(*labels)
        self.queue_wait = metrics.queue_wait.labels(*labels)
        self.prefill = metrics.prefill.labels(*labels)
        self.decode = metrics.decode.labels(*labels)
        self.stream_write = metrics.stream_write.labels(*labels)
        self.request = metrics.request.labels(*labels)
        self.inter_token = metrics.inter_token.labels(*labels)


class RequestMetrics:
    """Families with the labels lane, tenant, model, quantization, gpu_type; children are cached."""

    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels) -> None:
        self.requests = counter(registry, f.REQUESTS)
        self.rejections = counter(registry, f.REJECTED)
        self.shadow_rejections = counter(registry, f.SHADOWED)
        self.cancellations = counter(registry, f.CANCELLED)
        self.pauses = counter(registry, f.PAUSES)
        self.paused_s = counter(registry, f.PAUSED_SECONDS)
        self.holds = counter(registry, f.HOLDS)
        self.held_s = counter(registry, f.HELD_SECONDS)
        self.tokens = counter(registry, f.TOKENS)
        self.ttft = histogram(registry, f.TTFT)
        self.inter_token = histogram(registry, f.INTER_TOKEN)
        self.tpot = histogram(registry, f.TPOT)
        self.queue_wait = histogram(registry, f.QUEUE_WAIT)
        self.prefill = histogram(registry, f.PREFILL)
        self.decode = histogram(registry, f.DECODE)
        self.stream_write = histogram(registry, f.STREAM_WRITE)
        self.request = histogram(registry, f.REQUEST)
        self._model = ("", "", "")
        self._counters: dict[tuple[str, str], _Counters] = {}
        self._times: dict[tuple[str, str], _Times] = {}
        self._tenants = tenants
        self._labelled: frozenset[str] = frozenset()
        self.num_observed = 0
        """Settled requests of all tenants."""

    @property
    def metrics(self) -> tuple[Counter | Histogram, ...]:
        """All of them, in the order they are shown."""
        return (
            self.requests,
            self.rejections,
            self.shadow_rejections,
            self.cancellations,
            self.pauses,
            self.paused_s,
            self.holds,
            self.held_s,
            self.tokens,
            self.ttft,
            self.inter_token,
            self.tpot,
            self.queue_wait,
            self.prefill,
            self.decode,
            self.stream_write,
            self.request,
        )

    @property
    def model_id(self) -> str:
        """The model that serves, or served last; empty before the first."""
        return self._model[0]

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on. What was refused before carries empty names."""
        self._model = (model, quantization, gpu_type)
        self._counters.clear()
        self._times.clear()
        self._start_at_zero(self._labelled)

    def show_tenants(self) -> None:
        """Counters of tenants that got a label begin at 0, once the model has a name; all series of those that lost theirs go."""
        labelled = frozenset(self._tenants.own)
        for label in self._labelled - labelled:
            self._remove(label)
        if any(self._model):
            self._start_at_zero(labelled - self._labelled)
        self._labelled = labelled

    def _start_at_zero(self, labels: frozenset[str]) -> None:
        for label in sorted(labels):
            for lane in f.LANES:
                self._counters_of(lane, label)

    def gaps_of(self, lane: str, tenant_id: str) -> Cells:
        """Takes each gap (seconds) between two token events of an output."""
        return self._times_of(lane, self._tenants.of(tenant_id)).inter_token

    def observe(self, report: RequestReport) -> None:
        """Count a settled request. One whose key was refused has no tenant and is only logged."""
        if not report.tenant_id:
            return
        self.num_observed += 1
        counters = self._counters_of(report.lane, self._tenants.of(report.tenant_id))
        counters.outcome[report.outcome.value].inc()
        if report.rejection:
            counters.rejection[report.rejection].inc()
        if report.shadowed:
            counters.shadowed[report.shadowed].inc()
        if report.held_ns:
            counters.holds.inc()
            counters.held_s.inc(report.held_ns / 1e9)
        if report.outcome is Outcome.REJECTED:
            return
        if report.cause:
            counters.cancellation[report.stage, report.cause].inc()
        counters.pauses.inc(len(report.paused_ns))
        counters.paused_s.inc(report.paused_s)
        billed = report.billed
        counters.tokens["prompt"].inc(billed.prompt)
        counters.tokens["cached"].inc(billed.cached)
        counters.tokens["generated"].inc(billed.generated)
        self._observe_times(report)

    def _observe_times(self, report: RequestReport) -> None:
        times = self._times_of(report.lane, self._tenants.of(report.tenant_id))
        times.request.observe((report.ended_ns - report.received_ns) / 1e9)
        if report.scheduled_ns:
            times.queue_wait.observe((report.scheduled_ns - report.received_ns) / 1e9)
        if report.scheduled_ns and report.first_token_ns:
            times.prefill.observe((report.first_token_ns - report.scheduled_ns) / 1e9)
        if report.last_token_ns:
            times.stream_write.observe(max(0, report.ended_ns - report.last_token_ns) / 1e9)
        if report.first_sent_ns:
            times.ttft.observe((report.first_sent_ns - report.received_ns) / 1e9)
        if report.tokens_after_first > 0:
            times.decode.observe((report.last_token_ns - report.first_token_ns) / 1e9)
            decode_s = (report.last_token_ns - report.first_token_ns) / 1e9 - report.paused_s  # the reader's time is not ours
            times.tpot.observe(max(0.0, decode_s) / report.tokens_after_first)

    def _counters_of(self, lane: str, label: str) -> _Counters:
        found = self._counters.get((lane, label))
        if found is None:
            found = self._counters[lane, label] = _Counters(self, (lane, label, *self._model))
        return found

    def _times_of(self, lane: str, label: str) -> _Times:
        found = self._times.get((lane, label))
        if found is None:
            found = self._times[lane, label] = _Times(self, (lane, label, *self._model))
        return found

    def _remove(self, label: str) -> None:
        for cache in (self._counters, self._times):
            for key in [key for key in cache if key[1] == label]:
                del cache[key]
        for metric in self.metrics:
            metric.remove_by_labels({"tenant": label})


def counter(registry: CollectorRegistry, family: f.Family) -> Counter:
    """A declared counter in a registry."""
    return Counter(f"fairlane_{family.name}", family.help, family.labels, registry=registry)


def gauge(registry: CollectorRegistry, family: f.Family) -> Gauge:
    """A declared gauge in a registry."""
    return Gauge(f"fairlane_{family.name}", family.help, family.labels, registry=registry)


def histogram(registry: CollectorRegistry, family: f.Family) -> Histogram:
    """A declared histogram in a registry."""
    made = Histogram(family.full_name, family.help, family.labels, family.grid_s)
    registry.register(made)
    return made
