"""A tenant's weight is its share of the engine while others wait."""

import pytest

from engine.wire import TenantPolicy
from tests.scheduling.bench import Bench, submit


@pytest.mark.parametrize("weight", [1.0, 2.0, 4.0])
def test_of_two_backlogged_tenants_one_of_n_times_the_weight_is_served_n_times_as_much(weight: float) -> None:
    bench = Bench()
    bench.scheduler.set_policies((TenantPolicy(tenant_id="heavy", weight=weight), TenantPolicy(tenant_id="light", weight=1.0)))
    backlog = [submit(2 * n + 1, "heavy", "slow", 0, 40, 4) for n in range(60)] + [
        submit(2 * n, "light", "slow", 0, 40, 4) for n in range(60)
    ]
    bench.run(backlog)
    by_first_token = sorted(bench.simulator.served.values(), key=lambda served: served.submit.received_ns + served.ttft_ns)
    first = [served.submit.tenant_id for served in by_first_token[:60]]
    assert first.count("heavy") / first.count("light") == pytest.approx(weight, rel=0.15)
