"""Reading the facts that are judged: each probe asks one thing of the machine and changes nothing."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pynvml
from sqlalchemy import text

from appliance.db.base import Base
from appliance.db.database import Database
from appliance.db.revision import Schema, SchemaState, known_revisions, read_schema
from appliance.doctor import findings as f
from appliance.errors import Unavailable
from appliance.listening import PortTaken, listen
from appliance.open_files import reachable_open_files
from appliance.settings import Settings, data_path, default_database_path, engine_config, sqlalchemy_url
from engine.wire import EngineConfig, ModelNeeds

TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
TIMEX_BYTES = 512
"""More than a `struct timex` has anywhere."""
ENGINE_TIMEOUT_S = 120.0


async def examine(settings: Settings) -> list[f.Finding]:
    """All checks, in the order that they are shown."""
    cards, needs = read_cards(), read_needs(engine_config(settings))
    folder = data_path(settings)
    port_error, own_url = _listening(settings)
    findings = [f.judge_driver(cards), f.judge_model(needs)]
    if isinstance(needs, ModelNeeds):
        findings += [f.judge_split(needs, cards)] * (needs.tensor_parallel_size > 1)
        findings.append(f.judge_memory(needs, cards, own_url))
    findings += [
        f.judge_port(f"{settings.host}:{settings.port}", port_error, own_url),
        await _database(settings),
        *_disks(folder, settings.engine),
        f.judge_clock(time.time(), clock_is_synchronised()),
        f.judge_open_files(reachable_open_files()),
    ]
    return findings


def read_cards() -> f.Cards:
    """The NVIDIA cards and whether JAX could use them."""
    files = tuple(sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*")))
    plugin = any(importlib.util.find_spec(name) for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"))
    try:
        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        return f.Cards(files, str(driver), tuple(_cards()), "", plugin)
    except pynvml.NVMLError as error:
        return f.Cards(files, error=str(error), has_cuda_plugin=plugin)


def _cards() -> Iterator[f.Card]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        yield f.Card(str(pynvml.nvmlDeviceGetName(handle)), int(memory.free), int(memory.total))


def read_needs(config: EngineConfig) -> ModelNeeds | str:
    """What the model takes; what the engine says against it, where it can not be served."""
    command = [sys.executable, "-m", "engine", "needs", "--config-json", msgspec.json.encode(config).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ENGINE_TIMEOUT_S)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["the engine says nothing"])[-1].removeprefix("error: ")
    return msgspec.json.decode(done.stdout, type=ModelNeeds)


def _listening(settings: Settings) -> tuple[str, str]:
    """Why the port can not be listened on, and the URL of the server on this data directory; empty where neither is so."""
    try:
        with closing(listen(settings.host, settings.port)):
            return "", ""
    except PortTaken as error:
        cause = error.__cause__
        return str(cause.strerror if isinstance(cause, OSError) else error), _own_url(settings)


def _own_url(settings: Settings) -> str:
    with suppress(OSError, ValueError, KeyError):
        run = json.loads((data_path(settings) / "run.json").read_text())
        os.kill(run["pid"], 0)
        return run["url"] if run["port"] == settings.port else ""
    return ""


async def _database(settings: Settings) -> f.Finding:
    url = sqlalchemy_url(settings)
    if not settings.database_url and not default_database_path(settings).exists():  # looking would make it
        path = default_database_path(settings)
        return f.judge_database(str(path), Schema(SchemaState.EMPTY, None, known_revisions()[0]))
    database = Database(url)
    try:
        schema = await read_schema(database, Base.metadata)
        skew_s = 0.0
        if url.startswith("postgresql"):
            async with database.read() as session:
                asked_s = time.time()
                theirs_s = (await session.execute(text("SELECT extract(epoch FROM clock_timestamp())"))).scalar_one()
                skew_s = float(theirs_s) - (asked_s + time.time()) / 2
        return f.judge_database(_shown(url), schema, skew_s)
    except Unavailable as error:
        return f.judge_database(_shown(url), error.message)
    finally:
        await database.close()


def _shown(url: str) -> str:
    """A database's address without its password."""
    parts = urlsplit(url)  # SQLite's path follows a slash of the address: sqlite:////data/fairlane.db
    return parts.path.removeprefix("/") if url.startswith("sqlite") else f"postgresql://{parts.hostname}:{parts.port or 5432}{parts.path}"


def _disks(data: Path, config: EngineConfig) -> Iterator[f.Finding]:
    cache = Path(config.cache_dir or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    for name, folder in (("data directory", data), ("compile cache", cache)):
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        error = ""
        try:
            with tempfile.TemporaryFile(dir=there):
                free_bytes = shutil.disk_usage(there).free
        except OSError as failed:
            error, free_bytes = failed.strerror or str(failed), 0
        yield f.judge_disk(name, str(folder), free_bytes, error)


def clock_is_synchronised() -> bool | None:
    """What the kernel thinks of its clock; None where it can not be asked."""
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):  # not Linux
        return None
    state = adjtimex(ctypes.byref((ctypes.c_byte * TIMEX_BYTES)()))  # all zero: it is only read
    return None if state < 0 else state != TIME_ERROR
