"""Engine families, read from the engines' latest `Load` when somebody asks: nothing is written a step but `step_seconds`."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.engine_book import EngineBook
from appliance.telemetry.histogram import Histogram
from appliance.telemetry.loads import pages_by_tenant, sum_of
from appliance.telemetry.requests import histogram
from engine.wire import LANES, ONLY_ENGINE, Load

ONE_FOR_ALL: Mapping[str, tuple[str, ...]] = {ONLY_ENGINE: LANES}


class EngineMetrics(Collector):
    """Families with the labels model, quantization, gpu_type, engine, of all replicas."""

    def __init__(
        self,
        registry: CollectorRegistry,
        engines: Mapping[str, tuple[str, ...]] = ONE_FOR_ALL,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`engines`: the lanes of each replica."""
        self._clock_ns = clock_ns
        self.oldest_queued_ns: Callable[[], dict[str, int]] = dict
        """Receipt of the request that has waited longest, by lane; set by whoever has the requests."""
        self._step_seconds = histogram(registry, f.STEP)
        self._round_trip = histogram(registry, f.ROUND_TRIP)
        self.books = {name: EngineBook(name, lanes, self._step_seconds, self._round_trip, clock_ns) for name, lanes in engines.items()}
        registry.register(self)

    @property
    def metrics(self) -> tuple[Histogram | Collector, ...]:
        """All of them, in the order they are shown."""
        return self._step_seconds, self._round_trip, self

    @property
    def engine_id(self) -> str:
        """Value of the label `engine` for sums: the only one's name, or `all`."""
        return next(iter(self.books)) if len(self.books) == 1 else "all"

    @property
    def num_pages(self) -> int:
        """Of the KV pools of the engines that `load` sums; 0 before one is ready."""
        return sum(book.ready.card.num_pages for book in self.books.values() if book.ready and book.load)

    @property
    def capacity_tpm(self) -> int:
        """Tokens a minute that the machine can do: the most that one engine measured, as replicas share it; 0: not known."""
        return max((book.ready.capacity_tpm for book in self.books.values() if book.ready), default=0)

    def totals(self) -> Counter[str]:
        """As `EngineBook.totals`, of all replicas."""
        return sum((book.totals() for book in self.books.values()), Counter[str]())

    def pages_by_tenant(self) -> Counter[str]:
        """KV pages that each tenant's sequences use, in all replicas."""
        return sum((Counter(pages_by_tenant(book.load)) for book in self.books.values() if book.load), Counter[str]())

    @property
    def load(self) -> Load | None:
        """The engines' newest reports as one; None while there is no engine."""
        return sum_of([book.load for book in self.books.values() if book.load is not None])

    def note_submit(self, last_sequence_id: int, engine: str = ONLY_ENGINE) -> None:
        """As `EngineBook.note_submit`."""
        self.books[engine].note_submit(last_sequence_id)

    def lose_engine(self, engine: str = ONLY_ENGINE) -> None:
        """As `EngineBook.lose_engine`."""
        self.books[engine].lose_engine()

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        oldest_ns, now_ns = self.oldest_queued_ns(), self._clock_ns()
        oldest_s = {lane: max(0, now_ns - oldest_ns[lane]) / 1e9 if lane in oldest_ns else 0.0 for lane in LANES}
        gauges: list[tuple[f.Family, Callable[[EngineBook], Mapping[str, float]]]] = [
            (f.RUNNING, lambda book: {lane: book.load.running.get(lane, 0) if book.load else 0 for lane in book.lanes}),
            (f.QUEUED, lambda book: {lane: book.load.queued.get(lane, 0) if book.load else 0 for lane in book.lanes}),
            (f.QUEUE_OLDEST, lambda book: {lane: oldest_s[lane] for lane in book.lanes}),
            (f.KV_PAGES, _pages),
            (f.STARTUP, lambda book: book.ready.startup_s if book.ready else {}),
            (f.BACKEND, lambda book: {book.ready.attention_backend: 1} if book.ready else {}),
        ]
        for family, values_of in gauges:
            gauge = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
            for book in self.books.values():
                for value, number in values_of(book).items():
                    gauge.add_metric((*book.labels, value), number)
            yield gauge
        for family, number_of in ((f.STEP_MODEL_ERROR, _error_ratio), (f.KV_SLOT_USE, EngineBook.slot_use)):
            plain = GaugeMetricFamily(family.full_name, family.help, labels=family.labels)
            for book in self.books.values():
                number = number_of(book)
                if number is not None:
                    plain.add_metric(book.labels, number)
            yield plain
        yield from self._collect_counters()

    def _collect_counters(self) -> Iterator[Metric]:
        totals = [(book, book.totals()) for book in self.books.values()]
        for family in (f.PREFIX_QUERIES, f.PREFIX_HITS, f.COMPILES, f.RECOMPUTED, f.COPIED_PAGES, f.PAD_TOKENS):
            total = _counter(family)
            for book, sums in totals:
                total.add_metric(book.labels, sums[family.name])
            yield total
        preemptions, evictions, swapped, busy, tokens = map(_counter, (f.PREEMPTIONS, f.EVICTIONS, f.SWAPPED_PAGES, f.BUSY, f.STEP_TOKENS))
        for book, sums in totals:
            causes = {name.removeprefix("preempted:") for name in sums if name.startswith("preempted:")} | {"memory", "swap"}
            for cause in sorted(causes):
                preemptions.add_metric((*book.labels, cause), sums[f"preempted:{cause}"])
            for policy, victim, pages in _evictions(book, sums):
                evictions.add_metric((*book.labels, policy, victim), pages)
            for direction in f.SWAP_DIRECTIONS:
                swapped.add_metric((*book.labels, direction), sums[f"swapped:{direction}"])
            for phase in f.STEP_PHASES:
                busy.add_metric((*book.labels, phase), book.busy_s[phase])
            for kind in f.ROW_KINDS:
                tokens.add_metric((*book.labels, kind), book.step_tokens[kind])
        yield from (preemptions, evictions, swapped, busy, tokens)


def _counter(family: f.Family) -> CounterMetricFamily:
    return CounterMetricFamily(f"fairlane_{family.name}", family.help, labels=family.labels)


def _pages(book: EngineBook) -> dict[str, float]:
    load = book.load
    return {
        "free": load.pages_free if load else 0,
        "used": load.pages_used if load else 0,
        "cached": load.pages_cached if load else 0,
    }


def _error_ratio(book: EngineBook) -> float | None:
    return book.load.step_model_error_ratio if book.load else None


def _evictions(book: EngineBook, totals: Counter[str]) -> Iterator[tuple[str, str, int]]:
    """Policy, victim, pages: of the policy at work, and of those that evicted something before."""
    current = book.load.eviction_policy if book.load else ""
    for policy in f.EVICTION_POLICIES:
        counts = {victim: totals[f"evicted:{policy}:{victim}"] for victim in f.EVICTION_VICTIMS}
        if policy == current or any(counts.values()):
            yield from ((policy, victim, pages) for victim, pages in counts.items())
