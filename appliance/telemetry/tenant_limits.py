"""How near each tenant is to its ceilings. Meters leak while nothing happens, so they are looked at now and then, on the event loop."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from appliance.telemetry import families as f
from appliance.telemetry.requests import gauge
from appliance.telemetry.tenant_labels import TenantLabels
from engine.wire import TenantPolicy


class TenantLimits:
    """One gauge, of tenants that have a label of their own."""

    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels) -> None:
        self._tenants = tenants
        self._policies: Mapping[str, TenantPolicy] = {}
        self._model = ("", "", "")
        self._shown: frozenset[tuple[str, ...]] = frozenset()
        self.ratios_of: Callable[[TenantPolicy], Mapping[str, float]] = lambda policy: {}
        """What is used of each ceiling, by the tier's field; set by whoever keeps the meters."""
        self.use: Gauge = gauge(registry, f.LIMIT_USE)

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on."""
        self._model = (model, quantization, gpu_type)
        self.show()

    def sync(self, policies: Mapping[str, TenantPolicy]) -> None:
        """All tenants' policies now."""
        self._policies = policies
        self.show()

    def forget(self, labels: Iterable[str]) -> None:
        """Drop the series of tenants that have no label any more."""
        gone = frozenset(labels)
        self._drop(key for key in self._shown if key[0] in gone)

    def show(self) -> None:
        """As it is now."""
        if not any(self._model):
            return
        policies = (self._policies[tenant_id] for tenant_id in self._tenants.own if tenant_id in self._policies)
        ratios = {(policy.tenant_id, *self._model, limit): ratio for policy in policies for limit, ratio in self.ratios_of(policy).items()}
        self._drop(self._shown - ratios.keys())
        for key, ratio in ratios.items():
            self.use.labels(*key).set(ratio)
        self._shown = frozenset(ratios)

    def _drop(self, keys: Iterable[tuple[str, ...]]) -> None:
        dropped = frozenset(keys)
        for key in dropped:
            self.use.remove(*key)
        self._shown -= dropped
