"""Some of our series under the names that vLLM gives them, for dashboards, autoscalers and gateways made for it.

Names and labels as of vLLM's V1 engine (its `/metrics` documentation). Tenants and lanes are summed: vLLM knows neither.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry.engine import EngineMetrics
from appliance.telemetry.histogram import Histogram
from appliance.telemetry.requests import RequestMetrics

LABELS = ("model_name", "engine")


class VllmNames(Collector):
    """Made from our own series whenever somebody asks: the values are theirs, at that moment."""

    def __init__(self, requests: RequestMetrics, engine: EngineMetrics) -> None:
        self._requests = requests
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        labels = (self._requests.model_id, self._engine.engine_id)
        load = self._engine.load
        if load is not None:
            pages = load.pages_free + load.pages_used + load.pages_cached
            gauges = {
                "num_requests_running": ("Requests in the batch.", float(sum(load.running.values()))),
                "num_requests_waiting": ("Requests waiting for a row.", float(sum(load.queued.values()))),
                "kv_cache_usage_perc": ("Share of KV pages that live requests use; 1 is all.", load.pages_used / max(1, pages)),
            }
            for name, (help_text, value) in gauges.items():
                gauge = GaugeMetricFamily(f"vllm:{name}", help_text, labels=LABELS)
                gauge.add_metric(labels, value)
                yield gauge
        yield from self._counters(labels)
        for name, histogram in (
            ("time_to_first_token_seconds", self._requests.ttft),
            ("inter_token_latency_seconds", self._requests.inter_token),
            ("request_time_per_output_token_seconds", self._requests.tpot),
            ("e2e_request_latency_seconds", self._requests.request),
            ("request_queue_time_seconds", self._requests.queue_wait),
            ("request_prefill_time_seconds", self._requests.prefill),
        ):
            yield _summed(f"vllm:{name}", histogram, labels)

    def _counters(self, labels: tuple[str, ...]) -> Iterator[Metric]:
        tokens = _sums(self._requests.tokens.collect(), "direction")
        totals = self._engine.totals()
        counters = {
            "prompt_tokens": ("Prompt tokens of settled requests.", tokens["prompt"]),
            "generation_tokens": ("Tokens generated for settled requests.", tokens["generated"]),
            "num_preemptions": ("Sequences that lost their pages.", sum(n for name, n in totals.items() if name.startswith("preempted:"))),
            "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", totals["prefix_cache_query_tokens"]),
            "prefix_cache_hits": ("Prompt tokens that the prefix cache had.", totals["prefix_cache_hit_tokens"]),
            "request_success": ("Requests that were completed.", _sums(self._requests.requests.collect(), "outcome")["completed"]),
        }
        for name, (help_text, value) in counters.items():
            counter = CounterMetricFamily(f"vllm:{name}", help_text, labels=LABELS)
            counter.add_metric(labels, value)
            yield counter


def _sums(metrics: Iterable[Metric], label: str) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for metric in metrics:
        for sample in metric.samples:
            sums[sample.labels[label]] += sample.value
    return sums


def _summed(name: str, histogram: Histogram, labels: tuple[str, ...]) -> HistogramMetricFamily:
    """All children of a histogram as one."""
    found = [cells for _, cells in histogram.items()]
    counts = [sum(column) for column in zip(*(cells.counts for cells in found), strict=True)] or [0] * len(histogram.bound_texts)
    family = HistogramMetricFamily(name, f"As {name.removeprefix('vllm:')} of vLLM.", labels=LABELS)
    upto = list(zip(histogram.bound_texts, map(float, accumulate(counts)), strict=True))
    family.add_metric(labels, upto, sum(cells.total for cells in found))
    return family
