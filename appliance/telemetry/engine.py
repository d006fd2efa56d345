"""Engine families, read from the engine's latest `Load` when somebody asks: nothing is written a step but `step_seconds`."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.requests import histogram
from engine.wire import Load, Ready, StepRecord

LOAD_LANES = ("fast", "slow", "batch")


class EngineMetrics(Collector):
    """Families with the labels model, quantization, gpu_type, engine. Counters outlive a restart of the engine."""

    def __init__(self, registry: CollectorRegistry, engine_id: str) -> None:
        self._engine_id = engine_id
        self._labels: tuple[str, ...] = ("", "", "", engine_id)
        self._ready: Ready | None = None
        self._load: Load | None = None
        self._before_restart: Counter[str] = Counter()
        """Counters' values when earlier engine processes ended."""
        self._step_seconds = histogram(registry, f.STEP)
        self._step_children = {}
        self._last_done_ns = 0
        registry.register(self)

    def bind(self, ready: Ready) -> None:
        """A new engine process is ready."""
        self._ready = ready
        self._labels = (ready.card.model_id, ready.card.quantization, ready.device, self._engine_id)
        self._step_children = {phase: self._step_seconds.labels(*self._labels, phase) for phase in f.STEP_PHASES}

    def note_load(self, load: Load) -> None:
        self._load = load

    def note_step(self, record: StepRecord) -> None:
        """A step's device time: from its dispatch, or the end of the step before it, to its results."""
        phase = "prefill" if not record.decode_rows else "mixed" if record.prefill_tokens else "decode"
        began_ns = max(record.dispatched_ns, self._last_done_ns)
        self._last_done_ns = record.done_ns
        child = self._step_children.get(phase)
        if child is not None:
            child.observe(max(0, record.done_ns - began_ns) / 1e9)

    def lose_engine(self) -> None:
        """The process is gone: what it counted stays counted, what it held is no more."""
        if self._load is not None:
            self._before_restart.update(_totals(self._load))
        self._load = None
        self._last_done_ns = 0

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        load, labels = self._load, self._labels
        gauges = {
            f.RUNNING: {lane: load.running.get(lane, 0) if load else 0 for lane in LOAD_LANES},
            f.QUEUED: {lane: load.queued.get(lane, 0) if load else 0 for lane in LOAD_LANES},
            f.KV_PAGES: {
                "free": load.pages_free if load else 0,
                "used": load.pages_used if load else 0,
                "cached": load.pages_cached if load else 0,
            },
            f.STARTUP: self._ready.startup_s if self._ready else {},
            f.BACKEND: {self._ready.attention_backend: 1} if self._ready else {},
        }
        for family, values in gauges.items():
            gauge = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
            for value, number in values.items():
                gauge.add_metric((*labels, value), number)
            yield gauge
        error = GaugeMetricFamily(f.STEP_MODEL_ERROR.full_name, f.STEP_MODEL_ERROR.help, labels=f.STEP_MODEL_ERROR.labels)
        if load is not None:
            error.add_metric(labels, load.step_model_error_ratio)
        yield error
        yield from self._collect_counters()

    def _collect_counters(self) -> Iterator[Metric]:
        totals = self._before_restart + (_totals(self._load) if self._load else Counter())
        for family in (f.PREFIX_QUERIES, f.PREFIX_HITS, f.COMPILES):
            total = CounterMetricFamily(f"fairlane_{family.name}", family.help, labels=family.labels)
            total.add_metric(self._labels, totals[family.name])
            yield total
        preemptions = CounterMetricFamily(f"fairlane_{f.PREEMPTIONS.name}", f.PREEMPTIONS.help, labels=f.PREEMPTIONS.labels)
        causes = {name.removeprefix("preempted:") for name in totals if name.startswith("preempted:")} | {"memory"}
        for cause in sorted(causes):
            preemptions.add_metric((*self._labels, cause), totals[f"preempted:{cause}"])
        yield preemptions


def _totals(load: Load) -> Counter[str]:
    totals = Counter({f"preempted:{cause}": number for cause, number in load.preemptions.items()})
    totals[f.PREFIX_QUERIES.name] = load.prefix_query_tokens
    totals[f.PREFIX_HITS.name] = load.prefix_hit_tokens
    totals[f.COMPILES.name] = load.compiles_after_ready
    return totals
