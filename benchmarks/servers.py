"""Starts a server of a comparison and stops it: ours, vLLM's CPU build, llama.cpp's."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError

from benchmarks.sse_client import Endpoint

API_KEY = "benchmark-key-0123456789"
READY_TIMEOUT_S = 600.0
SLOTS = 32
SLOT_CONTEXT_TOKENS = 512
"""Prompt and output of the longest scenario fit; llama.cpp divides its cache evenly over its slots."""


class StartFailed(Exception):
    """A server ended or was not ready in time; the text has its log's end."""


@dataclass(frozen=True, slots=True)
class Server:
    """How to start one. `command(port, folder)` gets a free port and an empty folder."""

    name: str
    model: str
    ready_path: str
    command: Callable[[int, Path], list[str]]
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that is ready."""

    endpoint: Endpoint
    start_s: float
    """From starting the process to the first answer 200 of its readiness path."""


def ours(flags: list[str]) -> Server:
    """This appliance, with `flags` added to its command line."""

    def command(port: int, folder: Path) -> list[str]:
        return [sys.executable, "-m", "appliance.cli.main", "serve", "--port", str(port), "--data-dir", str(folder), *flags]

    return Server("fairlane", "smollm2-135m-instruct", "/readyz", command, {"FAIRLANE_BOOTSTRAP_API_KEY": API_KEY})


def vllm(script: Path, folder: Path) -> Server:
    """vLLM's CPU build, installed into `folder` by `script`."""
    return Server("vllm", "smollm2", "/health", lambda port, _: ["bash", str(script), "serve", str(folder), str(port)])


def llama_cpp(program: Path, gguf: Path, num_threads: int) -> Server:
    """llama.cpp's server over a bf16 GGUF file with the same weights."""
    flags = ["-t", str(num_threads), "-np", str(SLOTS), "-c", str(SLOTS * SLOT_CONTEXT_TOKENS), "--host", "127.0.0.1", "--no-webui"]
    return Server("llama.cpp", "smollm2", "/health", lambda port, _: [str(program), "-m", str(gguf), "--port", str(port), *flags])


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.asynccontextmanager
async def running(server: Server) -> AsyncIterator[Running]:
    """Start a server in a process group of its own, wait until it is ready, and end the whole group afterwards, also where this process
    is told to terminate.

    Raises:
        StartFailed: see there.
    """
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as name:
        folder, port = Path(name), free_port()
        log_path = folder / "log.txt"
        started_s = time.perf_counter()
        process = _start(server.command(port, folder), server.env, log_path)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            url = f"http://127.0.0.1:{port}"
            await _wait_until_ready(process, url + server.ready_path, log_path)
            yield Running(Endpoint(url, server.model, API_KEY), time.perf_counter() - started_s)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            _stop(process)


def _start(command: list[str], env: dict[str, str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True)


async def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline_s = time.perf_counter() + READY_TIMEOUT_S
    while time.perf_counter() < deadline_s:
        if process.poll() is not None:
            raise StartFailed(f"it ended with {process.returncode}:\n{_end_of(log_path)}")
        with contextlib.suppress(URLError, OSError):
            if await asyncio.to_thread(_status, url) == 200:
                return
        await asyncio.sleep(0.05)
    raise StartFailed(f"it was not ready after {READY_TIMEOUT_S:.0f} s:\n{_end_of(log_path)}")


def _status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5.0) as response:
        return response.status


def _end_of(log_path: Path) -> str:
    return "\n".join(log_path.read_text(errors="replace").splitlines()[-30:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and all that it started; they are its process group."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    process.wait()
