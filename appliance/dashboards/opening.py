"""Who answers the dashboards, as configured."""

from appliance.dashboards.board import read_rules
from appliance.dashboards.metrics import Metrics
from appliance.dashboards.own import OwnMetrics
from appliance.dashboards.prometheus import PrometheusMetrics
from appliance.settings import Settings, prometheus_headers
from appliance.telemetry.history import History
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.sampler import Sampler


def open_metrics(settings: Settings, telemetry: Telemetry) -> tuple[Metrics, Sampler | None]:
    """A configured Prometheus; else our own last hour, and what fills it."""
    if settings.prometheus_url:
        return PrometheusMetrics(settings.prometheus_url, prometheus_headers(settings)), None
    interval_s = settings.history_interval_s
    history = History(interval_s)
    return OwnMetrics(history, read_rules(), interval_s), Sampler(history, lambda: telemetry.collectors, interval_s)
