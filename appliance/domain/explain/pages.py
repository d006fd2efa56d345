"""Live pages for administrators: what waits, what memory holds, what each tenant has, the newest steps, the event loop's tasks.

Each page is a table of at most `MAX_ROWS` rows, the same as HTML and as JSON.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal, get_args

import jinja2
import msgspec

from appliance.telemetry.device_time import shares_of
from appliance.telemetry.hub import Telemetry
from appliance.telemetry.requests import RequestReport
from engine.wire import StepRecord

MAX_ROWS = 200

PageName = Literal["queue", "kv", "tenants", "steps", "tasks"]
PAGE_NAMES: tuple[PageName, ...] = get_args(PageName)

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ page.name }} - Fairlane</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem; color: #1d2733; } nav a { margin-right: 1rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1rem .15rem 0; border-bottom: 1px solid #e3e8ee; }
td { font-family: ui-monospace, monospace; }
</style></head><body>
<nav>{% for name in names %}<a href="/debug/{{ name }}">{{ name }}</a>{% endfor %}</nav>
<h1>{{ page.name }}</h1><p>{{ page.about }} {{ page.rows | length }} of {{ page.total }} rows.</p>
<table><tr>{% for column in page.columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in page.rows %}<tr>{% for cell in row %}<td>{{ "" if cell is none else cell }}</td>{% endfor %}</tr>
{% endfor %}</table></body></html>"""

type Cell = str | int | float | None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A table."""

    name: str
    about: str
    columns: list[str]
    rows: list[list[Cell]]
    total: int
    """Rows there are; `rows` has the first `MAX_ROWS` of them."""


class DebugPages:
    """Reads the process as it is."""

    def __init__(
        self, telemetry: Telemetry, running: Callable[[], list[RequestReport]], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """`running`: reports so far of all requests in flight."""
        self._telemetry = telemetry
        self._running = running
        self._clock_ns = clock_ns

    def page(self, name: PageName) -> Page:
        """The page as it is now."""
        match name:
            case "queue":
                return self._queue()
            case "kv":
                return self._kv()
            case "tenants":
                return self._tenants()
            case "steps":
                return self._steps()
            case "tasks":
                return self._tasks()

    def _queue(self) -> Page:
        reports = sorted(self._running(), key=lambda report: (bool(report.scheduled_ns), report.received_ns))
        rows = (
            [
                report.request_id,
                report.tenant_id,
                report.lane,
                "decode" if report.first_token_ns else "prefill" if report.scheduled_ns else "queue",
                round((report.ended_ns - report.received_ns) / 1e9, 3),
                report.prompt_tokens,
                report.generated_tokens,
            ]
            for report in reports
        )
        columns = ["request", "tenant", "lane", "stage", "age_s", "prompt_tokens", "generated_tokens"]
        return _page("queue", "Requests in flight, those that wait first.", columns, rows, len(reports))

    def _kv(self) -> Page:
        load = self._telemetry.engine.load
        facts: list[list[Cell]] = []
        if load is not None:
            facts = [
                ["pages free", load.pages_free],
                ["pages used", load.pages_used],
                ["pages cached", load.pages_cached],
                ["token slots used", load.kv_slots_used],
                ["pages evicted", load.evicted_pages],
                ["prompt tokens looked up", load.prefix_query_tokens],
                ["prompt tokens found", load.prefix_hit_tokens],
                ["tokens computed again", load.recomputed_tokens],
                *(["preemptions: " + cause, number] for cause, number in sorted(load.preemptions.items())),
            ]
        return _page("kv", "The KV pool as the engine last reported it; counters since its start.", ["what", "number"], facts, len(facts))

    def _tenants(self) -> Page:
        load = self._telemetry.engine.load
        found = sorted(load.tenants, key=lambda each: -(each.running_rows + each.queued_rows)) if load else []
        rows = ([each.tenant_id, each.lane, each.running_rows, each.queued_rows, each.queued_tokens] for each in found)
        columns = ["tenant", "lane", "running_rows", "queued_rows", "queued_tokens"]
        return _page("tenants", "Tenants with work in the engine, busiest first.", columns, rows, len(found))

    def _steps(self) -> Page:
        ledger, now_ns = self._telemetry.ledger, self._clock_ns()
        newest = list(islice(ledger.newest_first(), MAX_ROWS))
        rows = (
            [
                record.engine,
                record.step,
                round((now_ns - record.done_ns) / 1e9, 3),
                record.bucket,
                round((record.done_ns - record.dispatched_ns) / 1e6, 2),
                round(record.predicted_s * 1e3, 2),
                record.decode_rows,
                record.prefill_tokens,
                record.pages_free,
                ", ".join(f"{each.sequence_id} ({each.cause}) for {each.taker_id or '?'}" for each in record.preempted),
                ", ".join(f"{each.pages} of {each.tenant_id} for {each.taker_id or '?'}" for each in record.evictions),
                _work_of(record),
            ]
            for record in newest
        )
        columns = [
            "engine",
            "step",
            "ago_s",
            "shape",
            "ms",
            "predicted_ms",
            "decode_rows",
            "prefill_tokens",
            "pages_free",
            "preempted",
            "evicted",
            "work",
        ]
        return _page("steps", "The newest steps, newest first, with the tenants' shares of the work.", columns, rows, len(ledger))

    def _tasks(self) -> Page:
        tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
        rows = ([task.get_name(), getattr(task.get_coro(), "__qualname__", "?"), "done" if task.done() else "waiting"] for task in tasks)
        return _page("tasks", "Tasks of the control plane's event loop.", ["task", "coroutine", "state"], rows, len(tasks))


def render(page: Page) -> str:
    """As HTML; all cells are escaped."""
    return jinja2.Environment(autoescape=True).from_string(_TEMPLATE).render(page=page, names=PAGE_NAMES)


def _page(name: str, about: str, columns: list[str], rows: Iterable[list[Cell]], total: int) -> Page:
    return Page(name=name, about=about, columns=columns, rows=list(islice(rows, MAX_ROWS)), total=total)


def _work_of(record: StepRecord) -> str:
    work = ", ".join(f"{tenant} {share:.0%}" for tenant, share in sorted(shares_of(record).items(), key=lambda item: -item[1]))
    return f"{work} (cut short for {record.interrupted_for})" if record.interrupted_for else work
