"""The books: rollups, batches that come twice, a database that is away, and the route that shows them."""

import csv
import io
import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import structlog
from httpx import ASGITransport, AsyncClient
from litestar import Litestar
from prometheus_client import CollectorRegistry
from sqlalchemy import select

from appliance.db.database import Database
from appliance.domain.system.state import State, StateMetrics
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.domain.tenants.routes import admin_router
from appliance.domain.tenants.usage_controller import UsageAnswer, UsageRow, UsageTotals, usage_csv
from appliance.domain.usage.decisions import Batch, Counts, UsageKey
from appliance.domain.usage.models import UsageHour, UsageMinute
from appliance.domain.usage.recorder import UsageRecorder
from appliance.domain.usage.service import MINUTES_KEPT, add_batch, read_spent, remove_old_minutes
from appliance.domain.usage.spool import Journal, Spool
from appliance.problems import EXCEPTION_HANDLERS
from appliance.settings import Settings
from appliance.telemetry.requests import Outcome, RequestReport
from tests.control.conftest import ADMIN_TOKEN, API_KEY
from tests.control.test_lost_database import Relay

NOW = datetime(2026, 3, 31, 23, 58, 30, tzinfo=UTC)
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


def report(
    tenant: str = "acme", outcome: Outcome = Outcome.COMPLETED, prompt: int = 10, generated: int = 5, **fields: Any
) -> RequestReport:
    return RequestReport(
        request_id="req", route="/v1/completions", tenant_id=tenant, key_id=f"key_{tenant}", lane="fast", outcome=outcome, status=200,
        prompt_tokens=prompt, cached_tokens=4, generated_tokens=generated, received_ns=1, ended_ns=2, **fields,
    )  # fmt: skip


class Wall:
    def __init__(self) -> None:
        self.seconds = NOW.timestamp()

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def recorder(control: Control, tmp_path: Path, wall: Wall) -> UsageRecorder:
    return UsageRecorder(control.store.database, tmp_path / "spool", wall, lambda: "a-model")


async def rows_of(database: Database, table: type[UsageMinute | UsageHour]) -> list[tuple[Any, ...]]:
    async with database.read() as session:
        found = await session.scalars(select(table).order_by(table.began_at, table.tenant, table.outcome))
        return [(f"{row.began_at:%H:%M}", row.tenant, row.outcome, row.requests, row.prompt_tokens, row.generated_tokens) for row in found]


async def test_requests_are_summed_by_minute_and_by_hour(control, recorder, wall):
    recorder.note(report())
    recorder.note(report())
    recorder.note(report(outcome=Outcome.REJECTED))
    recorder.note(report(tenant=""))  # a key that was refused
    assert await recorder.flush()
    wall.seconds += 60
    recorder.note(report(prompt=1, generated=1))
    recorder.note(report("globex", Outcome.CANCELLED, scheduled_ns=1))
    assert await recorder.flush()
    assert await rows_of(control.store.database, UsageMinute) == [
        ("23:58", "acme", "completed", 2, 20, 10),
        ("23:58", "acme", "rejected", 1, 0, 0),
        ("23:59", "acme", "completed", 1, 1, 1),
        ("23:59", "globex", "cancelled", 1, 10, 5),
    ]
    assert await rows_of(control.store.database, UsageHour) == [
        ("23:00", "acme", "completed", 3, 21, 11),
        ("23:00", "acme", "rejected", 1, 0, 0),
        ("23:00", "globex", "cancelled", 1, 10, 5),
    ]


async def test_a_batch_that_comes_again_is_not_counted_again(control):
    batch = Batch("writer", 1, [(UsageKey(0, "acme", "k", "m", "fast", "completed"), Counts(1, 2, 0, 3))])
    counted: list[bool] = []
    for each in (batch, batch, Batch("writer", 2, batch.rows), batch, Batch("another", 1, batch.rows)):
        async with control.store.database.write() as session:
            counted.append(await add_batch(session, each))
    assert counted == [True, False, True, False, True]
    assert [row[3:] for row in await rows_of(control.store.database, UsageHour)] == [(3, 6, 9)]


async def test_what_a_process_left_in_the_spool_is_written_by_the_next_one_once(control, tmp_path, wall):
    dead = Spool(tmp_path / "spool", "dead")
    for number in (1, 2):
        dead.append(Batch("dead", number, [(UsageKey(0, "acme", "k", "m", "fast", "completed"), Counts(1, 2, 0, 3))]))
    with dead.path.open("ab") as file:
        file.write(b'["dead",3,[[[0,"acme"')  # it died while it wrote
    async with control.store.database.write() as session:
        await add_batch(session, dead.read([dead.path])[0])  # it had written this one, and did not come to know
    await UsageRecorder(control.store.database, tmp_path / "spool", wall, str).recover()
    assert [row[3:] for row in await rows_of(control.store.database, UsageMinute)] == [(2, 4, 6)]
    assert list((tmp_path / "spool").iterdir()) == []


async def test_what_a_killed_process_had_only_in_its_journals_is_written_in_order_and_once(control, tmp_path, wall):
    (tmp_path / "spool").mkdir()
    entry = (UsageKey(0, "acme", "k", "m", "fast", "completed"), Counts(1, 2, 0, 3))
    for number in (9, 10, 11):  # 9 was on its way to the database, 10 went to the spool meanwhile, 11 was being filled
        journal = Journal(tmp_path / "spool", "dead", number)
        journal.note(entry)
        journal.note(entry)
        if number == 10:
            Spool(tmp_path / "spool", "dead").append(Batch("dead", 10, [(entry[0], Counts(2, 4, 0, 6))]))
    with (tmp_path / "spool" / "dead.11.journal").open("ab") as file:
        file.write(b'[[0,"acme"')
    Journal(tmp_path / "spool", "young", 1)  # killed before its first line
    await UsageRecorder(control.store.database, tmp_path / "spool", wall, str).recover()
    assert [row[3:] for row in await rows_of(control.store.database, UsageMinute)] == [(6, 12, 18)]
    assert list((tmp_path / "spool").iterdir()) == []


def test_a_full_spool_loses_batches_and_not_the_disk(tmp_path):
    spool = Spool(tmp_path, "w", max_bytes=100)
    for number in range(50):
        spool.append(Batch("w", number, [(UsageKey(0, "acme", "k", "m", "fast", "completed"), Counts(1))]))
    assert 0 < spool.path.stat().st_size <= 100
    assert spool.num_lost == 50 - len(spool.read([spool.path]))


@contextmanager
def full_disk(file_bytes: int = 0) -> Iterator[None]:
    """No file grows beyond so many bytes: of what is written the part that fits is taken, and then nothing. Use it with `log_in_memory`:
    pytest keeps in a file what is logged."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def log_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every module: which of their loggers an earlier test had bound to pytest's file is not known."""
    in_memory = structlog.wrap_logger(structlog.PrintLogger(io.StringIO()))
    for name, module in tuple(sys.modules.items()):
        if name.startswith("appliance.") and hasattr(module, "log"):
            monkeypatch.setattr(module, "log", in_memory)


def test_of_a_line_that_does_not_fit_on_the_disk_nothing_is_left(tmp_path):
    spool, journal = Spool(tmp_path, "w"), Journal(tmp_path, "w", 4)
    entry = (UsageKey(0, "acme", "k", "m", "fast", "completed"), Counts(1))
    with full_disk(20), pytest.raises(OSError, match="too large"):
        spool.append(Batch("w", 1, [entry]))
    assert spool.num_bytes == 0 and not spool.path.exists()
    spool.append(Batch("w", 1, [entry]))
    journal.note(entry)
    with full_disk(spool.num_bytes + 5), pytest.raises(OSError, match="too large"):
        spool.append(Batch("w", 2, [entry]))
    with full_disk((tmp_path / "w.4.journal").stat().st_size + 5), pytest.raises(OSError, match="too large"):
        journal.note(entry)
    spool.append(Batch("w", 3, [entry]))
    journal.note(entry)
    journal.close()
    read = spool.read([spool.path, tmp_path / "w.4.journal"])
    assert [(batch.number, batch.rows[0][1].requests) for batch in read] == [(1, 1), (3, 1), (4, 2)]


@pytest.mark.usefixtures("log_in_memory")
async def test_usage_that_the_disk_does_not_take_costs_no_files_and_is_written_at_once_or_when_there_is_room(control, recorder, tmp_path):
    is_on_that_disk = control.store.database.engine.dialect.name == "sqlite"
    recorder.note(report())
    assert await recorder.flush()
    num_open = len(os.listdir("/proc/self/fd"))
    with full_disk():
        for _ in range(40):
            recorder.note(report())
            assert await recorder.flush() != is_on_that_disk
    assert len(os.listdir("/proc/self/fd")) <= num_open + 1, "each batch that is held has a file open"
    assert list((tmp_path / "spool").iterdir()) == []
    assert await recorder.flush() and recorder.unwritten_s == 0
    assert [row[3:] for row in await rows_of(control.store.database, UsageHour)] == [(41, 410, 205)]
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.usefixtures("log_in_memory")
async def test_usage_that_nothing_has_room_for_is_lost_and_counted(control, recorder, tmp_path, monkeypatch):
    is_on_that_disk = control.store.database.engine.dialect.name == "sqlite"
    monkeypatch.setattr("appliance.domain.usage.recorder.MAX_HELD_ROWS", 2)
    state = State(
        is_ready=lambda: True, num_engine_starts=dict, are_engines_up=dict, is_degraded=lambda: True,
        unwritten_s=lambda: recorder.unwritten_s, num_usage_lost=lambda: recorder.num_lost,
    )  # fmt: skip
    registry = CollectorRegistry()
    registry.register(StateMetrics(state))
    shown: list[float | None] = []
    with full_disk():
        for _ in range(4):
            recorder.note(report())
            recorder.note(report())
            assert await recorder.flush() != is_on_that_disk
            shown.append(registry.get_sample_value("fairlane_usage_lost_requests_total"))
    assert shown == ([0, 0, 2, 4] if is_on_that_disk else [0, 0, 0, 0])
    assert await recorder.flush()
    assert [row[3] for row in await rows_of(control.store.database, UsageHour)] == [8 - recorder.num_lost], "what was not lost is written"


async def test_old_minutes_go_and_hours_stay(control, recorder):
    recorder.note(report())
    await recorder.flush()
    async with control.store.database.write() as session:
        await remove_old_minutes(session, NOW + MINUTES_KEPT)
    assert await rows_of(control.store.database, UsageMinute) == []
    assert len(await rows_of(control.store.database, UsageHour)) == 1


async def test_tokens_of_the_day_and_the_month_are_read_by_tenant_and_by_key(control, recorder, wall):
    for days_ago in (0, 1, 40):
        wall.seconds = NOW.timestamp() - days_ago * 86_400
        recorder.note(report())
    recorder.note(report("globex", Outcome.REJECTED))
    await recorder.flush()
    for days_ahead in (1, 31):  # a clock that was ahead for a while
        wall.seconds = NOW.timestamp() + days_ahead * 86_400
        recorder.note(report("initech"))
    await recorder.flush()
    async with control.store.database.read() as session:
        assert await read_spent(session, "tenant", NOW) == {"acme": (15, 30)}
        assert await read_spent(session, "key_id", NOW) == {"key_acme": (15, 30)}
        assert await read_spent(session, "tenant", NOW + timedelta(days=1)) == {"initech": (15, 15)}, "of April; the first of May is not"


@pytest.mark.usefixtures("log_in_memory")
async def test_usage_goes_on_without_the_database_and_without_the_disk_and_is_written_when_it_is_back(postgres_server, tmp_path, wall):
    host, _, port = postgres_server.rpartition("@")[2].partition(":")
    admin = await asyncpg.connect(f"{postgres_server}/postgres")
    await admin.execute("DROP DATABASE IF EXISTS fairlane_books WITH (FORCE)")
    await admin.execute("CREATE DATABASE fairlane_books")
    relay = Relay(host, int(port))
    await relay.join()
    url = f"{postgres_server.rpartition('@')[0]}@127.0.0.1:{relay.port}/fairlane_books"
    control = await open_control(Settings(data_dir=str(tmp_path), database_url=url, bootstrap_api_key=API_KEY))
    recorder = UsageRecorder(control.store.database, tmp_path / "spool", wall, lambda: "m")
    recorder.note(report())
    assert await recorder.flush()
    await relay.cut()
    for _ in range(3):
        recorder.note(report())
        wall.seconds += 5
        assert not await recorder.flush()
    assert recorder.unwritten_s == 15
    assert len(list((tmp_path / "spool").iterdir())) == 1
    (tmp_path / "spool").rename(tmp_path / "away")
    (tmp_path / "spool").write_text("a disk that takes nothing")
    for _ in range(2):
        recorder.note(report())
        assert not await recorder.flush()
    (tmp_path / "spool").unlink()
    (tmp_path / "away").rename(tmp_path / "spool")
    await relay.join()
    recorder.note(report())
    with full_disk():  # what the database takes needs none
        assert await recorder.flush() and recorder.unwritten_s == 0
    assert [row[3:] for row in await rows_of(control.store.database, UsageHour)] == [(7, 70, 35)]
    assert list((tmp_path / "spool").iterdir()) == []
    await control.close()
    await relay.cut()
    await admin.execute("DROP DATABASE fairlane_books WITH (FORCE)")
    await admin.close()


@pytest.fixture
async def client(control: Control) -> AsyncIterator[AsyncClient]:
    app = Litestar([admin_router(control)], exception_handlers=EXCEPTION_HANDLERS, logging_config=None)
    transport = ASGITransport(app, raise_app_exceptions=False)  # pyright: ignore[reportArgumentType]
    async with AsyncClient(transport=transport, base_url="http://test", headers=ADMIN) as opened:
        yield opened


async def test_the_route_answers_by_tenant_and_span_in_json_and_csv(client, recorder, wall):
    for tenant in ("acme", "acme", "globex"):
        recorder.note(report(tenant))
        wall.seconds += 60
    await recorder.flush()
    assert (await client.post("/api/v1/tenants", json={"slug": "acme"})).status_code == 201
    span = {"from": "2026-03-31T23:00:00Z", "to": "2026-03-31T23:59:59Z"}
    answer = (await client.get("/api/v1/usage", params={"tenant": "acme", **span})).json()
    assert answer["totals"] == {"requests": 2, "prompt_tokens": 20, "cached_tokens": 8, "generated_tokens": 10}
    assert [row["began_at"] for row in answer["usage"]] == ["2026-03-31T23:58:00Z", "2026-03-31T23:59:00Z"]
    by_hour = await client.get("/api/v1/usage", params={"resolution": "hour", **span, "to": "2026-04-02T00:00:00+01:00"})
    assert [(row["tenant"], row["requests"]) for row in by_hour.json()["usage"]] == [("acme", 2), ("globex", 1)]
    text = await client.get("/api/v1/usage", params={"format": "csv", "tenant": "acme", **span})
    assert text.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text.text)))
    assert [(row["tenant"], row["model"], row["requests"], row["generated_tokens"]) for row in rows] == [("acme", "a-model", "1", "5")] * 2


@pytest.mark.parametrize("model", ['=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(1)", "\t=1", "\r=1"])
def test_a_name_in_the_csv_is_no_formula_to_a_spreadsheet(model):
    row = UsageRow(
        began_at=NOW, tenant="t", key_id="k", model=model, lane="fast", outcome="completed",
        requests=1, prompt_tokens=2, cached_tokens=0, generated_tokens=3,
    )  # fmt: skip
    plain = msgspec.structs.replace(row, model='a "model", in two\nlines')
    totals = UsageTotals(requests=2, prompt_tokens=4, cached_tokens=0, generated_tokens=6)
    text = usage_csv(UsageAnswer(begin=NOW, end=NOW, totals=totals, usage=[row, plain]))
    cells = [each["model"] for each in csv.DictReader(io.StringIO(text, newline=""))]
    assert cells == [f"'{model}", 'a "model", in two\nlines']


async def test_a_wrong_question_is_refused_by_name(client):
    for params, param in (
        ({"from": "2026-03-31T23:00:00"}, "from"),
        ({"from": "2026-03-31T23:00:00Z", "to": "2026-03-01T23:00:00Z"}, "from"),
        ({"from": "yesterday"}, "from"),
        ({"to": "0001-01-01T00:00:00Z"}, "from"),
        ({"from": "9999-12-31T23:59:59.999999Z"}, "from"),
        ({"from": "0001-01-01T00:00:00+01:00"}, "from"),
        ({"to": "9999-12-31T23:59:59-01:00"}, "to"),
        ({"resolution": "second"}, "resolution"),
    ):
        refused = await client.get("/api/v1/usage", params=params)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    gone = {"slug": "gone"}
    assert (await client.post("/api/v1/tenants", json=gone)).status_code == 201
    assert (await client.delete("/api/v1/tenants/gone")).status_code == 204
    assert (await client.get("/api/v1/usage", params={"tenant": "gone"})).status_code == 200, "usage outlives a tenant"
    unknown = await client.get("/api/v1/usage", params={"tenant": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "tenant_not_found")
    for empty in ({}, {"to": "0001-01-01T00:00:00.000001Z"}, {"from": "0001-01-01T00:00:00Z"}, {"to": "9999-12-31T23:59:59.999999Z"}):
        assert (await client.get("/api/v1/usage", params=empty)).json()["usage"] == []
