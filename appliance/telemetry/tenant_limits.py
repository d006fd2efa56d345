"""What each tenant's tier allows it and how near it is: its ceilings, its reserve and cap of the KV pool.

Meters leak while nothing happens, so they are looked at now and then, on the event loop.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge

from appliance.telemetry import families as f
from appliance.telemetry.requests import gauge
from appliance.telemetry.tenant_labels import TenantLabels
from engine.wire import TenantPolicy

type Key = tuple[str, ...]
"""Values of a series' labels, the tenant's first."""


class TenantLimits:
    """Gauges of tenants that have a label of their own."""

    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels) -> None:
        self._tenants = tenants
        self._policies: Mapping[str, TenantPolicy] = {}
        self._model = ("", "", "")
        self.ratios_of: Callable[[TenantPolicy], Mapping[str, float]] = lambda policy: {}
        """What is used of each ceiling, by the tier's field; set by whoever keeps the meters."""
        self._use = _Shown(gauge(registry, f.LIMIT_USE))
        self._kv = _Shown(gauge(registry, f.TENANT_KV_LIMIT))

    @property
    def metrics(self) -> tuple[Gauge, ...]:
        """In the order they are shown."""
        return self._kv.gauge, self._use.gauge

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
        for shown in (self._use, self._kv):
            shown.keep(key for key in shown.keys if key[0] not in gone)

    def show(self) -> None:
        """As it is now."""
        if not any(self._model):
            return
        policies = [self._policies[tenant_id] for tenant_id in self._tenants.own if tenant_id in self._policies]
        self._use.show({(each.tenant_id, *self._model, limit): ratio for each in policies for limit, ratio in self.ratios_of(each).items()})
        self._kv.show({(each.tenant_id, *self._model, limit): ratio for each in policies for limit, ratio in _kv_limits(each).items()})


def _kv_limits(policy: TenantPolicy) -> dict[str, float]:
    return dict(zip(f.KV_LIMITS, (policy.kv_reserve_ratio, policy.kv_cap_ratio), strict=True))


class _Shown:
    """A gauge whose series are exactly those that were shown last."""

    def __init__(self, gauge: Gauge) -> None:
        self.gauge = gauge
        self.keys: frozenset[Key] = frozenset()

    def show(self, values: Mapping[Key, float]) -> None:
        self.keep(self.keys & values.keys())
        for key, value in values.items():
            self.gauge.labels(*key).set(value)
        self.keys = frozenset(values)

    def keep(self, keys: Iterable[Key]) -> None:
        """Of what is shown now."""
        kept = frozenset(keys)
        for key in self.keys - kept:
            self.gauge.remove(*key)
        self.keys = kept
