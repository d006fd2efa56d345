"""A PostgreSQL server of our own for the tests: private folder, any free port, gone afterwards."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.appliance import require_service

TEST_URL_ENV = "FAIRLANE_TEST_POSTGRES_URL"
"""Use this server instead, `postgresql://user:password@host:port/name`: databases are made and dropped in it."""


def _program(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else name


@dataclass
class PostgresServer:
    """A server in a folder of its own, which can be killed and started again."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Without a database's name."""
        return f"postgresql://postgres@127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [_program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, user=_user(), cwd=self.folder)
        _wait_until_it_accepts(self.process, self.port, self.folder)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """SIGQUIT ends it at once, in the midst of whatever it does."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def say(self, *statements: str) -> None:
        """Run statements in one session."""

        async def run() -> None:
            connection = await asyncpg.connect(f"{self.url}/postgres")
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close()

        asyncio.run(run())

    def hang(self) -> None:
        """Stop all its processes where they stand."""
        self._signal_all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, how: signal.Signals) -> None:
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, how)


def _user() -> str | None:
    return "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root


@contextlib.contextmanager
def own_postgres() -> Iterator[PostgresServer]:
    """A fresh server, running; gone when the block ends."""
    require_service("PostgreSQL", program=_program("initdb"))
    folder = Path(tempfile.mkdtemp(prefix="fairlane-postgres-"))
    if user := _user():
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = PostgresServer(folder, probe.getsockname()[1])
    try:
        initdb = [_program("initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """URL of a server, without a database's name."""
    given = os.environ.get(TEST_URL_ENV)
    if given:
        yield given.rpartition("/")[0]
        return
    with own_postgres() as server:
        yield server.url


def _wait_until_it_accepts(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    command = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + 30
    while subprocess.run(command, check=False).returncode:
        assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)  # polling another process
