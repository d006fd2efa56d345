"""The server as a process, its engine process a fake: start, restart, shutdown, and what it says when it can not start."""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from appliance.domain.access.directory import Directory
from appliance.domain.admission.gate import Gate, GateState
from appliance.domain.inference.backend import Backend
from appliance.domain.tenants.bootstrap import open_control
from appliance.open_files import WANTED
from appliance.runtime import Runtime, Watchers
from appliance.settings import Settings
from appliance.supervisor import FIRST_BACKOFF_S, MAX_BACKOFF_S, Supervisor, backoff_s, describe_exit
from appliance.telemetry.hub import Telemetry
from engine.wire import EngineConfig
from tests.inference.harness import FixedSource, snapshot
from tests.inference.serve_fake import ENGINE
from tests.small_disk import small_disk

KEY = "serve-test-key-0123456789"
ADMIN = "serve-test-admin-0123456789"
ENV = {"FAIRLANE_BOOTSTRAP_API_KEY": KEY, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN}
HEADERS = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Served:
    process: subprocess.Popen[bytes]
    data_dir: Path
    log_path: Path
    url: str = ""

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ready(self) -> tuple[int, str]:
        response = httpx.get(self.url + "/readyz", timeout=5)
        return response.status_code, response.json()["status"]

    def engine_pids(self) -> list[int]:
        return [json.loads(line)["pid"] for line in self.log().splitlines() if '"engine_started"' in line]

    def stream(self, max_tokens: int) -> Iterator[str]:
        body = {"prompt": "x", "max_tokens": max_tokens, "stream": True}
        with httpx.stream("POST", self.url + "/v1/completions", json=body, headers=HEADERS, timeout=20) as response:
            assert response.status_code == 200
            yield from response.iter_lines()


def running(served: Served) -> float:
    """Sequences that hold a row, as the metrics say."""
    lines = httpx.get(served.url + "/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("fairlane_running_requests{"))


def until(fact: Callable[[], bool], what: Callable[[], str], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)  # polling another process


def start(folder: Path, export: Path, *fields: str) -> Served:
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "log.txt"
    with log_path.open("wb") as log:
        command = [sys.executable, "-m", "tests.inference.serve_fake", str(folder), str(export), *fields]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **ENV})
    return Served(process, folder, log_path)


@contextlib.contextmanager
def serving(folder: Path, export: Path, *fields: str) -> Iterator[Served]:
    served = start(folder, export, *fields)
    try:
        until(lambda: (folder / "run.json").exists() or served.process.poll() is not None, served.log)
        assert served.process.poll() is None, served.log()
        served.url = json.loads((folder / "run.json").read_text())["url"]
        until(lambda: served.ready()[0] == 200, served.log)
        yield served
    finally:
        served.process.kill()
        served.process.wait(10)


@pytest.fixture
def few_open_files() -> Iterator[int]:
    """As an engine of containers begins: 1,024. The most that a process here may raise that to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    try:
        yield WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_says_where_it_is_and_how_to_use_it_and_run_json_tells_scripts(tmp_path: Path, export: Path, few_open_files: int) -> None:
    with serving(tmp_path, export) as served:
        run = json.loads((tmp_path / "run.json").read_text())
        assert run == {"pid": served.process.pid, "port": httpx.URL(served.url).port, "url": served.url}
        assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)[0] == few_open_files > 1_024, "each connection is one"
        text = served.log()
        assert f"at {served.url}" in text and f"curl {served.url}/v1/chat/completions" in text
        secrets = (KEY, ADMIN, (tmp_path / "setup-token").read_text().strip(), (tmp_path / "key-pepper").read_text().strip())
        assert [secret for secret in secrets if secret in text] == [], "a log file holds no secret"
        assert "good until there is an owner" in text
        admin = httpx.get(served.url + "/api/v1/tenants", headers={"Authorization": f"Bearer {ADMIN}"})
        assert admin.status_code == 200
        answer = httpx.post(served.url + "/generate", json={"prompt": "x", "max_tokens": 4}, headers=HEADERS)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4


def settled_usage(served: Served, path: str = "/api/v1/usage?tenant=default") -> dict[tuple[str, str], list[int]]:
    """Requests, prompt and generated tokens by lane and outcome, as the books say."""
    rows = httpx.get(served.url + path, headers={"Authorization": f"Bearer {ADMIN}"}).raise_for_status().json()["usage"]
    sums: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        found = sums.setdefault((row["lane"], row["outcome"]), [0, 0, 0])
        sums[row["lane"], row["outcome"]] = [
            a + row[n] for a, n in zip(found, ("requests", "prompt_tokens", "generated_tokens"), strict=True)
        ]
    return sums


def test_the_books_equal_what_clients_counted_within_2_s_and_budgets_outlive_a_restart(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        whole = httpx.post(served.url + "/v1/completions", json={"prompt": "x", "max_tokens": 7, "n": 2}, headers=HEADERS).json()["usage"]
        next(lines := served.stream(12))
        list(lines)
        next(lines := served.stream(2_000))
        lines.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert httpx.post(served.url + "/v1/completions", json={"prompt": ""}, headers=HEADERS).status_code == 400
        began_s = time.monotonic()
        until(lambda: sum(row[0] for row in settled_usage(served).values()) == 4, served.log)
        assert time.monotonic() - began_s < 2.5
        books = settled_usage(served)
        assert books["slow", "completed"] == [1, whole["prompt_tokens"], whole["completion_tokens"]] == [1, 1, 14]
        assert books["fast", "completed"] == [1, 1, 12] and books["none", "rejected"] == [1, 0, 0]
        assert books["fast", "cancelled"][:2] == [1, 1]
        tokens = sum(row[1] + row[2] for row in books.values())
        metrics = httpx.get(served.url + "/metrics").text
        counted = re.findall(r'^fairlane_tokens_total{.*direction="(?:prompt|generated)".* ([\d.]+)$', metrics, re.MULTILINE)
        assert tokens == sum(map(float, counted))
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0
    database = sqlite3.connect(tmp_path / "fairlane.db")
    overrides = json.dumps({"tokens_per_day": tokens, "max_concurrency": None, "max_queued": None})
    database.execute("UPDATE tenant SET overrides = ?", (overrides,))
    database.commit()
    database.close()
    with serving(tmp_path, export) as served:
        spent = httpx.post(served.url + "/generate", json={"prompt": "x"}, headers=HEADERS)
        assert spent.status_code == 429 and spent.json()["error"]["code"] == "insufficient_quota"


def test_a_changed_limit_holds_from_the_next_request_on_and_leaves_running_ones_alone(tmp_path: Path, export: Path) -> None:
    admin = {"Authorization": f"Bearer {ADMIN}"}
    with serving(tmp_path, export) as served:
        lines = served.stream(100)
        next(lines)
        for limit, reason in (
            ({"max_concurrency": 1}, "concurrency"),
            ({"tpm": 10}, "rate_tokens"),
        ):  # the stream may still use more than 10
            overrides = {"overrides": {"max_context": 20, **limit}}
            assert httpx.patch(served.url + "/api/v1/tenants/default", json=overrides, headers=admin).status_code == 200
            refused = httpx.post(served.url + "/generate", json={"prompt": "x"}, headers=HEADERS)
            assert refused.status_code == 429 and refused.json()["error"]["reason"] == reason
        assert list(lines)[-2] == "data: [DONE]"
        event = httpx.get(served.url + "/api/v1/audit", headers=admin).json()["events"][0]
        assert event["action"] == "tenant.update" and event["request_id"].startswith("req_") and event["source"] == "127.0.0.1"


def test_a_trusted_proxy_tells_address_and_scheme_and_nobody_else_does(tmp_path: Path, export: Path) -> None:
    admin = {"Authorization": f"Bearer {ADMIN}"}
    forwarded = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https"}
    login = {"name": "admin", "password": "a horse, a staple"}
    for proxies, source, secure in (("127.0.0.0/8", "198.51.100.7", True), ("192.0.2.1", "127.0.0.1", False)):
        fields = (f"trusted_proxies={proxies}", "bootstrap_admin_password=a horse, a staple")
        with serving(tmp_path / proxies.partition("/")[0], export, *fields) as served:
            answer = httpx.post(served.url + "/api/v1/login", json=login, headers=forwarded)
            assert answer.status_code == 200 and ("Secure" in answer.headers["set-cookie"]) is secure
            event = httpx.get(served.url + "/api/v1/audit", headers=admin).json()["events"][0]
            assert (event["action"], event["source"]) == ("login", source)


def test_a_killed_engine_ends_streams_with_an_error_and_is_replaced(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        lines = served.stream(2_000)
        assert next(lines).startswith("data: ")
        os.kill(served.engine_pids()[0], signal.SIGKILL)
        rest = list(lines)
        assert "event: error" in rest and '"code":"engine_down"' in rest[-2] + rest[-1]
        until(lambda: served.ready() == (503, "engine_down"), served.log)
        until(lambda: served.ready() == (200, "ready"), served.log)
        assert len(served.engine_pids()) == 2
        assert httpx.post(served.url + "/generate", json={"prompt": "x"}, headers=HEADERS).status_code == 200
        metrics = httpx.get(served.url + "/metrics").text
        assert 'outcome="failed"' in metrics


def test_sigterm_turns_newcomers_away_lets_streams_finish_and_takes_the_engine_along(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        engine_pid = served.engine_pids()[0]
        lines = served.stream(300)
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.ready() == (503, "draining"), served.log)
        refused = httpx.post(served.url + "/generate", json={"prompt": "x"}, headers=HEADERS)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert list(lines)[-2] == "data: [DONE]"
        assert served.process.wait(10) == 0
        assert not (tmp_path / "run.json").exists()
        with pytest.raises(ProcessLookupError):
            os.kill(engine_pid, 0)


def test_a_stream_longer_than_the_grace_time_ends_with_an_error_event(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export, "shutdown_grace_s=0.3") as served:
        lines = served.stream(2_000)
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        rest = list(lines)
        assert "event: error" in rest and any('"code":"draining"' in line for line in rest)
        assert served.process.wait(10) == 0


def test_a_second_sigterm_ends_the_grace_time_and_streams_still_hear_why(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        lines = served.stream(2_000)
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.ready() == (503, "draining"), served.log)
        served.process.send_signal(signal.SIGTERM)
        rest = list(lines)
        assert "event: error" in rest and any('"code":"draining"' in line for line in rest)
        assert served.process.wait(10) == 0


def test_a_model_at_fault_ends_the_server_with_its_message_and_no_loop(tmp_path: Path, export: Path) -> None:
    served = start(tmp_path, export, "model=broken")
    assert served.process.wait(30) == 1
    assert served.log().count("this model is broken: choose another with --model") == 1
    assert len(served.engine_pids()) == 1


def test_an_impossible_setting_of_the_engine_ends_with_the_exit_status_of_usage(tmp_path: Path, export: Path) -> None:
    served = start(tmp_path, export, "model=misconfigured")
    assert served.process.wait(30) == 2
    assert "error: max_num_seqs is 0: give at least 1" in served.log()


def test_a_second_server_on_one_data_directory_is_refused_and_the_first_goes_on(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as first:
        books = tmp_path / "usage-spool" / "whose.1.journal"
        books.write_text("")
        second = start(tmp_path, export)
        assert second.process.wait(30) == 2
        assert "is in use by a running server" in second.log()
        assert books.exists(), "a running server's books are its own"
        assert first.ready()[0] == 200


def test_a_second_server_on_one_sqlite_file_is_refused_and_its_file_is_not_replaced(tmp_path: Path, export: Path) -> None:
    url = f"database_url=sqlite:///{tmp_path / 'shared.db'}"
    with serving(tmp_path / "a", export, url, "key_pepper=a-pepper-that-both-share"):
        second = start(tmp_path / "b", export, url, "key_pepper=a-pepper-that-both-share")
        assert second.process.wait(30) == 2
        assert "shared.db is in use by a running server" in second.log()


def test_a_data_directory_that_takes_nothing_is_said_in_words(tmp_path: Path, export: Path) -> None:
    (tmp_path / "run.json").mkdir()
    served = start(tmp_path, export)
    assert served.process.wait(30) == 1
    assert "takes no run.json (Is a directory): make room on its disk" in served.log() and "Traceback" not in served.log()
    assert not list(tmp_path.glob("run.[0-9]*"))


def test_a_data_directory_whose_disk_takes_no_more_files_is_said_in_words(tmp_path: Path, export: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        elsewhere = {"database_url": f"sqlite:///{tmp_path}/elsewhere.db"}
        asyncio.run(_open_and_close(Settings(data_dir=str(disk.path), bootstrap_api_key=KEY, bootstrap_admin_token=ADMIN, **elsewhere)))
        disk.refuse_more_files()
        served = start(tmp_path / "log", export, f"data_dir={disk.path}", *(f"{name}={value}" for name, value in elsewhere.items()))
        assert served.process.wait(30) == 1
        assert "disk/usage-spool can not be made (No space left on device): make room on its disk" in served.log()
        assert "Traceback" not in served.log()


async def _open_and_close(settings: Settings) -> None:
    await (await open_control(settings)).close()


def test_a_port_in_use_is_said_in_words(tmp_path: Path, export: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = start(tmp_path, export, f"port={port}")
        assert served.process.wait(30) == 1
        assert f"can not listen on 127.0.0.1:{port}" in served.log() and "--port" in served.log()
        assert "Traceback" not in served.log()


def test_an_engine_that_is_killed_with_many_requests_in_flight_leaves_none_without_an_end(tmp_path: Path, export: Path) -> None:
    with serving(tmp_path, export) as served:
        statuses: list[int] = []

        def ask() -> None:
            body = {"prompt": "x", "max_tokens": 2_000}
            statuses.append(httpx.post(served.url + "/v1/completions", json=body, headers=HEADERS, timeout=20).status_code)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: running(served) >= 8, served.log)
        os.kill(served.engine_pids()[0], signal.SIGKILL)
        for thread in threads:
            thread.join(20)
        assert statuses == [503] * 20


def test_restarts_wait_twice_as_long_each_time_up_to_a_bound() -> None:
    assert [backoff_s(n) for n in (1, 2, 3)] == [FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S, 4 * FIRST_BACKOFF_S]
    assert backoff_s(50) == MAX_BACKOFF_S
    assert describe_exit(-9) == "signal SIGKILL" and describe_exit(1) == "exit status 1"


def test_an_engine_that_hangs_is_killed_and_replaced(export: Path) -> None:
    async def live() -> None:
        access = snapshot()
        gate, registry = Gate(), CollectorRegistry()
        watchers = Watchers(lambda _: None, lambda _: None, lambda _: None)
        runtime = Runtime(Directory(FixedSource(access), access), gate, Backend(), Telemetry(registry), (), watchers)
        config = EngineConfig(export_dir=str(export))
        supervisor = Supervisor(ENGINE, config, runtime, silence_s=1.0, look_every_s=0.2)
        running = asyncio.create_task(supervisor.run())
        async with asyncio.timeout(60):
            await opened(gate)
            hanging = supervisor.pid
            assert hanging is not None
            os.kill(hanging, signal.SIGSTOP)
            while gate.condition.state is GateState.OPEN:  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # polling another process
            await opened(gate)
            assert supervisor.pid not in (None, hanging)
        running.cancel()
        await asyncio.wait([running])

    uvloop.run(live())


async def opened(gate: Gate) -> None:
    while gate.condition.state is not GateState.OPEN:  # noqa: ASYNC110
        await asyncio.sleep(0.02)  # polling another process
