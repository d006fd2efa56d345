"""How the appliance is, as metrics: ready, engines, database, books."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Read when somebody asks."""

    is_ready: Callable[[], bool]
    num_engine_starts: Callable[[], Mapping[str, int]]
    """Processes of each engine that came to take requests."""
    are_engines_up: Callable[[], Mapping[str, bool]]
    is_degraded: Callable[[], bool]
    """The database does not answer."""
    unwritten_s: Callable[[], float]
    """Age of the oldest usage that is not in the database."""
    num_usage_lost: Callable[[], int]
    """Requests whose usage nothing had room for."""


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
        starts = CounterMetricFamily(f"fairlane_{f.ENGINE_STARTS.name}", f.ENGINE_STARTS.help, labels=f.ENGINE_STARTS.labels)
        for engine, number in state.num_engine_starts().items():
            starts.add_metric((engine,), number)
        yield starts
        ups = GaugeMetricFamily(f.ENGINE_UP.full_name, f.ENGINE_UP.help, labels=f.ENGINE_UP.labels)
        for engine, is_up in state.are_engines_up().items():
            ups.add_metric((engine,), float(is_up))
        yield ups
        yield GaugeMetricFamily(f.DEGRADED.full_name, f.DEGRADED.help, value=float(state.is_degraded()))
        yield GaugeMetricFamily(f.UNWRITTEN.full_name, f.UNWRITTEN.help, value=state.unwritten_s())
        yield CounterMetricFamily(f"fairlane_{f.USAGE_LOST.name}", f.USAGE_LOST.help, value=state.num_usage_lost())
