"""A Prometheus behind the viewer: it answers as our own evaluator does on the same samples, and what goes wrong is said."""

import contextlib
import http.server
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.dashboards import prometheus as client
from appliance.dashboards.board import read_boards
from appliance.dashboards.metrics import NoAnswer
from appliance.dashboards.prometheus import PrometheusMetrics
from appliance.dashboards.viewer import ALL, Choice, Window, filled
from appliance.promql.evaluator import evaluate
from appliance.promql.grid import Grid
from appliance.promql.values import Series
from appliance.settings import Settings, SettingsError, load_settings, prometheus_headers
from tests.observability.monitoring import free_port
from tests.promql.samples import LAST_MS, made_up, prometheus_with

WINDOW = Window(900, 60, 75)
GRID = Grid(LAST_MS + 7_000, 60_000, 16)


def plain(found: list[Series]) -> dict[frozenset[tuple[str, str]], list[object]]:
    return {
        frozenset(each.labels.items()): [None if value is None or math.isnan(value) else pytest.approx(value) for value in each.values]
        for each in found
    }


async def test_a_prometheus_and_our_own_evaluator_answer_a_dashboard_alike(tmp_path: Path) -> None:
    kept = made_up()
    board = read_boards()["fairlane-lanes"]  # it reads no recorded series, which this Prometheus does not have
    choices = [Choice(variable, (), ALL) for variable in board.variables]
    with prometheus_with(kept, tmp_path) as url:
        metrics = PrometheusMetrics(url + "/", {})
        for query in (query for panel in board.panels for query in panel.queries):
            expr = filled(query.expr, choices, WINDOW)
            for grid in (GRID, Grid(GRID.end_ms)):
                assert plain(list(await metrics.series(expr, grid))) == plain(evaluate(expr, kept, grid, {})), expr
        assert [each.values for each in await metrics.series("scalar(vector(3))", Grid(GRID.end_ms))] == [[3.0]]
        with pytest.raises(NoAnswer, match=r"status 400: .*parse error"):
            await metrics.series("sum(", GRID)


@contextlib.contextmanager
def answering(status: int, content: bytes, seen: list[dict[str, str]] | None = None) -> Iterator[str]:
    """A server that says this, whatever it is asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.do_GET()

        def do_GET(self) -> None:
            if seen is not None:
                seen.append(dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (401, b"", "refused us .status 401.: check FAIRLANE_PROMETHEUS_HEADERS"),
        (404, b"<html>", "status 404: is prometheus_url a Prometheus"),
        (200, b"<html>hello", "no Prometheus sends: is prometheus_url right"),
        (
            422,
            json.dumps({"status": "error", "errorType": "execution", "error": "too many samples"}).encode(),
            "status 422: too many samples",
        ),
    ],
)
async def test_an_answer_that_is_none_is_said_to_be_so(status: int, content: bytes, said: str) -> None:
    with answering(status, content) as url:
        with pytest.raises(NoAnswer, match=said):
            await PrometheusMetrics(url, {}).series("up", GRID)
        with pytest.raises(NoAnswer, match=said):
            await PrometheusMetrics(url, {}).label_values("up", "job")


async def test_a_prometheus_that_is_not_there_or_says_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with pytest.raises(
        NoAnswer, match=rf"Prometheus at 127.0.0.1:{port} does not answer .*refused.*: check that it runs, and prometheus_url"
    ):
        await PrometheusMetrics(f"http://127.0.0.1:{port}", {}).series("up", GRID)
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 10)
    with answering(200, b" " * 100) as url, pytest.raises(NoAnswer, match="choose a shorter time"):
        await PrometheusMetrics(url, {}).series("up", GRID)


async def test_the_configured_headers_go_with_every_query() -> None:
    settings = Settings(prometheus_headers="authorization=Bearer t, x-scope-orgid=llm")
    seen: list[dict[str, str]] = []
    with answering(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', seen) as url:
        await PrometheusMetrics(url, prometheus_headers(settings)).series("up", Grid(1))
    assert {name.lower(): value for name, value in seen[0].items()}.items() >= {"authorization": "Bearer t", "x-scope-orgid": "llm"}.items()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PROMETHEUS_URL", "prometheus:9090", "is no URL"),
        ("PROMETHEUS_URL", "http://me:secret@prometheus:9090", "holds a password: leave it out and set FAIRLANE_PROMETHEUS_HEADERS"),
        ("PROMETHEUS_HEADERS", "Bearer t", "change FAIRLANE_PROMETHEUS_HEADERS"),
        ("GRAFANA_URL", "grafana", "is no URL"),
        ("HISTORY_INTERVAL_S", "0", "at least 1"),
    ],
)
def test_a_setting_that_can_not_work_is_refused_with_what_to_do(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        load_settings({}, {f"FAIRLANE_{name}": value})
    assert "secret" not in str(refused.value)
