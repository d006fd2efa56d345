"""How the appliance is, as metrics: ready, engine, database, books."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Read when somebody asks."""

    is_ready: Callable[[], bool]
    num_engine_starts: Callable[[], int]
    """Engine processes that came to take requests."""
    is_degraded: Callable[[], bool]
    """The database does not answer."""
    unwritten_s: Callable[[], float]
    """Age of the oldest usage that is not in the database."""


class StateMetrics(Collector):
    """Implements prometheus-client's collector over a `State`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        state = self._state
        yield GaugeMetricFamily(f.READY.full_name, f.READY.help, value=float(state.is_ready()))
        yield CounterMetricFamily(f"fairlane_{f.ENGINE_STARTS.name}", f.ENGINE_STARTS.help, value=state.num_engine_starts())
        yield GaugeMetricFamily(f.DEGRADED.full_name, f.DEGRADED.help, value=float(state.is_degraded()))
        yield GaugeMetricFamily(f.UNWRITTEN.full_name, f.UNWRITTEN.help, value=state.unwritten_s())
