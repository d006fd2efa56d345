"""What the log says of a database that does not answer: its beginning, its end, and a reminder a minute in between."""

import pytest
import structlog
from structlog.testing import LogCapture

from appliance.db import outage as outage_module
from appliance.db.outage import REMIND_EVERY_S, Outage


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = LogCapture()  # of a logger of its own: the module's may be bound to what an earlier test had configured
    monkeypatch.setattr(outage_module, "log", structlog.wrap_logger(structlog.PrintLogger(), processors=[lines]))
    outage = Outage("reads")
    outage.succeeded(0.0)
    for second in range(100, 100 + round(REMIND_EVERY_S) + 20):
        outage.failed("gone", float(second))
    outage.succeeded(190.0)
    outage.succeeded(191.0)
    told = [(line["event"], line["failures"], line.get("since_s", line.get("after_s"))) for line in lines.entries]
    assert told == [("database_unavailable", 1, 0.0), ("database_unavailable", 60, 60.0), ("database_available", 19, 90.0)]
