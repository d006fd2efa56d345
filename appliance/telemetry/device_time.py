"""Whose work the device did: each step's time, shared among tenants by what each computed and read in it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.explain.runs import work_by_cause
from engine.wire import StepRecord


class DeviceTime(Collector):
    """Seconds by tenant's label since the start of the process."""

    def __init__(self, label_of: Callable[[str], str]) -> None:
        self._label_of = label_of
        self._labels = ("", "", "")
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def bind(self, model: str, quantization: str, gpu_type: str) -> None:
        """Name the model that serves from now on."""
        self._labels = (model, quantization, gpu_type)

    def note_step(self, record: StepRecord, device_s: float) -> None:
        """A step took `device_s` of the device."""
        for tenant_id, share in shares_of(record).items():
            self._seconds[self._label_of(tenant_id)] += share * device_s

    def forget(self, labels: Iterable[str]) -> None:
        """Drop the sums of tenants that have no label any more."""
        for label in labels:
            self._seconds.pop(label, None)

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(f"fairlane_{f.DEVICE_SECONDS.name}", f.DEVICE_SECONDS.help, labels=f.DEVICE_SECONDS.labels)
        for label, seconds in tuple(self._seconds.items()):
            family.add_metric((label, *self._labels), seconds)
        yield family


def shares_of(record: StepRecord) -> dict[str, float]:
    """Each tenant's part of a step; they sum to 1, where there was any work."""
    work = work_by_cause(record)
    total = sum(work.values())
    return {tenant_id: units / total for tenant_id, units in work.items() if tenant_id is not None} if total else {}
