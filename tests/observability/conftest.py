"""One appliance under a mixed load, with a real Prometheus that scrapes it, for all tests of dashboards and alerts at work."""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.appliance import SMALL_BUCKETS, Appliance, start_appliance
from tests.observability.monitoring import Monitoring, running_monitoring
from tests.observability.traffic import FLAGS, GONE, NOISY, STRICT, Traffic

MAY_BE_EMPTY = {
    ("fairlane-engine", "Cards"): "this machine has no card",
}
"""Panels without an answer, and why."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured: by Prometheus, and by the clients."""

    appliance: Appliance
    monitoring: Monitoring
    traffic: Traffic


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("live")
    with start_appliance(folder / "data", *SMALL_BUCKETS, *FLAGS, "--history-interval-s", "1") as appliance:
        target = urllib.parse.urlsplit(appliance.base_url).netloc
        with running_monitoring(folder, target) as monitoring, Traffic(appliance) as traffic:
            traffic.add_tenant(STRICT, "interactive", ttft_ms=1, tpot_ms=1)  # nobody could: its budget burns
            traffic.add_tenant(NOISY, "standard", queue_ttl_ms=None, tpot_ms=200)  # it waits as long as it takes; a target in every lane
            traffic.add_tenant("limited", "standard", rpm=6)
            traffic.add_tenant(GONE, "standard")
            traffic.start()
            monitoring.until(lambda: traffic.sent.statuses[GONE, 200] and traffic.sent.statuses[NOISY, 200])
            traffic.remove_tenant(GONE)
            for fact in (
                "count(fairlane:lane_ttft_seconds:p99_5m > 0) >= 2",
                "sum(fairlane_preemptions_total) > 0",
                "sum(fairlane_evictions_total) > 0",
            ):
                monitoring.until(lambda fact=fact: monitoring.query(fact))
            monitoring.until(lambda: traffic.sent.cancelled[NOISY] and traffic.sent.statuses["limited", 429])
            traffic.ease()
            yield Run(appliance, monitoring, traffic)
