"""The benchmarks with bars: their clients, their arithmetic, and the objects they measure in this process."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from prometheus_client import generate_latest

from appliance.settings import Settings
from benchmarks.admission_decision import callers, crowded, decide_often
from benchmarks.control_plane import Crowd, Round, figures_of
from benchmarks.http_client import Answer, Client, Times, request_of
from benchmarks.many_tenants import Reloads, prepare
from benchmarks.metrics_cost import TOKENS_A_REQUEST, Cost, Served, share_of_core
from benchmarks.metrics_on_off import Window, losses, turns
from benchmarks.record import keep
from benchmarks.refusals import LONGEST_RETURN_S, Measured, Return, ask_and_return
from benchmarks.refusals import figures_of as refusal_figures
from benchmarks.switched_server import COUNTING, LOOK_EVERY_S, Switch
from benchmarks.tail.case import Figure


@contextlib.asynccontextmanager
async def gatekeeper() -> AsyncIterator[str]:
    """Refuses every request for `/late` once, for 0.02 s, and answers it in chunks when it is repeated; closes on `/break`."""
    seen: set[bytes] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split()[1]
                if path == b"/break":
                    break
                if path.startswith(b"/late") and path not in seen:
                    seen.add(path)
                    writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0.02\r\nContent-Length: 4\r\n\r\nwait")
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_refusals_and_broken_connections_are_answers_and_time_counts_from_the_schedule() -> None:
    async with gatekeeper() as url:
        client = Client(url)
        paths = ["/late", "/late", "/break", "/fine"]
        answers = await client.paced([request_of("GET", path) for path in paths], 0.05)
        client.close()
    assert [(a.status, a.retry_after_s) for a in answers] == [(429, 0.02), (200, None), (0, None), (200, None)]
    assert [a.body for a in answers if a.status] == [b"wait", b"hello", b"hello"]
    assert all(a.scheduled_s <= a.sent_s <= a.ended_s for a in answers)
    assert [round(a.scheduled_s - answers[0].scheduled_s, 6) for a in answers] == [0, 0.05, 0.1, 0.15]


async def test_a_refused_client_comes_back_with_the_same_request_when_it_was_told() -> None:
    async with gatekeeper() as url:
        client = Client(url)
        answers, returns = await ask_and_return(client, [request_of("GET", f"/late{n}") for n in range(3)], 0.0)
        client.close()
    assert [a.status for a in answers] == [429, 429, 429]
    assert [(each.told_s, each.status) for each in returns] == [(0.02, 200)] * 3


def answer(status: int, latency_s: float, sent_s: float = 0.0) -> Answer:
    return Answer(0.0, sent_s, latency_s, status, None, b"{}")


def test_refusals_are_judged_all_together_and_only_those_who_came_back_count_as_returns() -> None:
    measured = Measured(
        refusals={"a": [answer(429, 0.01)] * 99, "b": [answer(503, 0.2), answer(503, 0.3)], "c": []},
        answered=4,
        returns=[Return(1.0, 200), Return(1.0, 503), Return(LONGEST_RETURN_S + 1, None)],
        flood_tokens_per_s=1.0,
    )
    found = {figure.name: figure for figure in refusal_figures(measured, [])}
    assert found["a refusal with the engine saturated, P99"].value == 200.0
    assert found["a refusal with the engine saturated, P99"].verdict == "misses"
    assert found["of 2 clients that came back when told, got in"].value == 0.5
    assert found["... of tenant c (0), P99"].value is None


def test_every_kind_of_decision_is_the_one_that_it_is_named_after() -> None:
    found = decide_often(30, calls=3)
    assert [each.outcome for each in found] == list(callers())
    assert len({(t.tenant_id, t.lane) for t in crowded(30).tenants}) == 30


def test_telemetry_is_told_of_every_tenant_and_token_and_the_rendering_is_the_clients() -> None:
    served = Served(4)
    served.serve()
    text = served.telemetry.render().decode()
    gaps = [line for line in text.splitlines() if line.startswith("fairlane_inter_token_seconds_count{")]
    assert len(gaps) == 4 * 3 and all(line.endswith(f" {TOKENS_A_REQUEST - 1}") for line in gaps)
    client = generate_latest(served.registry).decode()
    assert len(text.splitlines()) == len(client.splitlines())


def test_the_share_of_a_core_adds_counting_and_scrapes() -> None:
    cost = Cost(
        num_series=1,
        first_scrape_ms=99,
        busy_scrape_ms=30,
        quiet_scrape_ms=1,
        client_scrape_ms=99,
        settle_us=100,
        token_us=2,
        step_us=10,
        look_ms=5,
    )
    share = share_of_core(cost, requests_per_s=10, tokens_per_s=1_000, steps_per_s=50, scrape_every_s=15)
    assert round(share, 9) == 0.001 + 0.002 + 0.0005 + 0.002 + 0.001


def test_the_loss_is_that_of_windows_with_metrics_against_their_neighbours_without() -> None:
    windows = [Window(is_on, 2.0, 198 if is_on else 200) for is_on in itertools.islice(turns(), 4)]
    assert [window.is_on for window in windows] == [True, False, False, True]
    assert [round(loss, 9) for loss in losses(windows)] == [0.01, 0.01]


def test_the_switch_turns_counting_off_while_its_file_is_there(tmp_path: Path) -> None:
    switch = Switch(tmp_path / "off")
    counting = [(switch.around(getattr(owner, name), answer), answer) for owner, name, answer in COUNTING]
    served = Served(1)
    counted = switch.around(served.settle, "nothing")
    counted("tenant-000", "fast")
    (tmp_path / "off").touch()
    switch.start()
    while not switch.is_off:
        time.sleep(LOOK_EVERY_S)
    assert counted("tenant-000", "fast") == "nothing" and served.telemetry.requests.num_observed == 1
    assert all(call() is answer for call, answer in counting)


def test_what_is_added_is_the_median_of_the_rounds_differences() -> None:
    def times(p50_ms: float, p99_ms: float) -> Times:
        return Times(10, p50_ms, p99_ms, p99_ms, 0.1)

    rounds = [Round(times(2, 9), times(1, 3)), Round(times(2.5, 5), times(1, 3)), Round(times(90, 90), times(1, 3))]
    crowd = Crowd(
        tenants=5,
        reloads=Reloads(2.0, 0.1),
        list_page_ms={"first": 3},
        write_ms=1,
        rss_before_mib=1,
        rss_after_mib=2,
        inference=times(1, 1),
    )
    found = {figure.name: (figure.value, figure.verdict) for figure in figures_of(rounds, crowd)}
    assert found["added to an inference request, P50"] == (1.5, "misses")
    assert found["added to an inference request, P99"] == (6, "misses")
    assert found["5 tenants: snapshot from nothing"] == (2.0, "misses")
    assert found["5 tenants: list page, first"] == (3, "bar")


async def test_a_filled_database_is_read_and_read_again(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), bootstrap_api_key="api-key-for-tests-0001", bootstrap_admin_token="admin-token-for-tests")
    began_s = time.perf_counter()
    found = await prepare(settings, 30)
    assert 0 < found.changed_s + found.cold_s < time.perf_counter() - began_s


def test_figures_are_shown_and_kept_with_their_verdicts(tmp_path: Path, capsys) -> None:
    path = keep("x", [Figure("speed", 3.0, "ms", bar=2)], {"rounds": [1]}, tmp_path)
    kept = msgspec.json.decode(path.read_bytes())
    assert kept["figures"][0]["verdict"] == "misses" and kept["rounds"] == [1] and kept["machine"]["cores"]
    assert "misses" in capsys.readouterr().out
