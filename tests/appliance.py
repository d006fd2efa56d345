"""Starts the product for a test: the real processes, their own data directory, any free port."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

BOOTSTRAP_API_KEY = "test-key-0123456789abcdef"
ADMIN_TOKEN = "test-admin-0123456789abcdef"
SMALL_BUCKETS = ("--decode-buckets", "4,16", "--prefill-buckets", "64", "--mixed-decode-buckets", "16", "--mixed-prefill-buckets", "64")
"""Four programs instead of twenty-six: what most tests need, compiled in seconds."""


@dataclass(frozen=True, slots=True)
class Appliance:
    """A running appliance."""

    base_url: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    log_path: Path
    api_key: str = BOOTSTRAP_API_KEY
    admin_token: str = ADMIN_TOKEN
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {BOOTSTRAP_API_KEY}"})
    admin_headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {ADMIN_TOKEN}"})

    def log(self) -> str:
        """All that both processes wrote so far."""
        return self.log_path.read_text(errors="replace")


@contextlib.contextmanager
def start_appliance(
    data_dir: Path, *flags: str, model: str = "", timeout_s: float = 240.0, env: dict[str, str] | None = None
) -> Iterator[Appliance]:
    """Run `fairlane serve` until the block ends, ready when it begins.

    `flags` are added to the command line; `env` to the environment. A compile after ready ends the engine.

    Raises:
        AssertionError: it ended or was not ready in time; the text has its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / "log.txt"
    command = [
        sys.executable,
        "-m",
        "appliance.cli.main",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(data_dir),
        "--compile-after-ready-is-fatal",
    ]
    command += ["--model", model] if model else []
    settings = {"FAIRLANE_BOOTSTRAP_API_KEY": BOOTSTRAP_API_KEY, "FAIRLANE_BOOTSTRAP_ADMIN_TOKEN": ADMIN_TOKEN}
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, *flags], stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **settings, **(env or {})})
        try:
            url = _wait_until_ready(process, data_dir, log_path, timeout_s)
            yield Appliance(url, data_dir, process, log_path)
        finally:
            _stop(process)


def _wait_until_ready(process: subprocess.Popen[bytes], data_dir: Path, log_path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, (
            f"the appliance ended with {process.returncode} before it was ready:\n{log_path.read_text(errors='replace')}"
        )
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            run = json.loads((data_dir / "run.json").read_text())
            if run["pid"] == process.pid and httpx.get(run["url"] + "/readyz", timeout=5.0).status_code == 200:
                return run["url"]
        time.sleep(0.05)  # polling another process, not waiting for ourselves
    raise AssertionError(f"the appliance was not ready in {timeout_s} s:\n{log_path.read_text(errors='replace')}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def require_service(name: str, *, program: str = "", address: tuple[str, int] | None = None) -> None:
    """Skip the test where a service is missing; under CI=true, where `.ci/run` provides it, fail.

    `program` must be on the PATH, `address` must accept a connection; give what the test needs.
    """
    missing = ""
    if program and shutil.which(program) is None:
        missing = f"the program {program} is not installed"
    if address is not None:
        try:
            socket.create_connection(address, timeout=2.0).close()
        except OSError as error:
            missing = f"nothing answers at {address[0]}:{address[1]} ({error})"
    if not missing:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{name} is needed in CI, and {missing}")
    pytest.skip(f"{name}: {missing}")
