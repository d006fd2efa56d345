"""Our rendering says what prometheus-client's own says of the same values, line for line but for the order of labels."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from appliance.telemetry.exposition import Exposition, wants_openmetrics
from appliance.telemetry.histogram import Histogram

LINE = re.compile(r"([^#\s{]+)(?:{(.*?)})? (\S+)(.*)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
BOUNDS = (0.1, 1.0)
SLOW = Exemplar({"request_id": "req_1"}, 0.5, 7.25)


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
        self.clients = ClientHistogram("clients_seconds", "How long.", ("lane",), registry=self.registry, buckets=BOUNDS)
        self.wait = Histogram("wait_seconds", "How long, in 100 %.", ("zone", "lane"), BOUNDS)
        self.lag = Histogram("lag_seconds", "No labels.", (), BOUNDS)
        for collector in (self.wait, self.lag, temperatures := Temperatures()):
            self.registry.register(collector)
        for collector in (self.served, self.depth, self.clients, self.wait, self.lag, temperatures):
            self.exposition.add(collector)

    def check(self) -> None:
        assert lines(self.exposition.render()) == lines(generate_latest(self.registry))
        assert lines(self.exposition.render(openmetrics=True)) == lines(openmetrics.generate_latest(self.registry))


def lines(text: bytes) -> list[object]:
    """Comments as they are; of each other line its name, labels, value and exemplar."""
    found = [(line, LINE.fullmatch(line)) for line in text.decode().splitlines()]
    return [(m[1], frozenset(LABEL.findall(m[2] or "")), float(m[3]), m[4]) if m else line for line, m in found]


@pytest.fixture
def shown() -> Shown:
    return Shown()


def test_it_says_what_the_client_says(shown: Shown) -> None:
    shown.check()
    shown.served.labels("fast", 'a"\\\n,b').inc(3)
    shown.served.labels("slow", "b").inc(1e20)
    shown.depth.labels("fast").set(-0.25)
    shown.clients.labels("fast").observe(0.5, {"request_id": "req_0"})
    shown.wait.labels("100 %s of", 'a"\\\n,b').observe(0.5, SLOW)
    shown.lag.labels().observe(7)
    shown.check()


def test_kept_lines_follow_every_change(shown: Shown) -> None:
    for _ in range(3):
        shown.served.labels("fast", "a").inc()
        shown.depth.labels("fast").inc()
        shown.wait.labels("x", "fast").observe(0.05)
        shown.wait.labels("x", "fast").observe(0.0)
        shown.wait.labels("x", "slow").observe(0.5, SLOW)
        shown.check()


def test_a_removed_child_goes_and_one_that_comes_back_begins_anew(shown: Shown) -> None:
    for tenant in "ab":
        shown.served.labels("fast", tenant).inc(5)
        shown.wait.labels("x", tenant).observe(5)
    shown.check()
    shown.served.remove("fast", "a")
    shown.wait.remove_by_labels({"lane": "a"})
    shown.check()
    assert b'="a"' not in shown.exposition.render()
    shown.served.labels("fast", "a").inc()
    shown.wait.labels("x", "a").observe(0.5)
    shown.check()
    assert b'wait_seconds_count{zone="x",lane="a"} 1\n' in shown.exposition.render()


def test_a_histogram_counts_as_the_clients_does() -> None:
    ours = Histogram("x_seconds", "Ours.", (), BOUNDS)
    theirs = ClientHistogram("x_seconds", "Theirs.", registry=None, buckets=BOUNDS)
    for value in (0.0, 0.05, 0.1, 0.1000001, 0.5, 1.0, 1.5, 1e9):
        ours.labels().observe(value)
        theirs.observe(value)
    of_ours, of_theirs = ([(s.name, s.labels, s.value) for f in each.collect() for s in f.samples] for each in (ours, theirs))
    assert of_ours == of_theirs


def test_openmetrics_holds_exemplars_and_parses(shown: Shown) -> None:
    shown.wait.labels("x", "fast").observe(0.5, SLOW)
    text = shown.exposition.render(openmetrics=True).decode()
    exemplars = [sample.exemplar for family in parse_openmetrics(text) for sample in family.samples if sample.exemplar]
    assert [(exemplar.labels, exemplar.value, float(exemplar.timestamp)) for exemplar in exemplars] == [
        ({"request_id": "req_1"}, 0.5, 7.25)
    ]
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
