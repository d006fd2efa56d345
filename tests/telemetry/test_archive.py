"""Which ended requests are remembered: a flood pushes out its own."""

from appliance.telemetry.ledger import RequestArchive
from tests.telemetry.test_explain import report_of


def kept(archive: RequestArchive, prefix: str) -> list[str]:
    return [report.request_id for report in archive if report.request_id.startswith(prefix)]


def test_a_flood_of_refusals_or_of_unknown_keys_pushes_out_no_request_that_was_served() -> None:
    archive = RequestArchive(kept_requests=40)
    for number in range(10):
        archive.add(report_of(request_id=f"quiet_{number}", tenant_id="quiet"))
        archive.add(report_of(request_id=f"noisy_{number}", tenant_id="noisy"))
    for number in range(1_000):
        archive.add(report_of(request_id=f"refused_{number}", tenant_id="noisy", submitted_ns=0))
        archive.add(report_of(request_id=f"unknown_{number}", tenant_id="", submitted_ns=0))
    assert (len(kept(archive, "quiet")), len(kept(archive, "noisy"))) == (10, 10)
    assert kept(archive, "refused") == [f"refused_{number}" for number in range(990, 1_000)], "and of the flood the newest are kept"
    assert archive.find("quiet_0") is not None and archive.find("refused_0") is None


def test_of_served_requests_each_tenant_keeps_its_even_part_and_alone_it_has_all() -> None:
    archive = RequestArchive(kept_requests=30)
    for number in range(100):
        archive.add(report_of(request_id=f"noisy_{number}", tenant_id="noisy"))
    assert kept(archive, "noisy") == [f"noisy_{number}" for number in range(70, 100)]
    for number in range(20):
        archive.add(report_of(request_id=f"quiet_{number}", tenant_id="quiet"))
    assert (len(kept(archive, "quiet")), len(kept(archive, "noisy"))) == (15, 15)
    assert kept(archive, "quiet")[0] == "quiet_5"
    assert [report.request_id for report in archive][-1] == "quiet_19" and archive.find("noisy_99") is not None
