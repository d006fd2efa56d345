"""Starts the engine process, watches it, starts it again.

StartFailed              a setting or the model is at fault, or the engine never came up: a restart would not help
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from appliance.runtime import Runtime
from engine.wire import EngineConfig

log = structlog.get_logger(__name__)

AT_FAULT_KINDS = frozenset({"ConfigError", "ModelError", "DoesNotFit"})
EXIT_AT_FAULT = 3
"""`python -m engine run` ends so when a setting or the model is at fault."""
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
MAX_FAILED_STARTS = 3
"""Before the engine was ever ready; afterwards it is started again for ever."""
SILENCE_S = 30.0
"""A ready engine that says nothing for so long hangs: it is killed, and started again."""
LOOK_EVERY_S = 1.0
EXIT_GRACE_S = 5.0
LAST_WORDS_S = 2.0
"""Between a process's end and the end of its stream, which may still hold why it ended."""


class StartFailed(Exception):
    """The engine can not be started; the message says why and what to do. `is_setting`: a setting is impossible."""

    def __init__(self, message: str, *, is_setting: bool = False) -> None:
        super().__init__(message)
        self.is_setting = is_setting


@dataclass(frozen=True, slots=True)
class _End:
    """How an engine process ended."""

    exit_code: int
    was_ready: bool


def backoff_s(num_failures: int) -> float:
    """How long to wait before the next start: doubles from `FIRST_BACKOFF_S` to `MAX_BACKOFF_S`."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** max(0, num_failures - 1))


class Supervisor:
    """Owns one engine replica's process."""

    def __init__(
        self,
        command: Sequence[str],
        config: EngineConfig,
        runtime: Runtime,
        *,
        silence_s: float = SILENCE_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`command` gets `--fd N --config-json J` added."""
        self._command = command
        self._config = config
        self._runtime = runtime
        self._silence_s = silence_s
        self._look_every_s = look_every_s
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The engine's process id while there is one."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Keep an engine running until cancelled; the engine ends with this. Raises `StartFailed`."""
        was_ever_ready, num_failures = False, 0
        while True:
            end = await self._run_once()
            was_ever_ready = was_ever_ready or end.was_ready
            num_failures = 1 if end.was_ready else num_failures + 1
            fatal = self._runtime.fatal
            reason = fatal.message if fatal else f"the engine ended with {describe_exit(end.exit_code)}"
            at_fault = end.exit_code == EXIT_AT_FAULT or (fatal is not None and fatal.kind in AT_FAULT_KINDS)
            if not was_ever_ready and (at_fault or num_failures >= MAX_FAILED_STARTS):
                raise StartFailed(reason, is_setting=fatal is not None and fatal.kind == "ConfigError")
            wait_s = backoff_s(num_failures)
            log.error("engine_ended", engine=self._runtime.engine, reason=reason, restart_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _run_once(self) -> _End:
        """Start a process and stay until it has ended."""
        ours, theirs = socket.socketpair()
        arguments = ["--fd", str(theirs.fileno()), "--config-json", msgspec.json.encode(self._config).decode()]
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *self._command, *arguments, pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        self._process = process
        log.info("engine_started", engine=self._runtime.engine, pid=process.pid)
        client = self._runtime.new_client()
        watch = asyncio.create_task(self._watch(process))
        try:
            await asyncio.get_running_loop().create_connection(lambda: client, sock=ours)
            self._runtime.send_policies()
            exit_code = await process.wait()
            await self._runtime.wait_lost(LAST_WORDS_S)
            return _End(exit_code, self._runtime.was_ready)
        finally:
            watch.cancel()
            client.shutdown()
            await self._end(process)
            client.close()
            self._process = None

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Kill an engine that falls silent after it was ready. Looks are counted, not seconds: where the whole machine
        was paused, this was too."""
        heard_ns, silent_looks = 0, 0
        while silent_looks * self._look_every_s < self._silence_s:
            await asyncio.sleep(self._look_every_s)
            is_silent = self._runtime.was_ready and self._runtime.heard_ns == heard_ns
            heard_ns, silent_looks = self._runtime.heard_ns, silent_looks + 1 if is_silent else 0
        log.error("engine_silent", engine=self._runtime.engine, silent_s=self._silence_s, pid=process.pid)
        _kill(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Let it exit by itself (it was told to), then kill it."""
        try:
            async with asyncio.timeout(EXIT_GRACE_S):
                await process.wait()
        except TimeoutError:
            _kill(process)
            await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """The process and what it started: it leads its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"
