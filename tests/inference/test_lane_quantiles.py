"""A lane's P99 on the metrics page is what clients measured, over HTTP."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.telemetry.grid import FINE_GRID_S, quantile_s
from tests.inference.harness import HEADERS, METRICS_KEY, House

NUM_REQUESTS = 8
"""As many as the engine runs at once: the first token of each comes with its first step."""


def lane_counts(house: House) -> Counter[float]:
    """Requests of all lanes so far by the upper bound of their bucket of the time to the first token."""
    page = house.client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_KEY}"}).text
    (family,) = [each for each in text_string_to_metric_families(page) if each.name == "fairlane_lane_ttft_seconds"]
    counts: Counter[float] = Counter()
    by_lane: dict[str, float] = {}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            lane = sample.labels["lane"]
            counts[float(sample.labels["le"])] += int(sample.value - by_lane.get(lane, 0.0))
            by_lane[lane] = sample.value
    return counts


def ttft_s(house: House) -> float:
    """What a client waits for the first token."""
    began_s = time.monotonic()
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    with house.client.stream("POST", "/generate", json=body, headers=HEADERS) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data:"):
                return time.monotonic() - began_s
    raise AssertionError("no token came")


@pytest.mark.parametrize("step_s", [0.6, 2.5])
def test_a_lanes_p99_is_what_clients_measured_within_a_tenth(house: House, step_s: float) -> None:
    before = lane_counts(house)
    house.set_engine(step_s=step_s, hold=True)
    with ThreadPoolExecutor(NUM_REQUESTS) as clients:
        waits = [clients.submit(ttft_s, house) for _ in range(NUM_REQUESTS)]
        house.until(lambda: len(house.engine.queued) == NUM_REQUESTS)
        house.set_engine(hold=False)
        measured = sorted(wait.result() for wait in waits)
    house.set_engine(step_s=0.0)
    counts = lane_counts(house)
    counts.subtract(before)
    assert counts.total() == NUM_REQUESTS
    found_s = quantile_s([counts[bound] for bound in (*FINE_GRID_S, float("inf"))], 0.99)
    assert found_s == pytest.approx(measured[-1], rel=0.10)
