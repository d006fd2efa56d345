"""Reading a running appliance's metrics."""

import time
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """Sum of the samples of a family that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name == f"fairlane_{name}" and labels.items() <= sample.labels.items()
    )


def until(fact: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait until a fact about another process is true."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)  # polling another process
