"""Whose KV memory it is: pages that each tenant's sequences use."""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.engine_book import EngineBook
from appliance.telemetry.loads import pages_by_tenant
from appliance.telemetry.tenant_labels import OTHER, TenantLabels
from engine.wire import Load


class TenantMemory(Collector):
    """Read from the engines' newest reports whenever somebody asks. Tenants without a label of their own are summed."""

    def __init__(self, tenants: TenantLabels, books: Mapping[str, EngineBook]) -> None:
        self._tenants = tenants
        self._books = books

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        pages = GaugeMetricFamily(f.TENANT_KV_PAGES.full_name, f.TENANT_KV_PAGES.help, labels=f.TENANT_KV_PAGES.labels)
        for book in self._books.values():
            if book.load is not None:
                for label, number in self._pages(book.load).items():
                    pages.add_metric((label, *book.labels), number)
        yield pages

    def _pages(self, load: Load) -> dict[str, int]:
        """By label; 0 for tenants that have nothing in the engine."""
        pages = Counter(dict.fromkeys(self._tenants.own, 0))
        if self._tenants.has_others:
            pages[OTHER] = 0
        for tenant_id, number in pages_by_tenant(load).items():
            pages[self._tenants.of(tenant_id)] += number
        return dict(pages)
