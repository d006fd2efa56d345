"""Engine families, read from the engine's latest `Load` when somebody asks: nothing is written a step but `step_seconds`."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.requests import histogram
from engine.wire import Load, Ready, StepRecord

LOAD_LANES = ("fast", "slow", "batch")
MAX_AWAITED = 4096
"""Submits remembered until a report knows of them."""


class EngineMetrics(Collector):
    """Families with the labels model, quantization, gpu_type, engine. Counters outlive a restart of the engine."""

    def __init__(self, registry: CollectorRegistry, engine_id: str, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self.oldest_queued_ns: Callable[[], dict[str, int]] = dict
        """Receipt of the request that has waited longest, by lane; set by whoever has the requests."""
        self._engine_id = engine_id
        self._labels: tuple[str, ...] = ("", "", "", engine_id)
        self._ready: Ready | None = None
        self._load: Load | None = None
        self._before_restart: Counter[str] = Counter()
        """Counters' values when earlier engine processes ended."""
        self._step_seconds = histogram(registry, f.STEP)
        self._step_children = {}
        self._round_trip = histogram(registry, f.ROUND_TRIP)
        self._submitted: deque[tuple[int, int]] = deque(maxlen=MAX_AWAITED)
        """Sequences that no report knows of yet, and when they were handed over."""
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._step_tokens: Counter[str] = Counter()
        self._last_done_ns = 0
        registry.register(self)

    @property
    def metrics(self) -> tuple[Histogram | Collector, ...]:
        """All of them, in the order they are shown."""
        return self._step_seconds, self._round_trip, self

    @property
    def engine_id(self) -> str:
        """Value of the label `engine`."""
        return self._engine_id

    @property
    def num_pages(self) -> int:
        """Of the KV pool; 0 before the first engine is ready."""
        return self._ready.card.num_pages if self._ready else 0

    def totals(self) -> Counter[str]:
        """What the engine's processes counted so far, by family; preemptions as `preempted:CAUSE`, evictions as `evicted:POLICY:VICTIM`."""
        return self._before_restart + (_totals(self._load) if self._load else Counter())

    @property
    def load(self) -> Load | None:
        """The engine's newest report; None while there is no engine."""
        return self._load

    def bind(self, ready: Ready) -> None:
        """A new engine process is ready."""
        self._ready = ready
        self._labels = (ready.card.model_id, ready.card.quantization, ready.device, self._engine_id)
        self._step_children = {phase: self._step_seconds.labels(*self._labels, phase) for phase in f.STEP_PHASES}

    def note_submit(self, last_sequence_id: int) -> None:
        """Sequences up to this one were handed to the engine just now."""
        self._submitted.append((last_sequence_id, self._clock_ns()))

    def note_load(self, load: Load) -> None:
        self._load = load
        while self._submitted and self._submitted[0][0] <= load.last_sequence_id:
            _, handed_ns = self._submitted.popleft()
            self._round_trip.labels(*self._labels).observe((self._clock_ns() - handed_ns) / 1e9)

    def note_step(self, record: StepRecord) -> float:
        """A step's device time in seconds: from its dispatch, or the end of the step before it, to its results."""
        phase = "prefill" if not record.decode_rows else "mixed" if record.prefill_tokens else "decode"
        began_ns = max(record.dispatched_ns, self._last_done_ns)
        self._last_done_ns = record.done_ns
        device_s = max(0, record.done_ns - began_ns) / 1e9
        self._busy_s[phase] += device_s
        self._step_tokens["decode"] += record.decode_rows
        self._step_tokens["prefill"] += record.prefill_tokens
        child = self._step_children.get(phase)
        if child is not None:
            child.observe(device_s)
        return device_s

    def lose_engine(self) -> None:
        """The process is gone: what it counted stays counted, what it held is no more."""
        if self._load is not None:
            self._before_restart.update(_totals(self._load))
        self._load = None
        self._submitted.clear()
        self._last_done_ns = 0

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        load, labels = self._load, self._labels
        gauges = {
            f.RUNNING: {lane: load.running.get(lane, 0) if load else 0 for lane in LOAD_LANES},
            f.QUEUED: {lane: load.queued.get(lane, 0) if load else 0 for lane in LOAD_LANES},
            f.QUEUE_OLDEST: self._oldest_s(),
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
        for family, number in ((f.STEP_MODEL_ERROR, load and load.step_model_error_ratio), (f.KV_SLOT_USE, load and self._slot_use(load))):
            plain = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
            if number is not None:
                plain.add_metric(labels, number)
            yield plain
        yield from self._collect_counters()

    def _oldest_s(self) -> dict[str, float]:
        oldest_ns, now_ns = self.oldest_queued_ns(), self._clock_ns()
        return {lane: max(0, now_ns - oldest_ns[lane]) / 1e9 if lane in oldest_ns else 0.0 for lane in LOAD_LANES}

    def _slot_use(self, load: Load) -> float:
        """1 where no page is used: nothing is wasted."""
        assert self._ready is not None, "an engine reports its load after it is ready"
        slots = load.pages_used * self._ready.card.block_size
        return load.kv_slots_used / slots if slots else 1.0

    def _collect_counters(self) -> Iterator[Metric]:
        totals = self.totals()
        for family in (f.PREFIX_QUERIES, f.PREFIX_HITS, f.COMPILES, f.RECOMPUTED, f.COPIED_PAGES, f.PAD_TOKENS):
            total = CounterMetricFamily(f"fairlane_{family.name}", family.help, labels=family.labels)
            total.add_metric(self._labels, totals[family.name])
            yield total
        preemptions = CounterMetricFamily(f"fairlane_{f.PREEMPTIONS.name}", f.PREEMPTIONS.help, labels=f.PREEMPTIONS.labels)
        causes = {name.removeprefix("preempted:") for name in totals if name.startswith("preempted:")} | {"memory", "swap"}
        for cause in sorted(causes):
            preemptions.add_metric((*self._labels, cause), totals[f"preempted:{cause}"])
        yield preemptions
        evictions = CounterMetricFamily(f"fairlane_{f.EVICTIONS.name}", f.EVICTIONS.help, labels=f.EVICTIONS.labels)
        current = self._load.eviction_policy if self._load else ""
        for policy in f.EVICTION_POLICIES:
            counts = {victim: totals[f"evicted:{policy}:{victim}"] for victim in f.EVICTION_VICTIMS}
            for victim, pages in counts.items() if policy == current or any(counts.values()) else ():
                evictions.add_metric((*self._labels, policy, victim), pages)
        yield evictions
        swapped = CounterMetricFamily(f"fairlane_{f.SWAPPED_PAGES.name}", f.SWAPPED_PAGES.help, labels=f.SWAPPED_PAGES.labels)
        for direction in f.SWAP_DIRECTIONS:
            swapped.add_metric((*self._labels, direction), totals[f"swapped:{direction}"])
        yield swapped
        for family, sums, values in ((f.BUSY, self._busy_s, f.STEP_PHASES), (f.STEP_TOKENS, self._step_tokens, f.ROW_KINDS)):
            split = CounterMetricFamily(f"fairlane_{family.name}", family.help, labels=family.labels)
            for value in values:
                split.add_metric((*self._labels, value), sums[value])
            yield split


def _totals(load: Load) -> Counter[str]:
    totals = Counter({f"preempted:{cause}": number for cause, number in load.preemptions.items()})
    totals.update({f"evicted:{load.eviction_policy}:{victim}": pages for victim, pages in load.evictions.items()})
    totals[f.PREFIX_QUERIES.name] = load.prefix_query_tokens
    totals[f.PREFIX_HITS.name] = load.prefix_hit_tokens
    totals[f.COMPILES.name] = load.compiles_after_ready
    totals[f.RECOMPUTED.name] = load.recomputed_tokens
    totals["swapped:out"], totals["swapped:in"] = load.swapped_out_pages, load.swapped_in_pages
    totals[f.COPIED_PAGES.name] = load.copied_pages
    totals[f.PAD_TOKENS.name] = load.pad_tokens
    return totals
