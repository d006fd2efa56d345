"""A real Prometheus and a real Alertmanager beside an appliance, with our rules and our routes, only quicker."""

import contextlib
import http.server
import json
import math
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.appliance import require_service
from tests.observability.rules import ALERTS, RECORDS, ROOT

SCRAPE_S = 1
POLL_S = 0.1
RATE_WINDOW = "1m"
"""What Grafana's `$__rate_interval` would be about for such a scrape interval."""


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True, slots=True)
class Answer:
    """One series of an instant query."""

    labels: dict[str, str]
    value: float


@dataclass(slots=True)
class Webhook:
    """Takes what Alertmanager sends: (receiver, alerts)."""

    port: int
    received: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list[tuple[str, list[dict[str, Any]]]])

    def alerts(self, receiver: str, status: str) -> list[dict[str, str]]:
        """Labels of alerts that came for a receiver with a status."""
        return [
            alert["labels"] for name, alerts in tuple(self.received) if name == receiver for alert in alerts if alert["status"] == status
        ]


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Both servers and who they tell."""

    prometheus_url: str
    webhook: Webhook
    _http: httpx.Client

    def query(self, expr: str, at_s: float | None = None) -> list[Answer]:
        """An instant query, of now or of a time of the Unix epoch; raises where Prometheus refuses it."""
        asked = {"query": expr, **({} if at_s is None else {"time": f"{at_s:.3f}"})}
        answer = self._http.get(f"{self.prometheus_url}/api/v1/query", params=asked).json()
        assert answer["status"] == "success", f"{expr}: {answer}"
        data = answer["data"]
        if data["resultType"] == "scalar":
            return [Answer({}, float(data["result"][1]))]
        return [Answer(each["metric"], float(each["value"][1])) for each in data["result"]]

    def until_right(self, complaint: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait until there is nothing to complain of any more: the load goes on, and on a busy machine what is asked for comes later."""
        deadline = time.monotonic() + timeout_s
        while said := complaint():
            assert time.monotonic() < deadline, f"still after {timeout_s:g} s: {said}"
            time.sleep(POLL_S)

    def until(self, fact: Callable[[], object], what: str = "it") -> None:
        """Wait until a fact about another process is true."""
        self.until_right(lambda: "" if fact() else f"{what} did not come")


@contextlib.contextmanager
def running_monitoring(folder: Path, target: str) -> Iterator[Monitoring]:
    """Both servers until the block ends. `target` is the appliance's host:port."""
    require_service("Prometheus", program="prometheus")
    require_service("Alertmanager", program="prometheus-alertmanager")
    prometheus_port, alertmanager_port = free_port(), free_port()
    with _webhook() as webhook:
        (folder / "alertmanager.yaml").write_text(_quick_routes(webhook.port))
        (folder / "alerts.yaml").write_text(ALERTS.read_text())
        (folder / "recording.yaml").write_text(re.sub(r"interval: \d+s", "interval: 1s", RECORDS.read_text()))
        (folder / "metrics_key").write_text("no key is needed on loopback")
        (folder / "prometheus.yaml").write_text(_prometheus_config(target, alertmanager_port))
        commands = [
            [
                "prometheus",
                "--config.file=prometheus.yaml",
                "--storage.tsdb.path=tsdb",
                f"--web.listen-address=127.0.0.1:{prometheus_port}",
            ],
            ["prometheus-alertmanager", "--config.file=alertmanager.yaml", "--storage.path=alerts", "--cluster.listen-address="]
            + [f"--web.listen-address=127.0.0.1:{alertmanager_port}"],
        ]
        with contextlib.ExitStack() as stack:
            for command in commands:
                stack.enter_context(process(command, folder))
            http_client = stack.enter_context(httpx.Client(timeout=30))
            monitoring = Monitoring(f"http://127.0.0.1:{prometheus_port}", webhook, http_client)
            for port in (prometheus_port, alertmanager_port):
                monitoring.until(lambda port=port: _is_ready(http_client, port))
            yield monitoring


def _prometheus_config(target: str, alertmanager_port: int) -> str:
    """The one that ships (docker/prometheus.yaml) with this machine's addresses and shorter intervals."""
    text = (ROOT / "docker" / "prometheus.yaml").read_text()
    text = re.sub(r"(scrape_interval|evaluation_interval): \d+s", rf"\1: {SCRAPE_S}s", text)
    text = text.replace("/etc/prometheus/rules/", "").replace("/run/secrets/", "").replace("appliance:8000", target)
    return text.replace("alertmanager:9093", f"127.0.0.1:{alertmanager_port}")


def _quick_routes(port: int) -> str:
    text = (ROOT / "docker" / "alertmanager.yaml").read_text().replace("127.0.0.1:9099", f"127.0.0.1:{port}")
    return re.sub(r"(group_wait|group_interval): \w+", r"\1: 1s", text)


def _is_ready(http_client: httpx.Client, port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return http_client.get(f"http://127.0.0.1:{port}/-/ready").status_code == 200
    return False


@contextlib.contextmanager
def process(command: list[str], folder: Path) -> Iterator[None]:
    with (folder / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def _webhook() -> Iterator[Webhook]:
    received: list[tuple[str, list[dict[str, Any]]]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path.strip("/"), body["alerts"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Webhook(server.server_port, received)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def finite(answers: list[Answer]) -> list[Answer]:
    """Those with a value; a quantile without observations is not a number."""
    return [answer for answer in answers if math.isfinite(answer.value)]
