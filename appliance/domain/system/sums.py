"""The sums that must hold between parts of the appliance which count apart."""

from collections.abc import Callable, Mapping

from appliance.domain.admission.service import Admission
from appliance.domain.inference.backend import Backend
from appliance.domain.usage.recorder import UsageRecorder
from appliance.telemetry.accounting import Sum
from appliance.telemetry.hub import Telemetry


def accounting_checks(
    telemetry: Telemetry, admission: Admission, backend: Backend, usage: UsageRecorder
) -> Mapping[str, Callable[[], Sum | None]]:
    """Read between two turns of the event loop, where all of them are at rest."""

    def pages() -> Sum | None:
        load, num_pages = telemetry.engine.load, telemetry.engine.num_pages
        if load is None or not num_pages:
            return None
        return Sum(load.pages_free + load.pages_used + load.pages_cached, num_pages, "free, used and cached pages; pages of the pool")

    def slots() -> Sum:
        return Sum(admission.num_in_flight, backend.num_live, "admission tickets that are out; requests in flight")

    def requests() -> Sum:
        return Sum(usage.num_noted, telemetry.requests.num_observed, "requests in the usage books; requests in the metrics")

    return {"pages": pages, "slots": slots, "requests": requests}
