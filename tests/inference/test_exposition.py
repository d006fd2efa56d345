"""Our rendering says what prometheus-client's own says, line for line but for the order of labels."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.registry import Collector

from appliance.telemetry.exposition import Exposition, wants_openmetrics

LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Temperatures(Collector):
    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("temperature", 'in "degrees"\nof a \\ scale', labels=("place",))
        family.add_metric(('a "b",\nc\\d',), 1.5)
        yield family
        yield GaugeMetricFamily("plain", "No labels.", value=float("inf"))


class Shown:
    """One of each kind, in a registry and in an exposition."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self.exposition = Exposition()
        self.served = Counter("served", "Things served.", ("lane", "tenant"), registry=self.registry)
        self.depth = Gauge("depth", "How deep.", ("lane",), registry=self.registry)
        self.wait = Histogram("wait_seconds", "How long.", ("zone", "lane"), registry=self.registry, buckets=(0.1, 1.0))
        self.lag = Histogram("lag_seconds", "No labels.", registry=self.registry, buckets=(0.1, 1.0))
        temperatures = Temperatures()
        self.registry.register(temperatures)
        for collector in (self.served, self.depth, self.wait, self.lag, temperatures):
            self.exposition.add(collector)

    def check(self) -> None:
        assert lines(self.exposition.render()) == lines(generate_latest(self.registry))
        assert lines(self.exposition.render(openmetrics=True)) == lines(openmetrics.generate_latest(self.registry))


def lines(text: bytes) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    """Each line without its labels, and its labels."""
    return [(LABEL.sub("", line).replace(",", ""), frozenset(LABEL.findall(line))) for line in text.decode().splitlines()]


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_it_says_what_the_client_says(shown: Shown) -> None:
    shown.check()
    shown.served.labels("fast", 'a"\\\n,b').inc(3)
    shown.served.labels("slow", "b").inc(1e20)
    shown.depth.labels("fast").set(-0.25)
    shown.wait.labels("x", "fast").observe(0.5, {"request_id": "req_1"})
    shown.lag.observe(7)
    shown.check()


def test_kept_lines_follow_every_change(shown: Shown) -> None:
    for _ in range(3):
        shown.served.labels("fast", "a").inc()
        shown.depth.labels("fast").inc()
        shown.wait.labels("x", "fast").observe(0.05)
        shown.wait.labels("x", "fast").observe(0.5, {"request_id": "req_2"})
        shown.check()


def test_a_removed_child_goes_and_one_that_comes_back_begins_anew(shown: Shown) -> None:
    shown.served.labels("fast", "a").inc(5)
    shown.served.labels("fast", "b").inc(5)
    shown.check()
    shown.served.remove("fast", "a")
    shown.check()
    assert b'tenant="a"' not in shown.exposition.render()
    shown.served.labels("fast", "a").inc()
    shown.check()


def test_openmetrics_holds_exemplars_and_parses(shown: Shown) -> None:
    shown.wait.labels("x", "fast").observe(0.5, {"request_id": "req_1"})
    text = shown.exposition.render(openmetrics=True).decode()
    exemplars = [sample.exemplar for family in parse_openmetrics(text) for sample in family.samples if sample.exemplar]
    assert [(exemplar.labels, exemplar.value) for exemplar in exemplars] == [({"request_id": "req_1"}, 0.5)]
    assert "req_1" not in shown.exposition.render().decode()


@pytest.mark.parametrize(
    ("accept", "wants"),
    [
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5,*/*;q=0.1", True),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_openmetrics_is_given_to_whoever_names_it(accept: str, wants: bool) -> None:
    assert wants_openmetrics(accept) == wants
