"""A PostgreSQL server of our own for the tests: private folder, any free port, gone afterwards."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.appliance import require_service

TEST_URL_ENV = "FAIRLANE_TEST_POSTGRES_URL"
"""Use this server instead, `postgresql://user:password@host:port/name`: databases are made and dropped in it."""


def _program(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else name


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """URL of a server, without a database's name."""
    given = os.environ.get(TEST_URL_ENV)
    if given:
        yield given.rpartition("/")[0]
        return
    require_service("PostgreSQL", program=_program("initdb"))
    folder = Path(tempfile.mkdtemp(prefix="fairlane-postgres-"))
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    if user:
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    try:
        initdb = [_program("initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
        command = [_program("postgres"), "-D", str(data), "-p", str(port), "-k", str(folder), "-c", "fsync=off"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=folder)
        try:
            _wait_until_it_accepts(server, port, folder)
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_accepts(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    command = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    deadline = time.monotonic() + 30
    while subprocess.run(command, check=False).returncode:
        assert server.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)  # polling another process
