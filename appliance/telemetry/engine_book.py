"""What one engine replica reported: its newest load, and the sums that outlive its processes."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable

from appliance.telemetry import families as f
from appliance.telemetry.histogram import Cells, Histogram
from engine.wire import Load, Ready, StepRecord

MAX_AWAITED = 4096
"""Submits remembered until a report knows of them."""


class EngineBook:
    """Of one replica. Counters outlive a restart of its process."""

    def __init__(self, name: str, lanes: tuple[str, ...], steps: Histogram, round_trip: Histogram, clock_ns: Callable[[], int]) -> None:
        """`name` is the label `engine`; `steps` and `round_trip` are the histograms that all replicas share."""
        self.name = name
        self.lanes = lanes
        self.labels: tuple[str, ...] = ("", "", "", name)
        """model, quantization, gpu_type, engine."""
        self.ready: Ready | None = None
        self.load: Load | None = None
        """Its newest report; None while there is no process."""
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        self.step_tokens: Counter[str] = Counter()
        self._steps = steps
        self._round_trip = round_trip
        self._clock_ns = clock_ns
        self._before_restart: Counter[str] = Counter()
        """Counters' values when earlier processes ended."""
        self._step_children: dict[str, Cells] = {}
        self._submitted: deque[tuple[int, int]] = deque(maxlen=MAX_AWAITED)
        """Sequences that no report knows of yet, and when they were handed over."""
        self._last_done_ns = 0

    def totals(self) -> Counter[str]:
        """What its processes counted so far, by family; preemptions as `preempted:CAUSE`, evictions as `evicted:POLICY:VICTIM`."""
        return self._before_restart + (_totals(self.load) if self.load else Counter())

    @property
    def floor_ns(self) -> int:
        """What a step with next to no work takes; 0: not known."""
        return round(self.ready.step_floor_s * 1e9) if self.ready else 0

    def slot_use(self) -> float | None:
        """Of the used pages, the share of slots that hold a token: 1 where no page is used, as nothing is wasted."""
        if self.load is None or self.ready is None:
            return None
        slots = self.load.pages_used * self.ready.card.block_size
        return self.load.kv_slots_used / slots if slots else 1.0

    def bind(self, ready: Ready) -> None:
        """A new engine process is ready."""
        self.ready = ready
        self.labels = (ready.card.model_id, ready.card.quantization, ready.device, self.name)
        self._step_children = {phase: self._steps.labels(*self.labels, phase) for phase in f.STEP_PHASES}

    def note_submit(self, last_sequence_id: int) -> None:
        """Sequences up to this one were handed to the engine just now."""
        self._submitted.append((last_sequence_id, self._clock_ns()))

    def note_load(self, load: Load) -> None:
        self.load = load
        while self._submitted and self._submitted[0][0] <= load.last_sequence_id:
            _, handed_ns = self._submitted.popleft()
            self._round_trip.labels(*self.labels).observe((self._clock_ns() - handed_ns) / 1e9)

    def note_step(self, record: StepRecord) -> float:
        """A step's device time in seconds: from its dispatch, or the end of the step before it, to its results."""
        phase = "prefill" if not record.decode_rows else "mixed" if record.prefill_tokens else "decode"
        if record.interrupted_for:
            phase = "interrupted"
        began_ns = max(record.dispatched_ns, self._last_done_ns)
        self._last_done_ns = record.done_ns
        device_s = max(0, record.done_ns - began_ns) / 1e9
        self.busy_s[phase] += device_s
        self.step_tokens["decode"] += record.decode_rows
        self.step_tokens["prefill"] += record.prefill_tokens
        child = self._step_children.get(phase)
        if child is not None:
            child.observe(device_s)
        return device_s

    def lose_engine(self) -> None:
        """The process is gone: what it counted stays counted, what it held is no more."""
        if self.load is not None:
            self._before_restart.update(_totals(self.load))
        self.load = None
        self._submitted.clear()
        self._last_done_ns = 0


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
