"""The history of our own metrics: what it gives back is what was sampled, and it stays within its bounds."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from appliance.telemetry.exposition import Buckets, Series
from appliance.telemetry.history import History
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.readings import read_slowly
from appliance.telemetry.requests import Outcome, RequestReport

type Sample = Mapping[str, float]
"""Values by the one label."""


def taken(history: History) -> dict[tuple[tuple[str, str], ...], list[float | None]]:
    """All series of the gauge `g`, those without a value left out."""
    with history.reading() as source:
        found = {tuple(each.labels.items()): list(each.values) for each in source.select("g", lambda labels: True)}
    return {labels: column for labels, column in found.items() if set(column) != {None}}


@given(
    samples=st.lists(st.dictionaries(st.sampled_from("abc"), st.sampled_from((0.0, 1.0, 2.5))), min_size=1, max_size=12),
    kept=st.integers(2, 5),
)
def test_a_history_gives_back_the_newest_samples_whatever_comes_goes_and_comes_again(samples: list[Sample], kept: int) -> None:
    history = History(interval_s=3600 / kept)
    for number, sample in enumerate(samples):
        if sample or number % 2:  # a family may also not be told of at all
            history.note(Series("g", "gauge", "", ("l",), [((label,), value) for label, value in sample.items()]))
        history.seal(number)
    newest = samples[-kept:]
    assert list(history.times_ms) == list(range(len(samples)))[-kept:]
    wanted = {(("l", label),): [sample.get(label) for sample in newest] for label in "abc" if any(label in sample for sample in newest)}
    assert taken(history) == wanted


def test_a_clock_that_is_set_back_takes_along_what_was_sampled_before() -> None:
    history = History(interval_s=1000)
    for time_ms in (5_000_000, 6_000_000, 2_000_000, 3_000_000):
        history.note(Series("g", "gauge", "", ("l",), [(("a",), time_ms / 1e6)]))
        history.seal(time_ms)
    assert list(history.times_ms) == [999_999, 1_999_999, 2_000_000, 3_000_000]
    assert taken(history) == {(("l", "a"),): [5.0, 6.0, 2.0, 3.0]}


def test_a_histogram_is_kept_as_its_buckets_count_and_sum() -> None:
    history = History(interval_s=15)
    for number, counts in enumerate(([1, 2, 0], [1, 2, 3], [0, 4, 2])):
        history.note(Series("h", "histogram", "", ("l",), [(("a",), Buckets([0.5, 1.0], counts, 7.5 + bool(number)))]))
        history.seal(number)
    with history.reading() as source:
        found = {
            (name, each.labels.get("le")): list(each.values)
            for name in ("h_bucket", "h_count", "h_sum")
            for each in source.select(name, lambda labels: labels["l"] == "a")
        }
    assert found == {
        ("h_bucket", "0.5"): [1.0, 1.0, 0.0],
        ("h_bucket", "1.0"): [3.0, 3.0, 4.0],
        ("h_bucket", "+Inf"): [3.0, 6.0, 6.0],
        ("h_count", None): [3.0, 6.0, 6.0],
        ("h_sum", None): [7.5, 8.5, 8.5],
    }


def test_a_history_holds_at_most_so_many_numbers_and_gives_up_the_oldest() -> None:
    history, rng = History(interval_s=1, max_numbers=1000), random.Random(0)
    for number in range(500):
        history.note(Series("g", "gauge", "", ("l",), [((str(label),), rng.random()) for label in range(10)]))
        history.seal(number)
        assert history.num_numbers <= 1000
    assert history.times_ms == tuple(range(450, 500))
    assert all(len(column) == 50 and None not in column for column in taken(history).values())


def test_series_that_went_cost_nothing_once_they_are_forgotten() -> None:
    history = History(interval_s=1200)
    for number in range(6):
        history.note(Series("g", "gauge", "", ("l",), [((str(number),), 1.0)]))
        history.seal(number)
    assert history.num_numbers == 3 * 2


def test_every_series_that_is_shown_is_kept_under_its_name() -> None:
    telemetry = Telemetry(CollectorRegistry())
    telemetry.sync_tenants(["acme"])
    telemetry.settle(
        RequestReport(
            request_id="req_1", route="/v1/completions", tenant_id="acme", lane="fast", outcome=Outcome.COMPLETED, status=200,
            received_ns=1, scheduled_ns=2, first_token_ns=3, first_sent_ns=4, last_token_ns=500_000_000, ended_ns=600_000_000,
            tokens_after_first=8, generated_tokens=9,
        )
    )  # fmt: skip
    history = History(interval_s=15)
    for series in read_slowly(telemetry.collectors):
        history.note(series)
    history.seal(1)
    shown = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(telemetry.render().decode())
        for sample in family.samples
    }
    with history.reading() as source:
        kept = {
            (name, frozenset(each.labels.items())): each.values[0]
            for name in {name for name, _ in shown}
            for each in source.select(name, lambda labels: True)
        }
    assert len(shown) > 200
    assert kept.keys() == shown.keys()
    moving = ("process_cpu", "resident_memory")
    assert all(kept[key] == pytest.approx(value) for key, value in shown.items() if not any(word in key[0] for word in moving))
