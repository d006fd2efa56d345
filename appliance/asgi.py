"""`serve(settings)`: opens everything, runs until told to stop, closes everything in order."""

import asyncio
import contextlib
import errno
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from appliance.app import Parts, create_app, own_version
from appliance.console import Console, FirstSecrets, banner
from appliance.dashboards.opening import open_metrics
from appliance.dashboards.viewer import Viewer
from appliance.data_lock import only_server_of, only_server_on
from appliance.db.backup import is_sqlite, sqlite_path
from appliance.db.revision import SchemaError
from appliance.domain.admins.first_owner import setup_token_path
from appliance.domain.admission.gate import Gate, Gates, GateState
from appliance.domain.admission.limit_use import limit_uses
from appliance.domain.admission.load_view import load_view_of
from appliance.domain.admission.prediction import Predictor
from appliance.domain.admission.service import Admission
from appliance.domain.configuration.controller import ConfigurationController
from appliance.domain.explain.admin import DumpController, SloController, SlowController, TailController
from appliance.domain.explain.debug import DebugController
from appliance.domain.explain.pages import DebugPages
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.backend import Backend
from appliance.domain.inference.backpressure import Patience
from appliance.domain.inference.cancelling import Canceller, RequestController
from appliance.domain.inference.doorstep import Doorstep
from appliance.domain.inference.service import Clocks, InferenceService
from appliance.domain.lanes.decisions import LaneRules
from appliance.domain.peers.registry import Peers
from appliance.domain.system.controller import is_loopback
from appliance.domain.system.health import Health
from appliance.domain.system.lanes import LaneController
from appliance.domain.system.log_level import LogLevelController
from appliance.domain.system.state import State, StateMetrics
from appliance.domain.system.sums import accounting_checks
from appliance.domain.tenants.bootstrap import Control, open_control
from appliance.domain.tenants.routes import admin_router, guarded_router
from appliance.domain.tenants.spent import read_all_spent
from appliance.domain.usage.recorder import UsageRecorder
from appliance.engines import Engine, Engines
from appliance.errors import ApplianceError, Unavailable
from appliance.listening import PortTaken, listen, server_config, url_of
from appliance.logs import LogLevel, set_up_logs
from appliance.open_files import raise_open_files
from appliance.replicas import Replica, config_of, engine_of_lanes
from appliance.runtime import Runtime, Watchers
from appliance.settings import Settings, SettingsError, data_path, engine_config, replicas, sqlalchemy_url
from appliance.supervisor import StartFailed, Supervisor
from appliance.telemetry.flight.recorder import FlightRecorder, Sources
from appliance.telemetry.hub import LOOK_EVERY_S, Telemetry, TelemetryOptions
from appliance.telemetry.otlp.exporter import Exporter, exporter_of
from appliance.telemetry.sampler import Sampler
from appliance.terminal import Terminal
from appliance.text.prefixes import PrefixEntry, PrefixFileError, read_prefix_file
from appliance.ui.parts import House, Ui
from appliance.ui.pulse import Pulse
from appliance.ui.routes import build_ui, ui_router
from appliance.ui.start_log import StartLog
from engine.wire import Progress, Ready, TenantPolicy

log = structlog.get_logger(__name__)

ADMIN_CONTROLLERS = (
    LaneController, ConfigurationController, SlowController, TailController, SloController, DumpController, LogLevelController,
    RequestController,
)  # fmt: skip
"""Of the admin API, those that show or change other parts of the process than the database."""

ENGINE_COMMAND = (sys.executable, "-m", "engine", "run")
RUN_FILE = "run.json"
FLIGHT_FOLDER = "flight"
SPOOL_FOLDER = "usage-spool"
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
"""Full, read-only, somebody else's."""
SWEEP_EVERY_S = 1.0
LAST_SEND_S = 2.0
"""What the collector gets to take the last traces."""
SETTLE_S = 1.0
"""What cancelled streams get to write their last frame."""


def serve(settings: Settings, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Run the appliance until SIGTERM or SIGINT. The exit status: 0, or after a message that says what to do 2 where a setting
    is impossible, else 1."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time; else the library complains at each engine's start
    log_level = LogLevel(settings.log_level)
    set_up_logs(log_level, settings.log_format, Terminal(lambda: sys.stderr))
    raise_open_files()
    if settings.log_prompts:
        log.warning("prompts_are_logged", at_level="debug", level=settings.log_level, remedy="leave --log-prompts out")
    try:
        uvloop.run(_serve(settings, engine_command, log_level))
    except (StartFailed, PortTaken, PrefixFileError, SettingsError, SchemaError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, SettingsError) or (isinstance(error, StartFailed) and error.is_setting) else 1
    except ApplianceError as error:
        print(f"error: {error.message}", file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        if error.errno not in DISK_ERRORS or error.filename is None:
            raise
        remedy = "make room on its disk, or name another folder with --data-dir that is the appliance's user's to write"
        print(f"error: {error.filename} can not be made ({error.strerror}): {remedy}", file=sys.stderr, flush=True)
        return 1
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _House:
    """Everything that lives as long as the server."""

    engines: Engines
    backend: Backend
    gate: Gates
    control: Control
    admission: Admission
    usage: UsageRecorder
    peers: Peers | None
    """Others that may serve from this database; SQLite is one process's."""
    telemetry: Telemetry
    recorder: FlightRecorder
    exporter: Exporter | None
    sampler: Sampler | None
    ui: Ui
    server: uvicorn.Server


class _Server(uvicorn.Server):
    """uvicorn's, without its signal handlers: on a signal we drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(settings: Settings, engine_command: Sequence[str], log_level: LogLevel) -> None:
    began_s = time.monotonic()
    prefixes = read_prefix_file(Path(settings.common_prefixes)) if settings.common_prefixes else ()
    stdout = sys.stdout
    console = Console(Terminal(lambda: stdout))
    with contextlib.closing(listen(settings.host, settings.port)) as sock:
        async with _open(settings) as control:
            url = url_of(sock)
            was_ready: list[bool] = []
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def on_progress(step: Progress) -> None:
                if not was_ready:
                    console.progress(step)

            def on_ready(ready: Ready) -> None:
                if was_ready:
                    return
                was_ready.append(True)
                console.end_progress()
                startup_s = time.monotonic() - began_s
                console.say(banner(url, ready, startup_s, first_secrets(settings, control), is_private=console.is_terminal))

            def on_broken(message: str) -> None:
                if not failed.done():
                    failed.set_exception(StartFailed(message))

            watchers = Watchers(on_progress, on_ready, on_broken)
            house = _build(settings, engine_command, control, prefixes, watchers, log_level)
            run_path = data_path(settings) / RUN_FILE
            with _only_server(settings, run_path.parent):  # else the books of a running server would be taken for a dead one's
                await _open_books(house)
                with _run_file(run_path, url, sock.getsockname()[1]):
                    try:
                        await _run(settings, house, sock, failed)
                    finally:
                        console.end_progress()


@contextlib.contextmanager
def _only_server(settings: Settings, folder: Path) -> Iterator[None]:
    url = sqlalchemy_url(settings)
    with only_server_of(folder), only_server_on(sqlite_path(url)) if is_sqlite(url) else contextlib.nullcontext():
        yield


def first_secrets(settings: Settings, control: Control) -> FirstSecrets:
    """What the banner tells of them at this moment."""
    setup_token = None if control.directory.snapshot.has_owner else control.logins.setup_token  # one may have been made during warm-up
    return FirstSecrets(control.api_key, control.api_key_path, control.admin_token_path, setup_token, setup_token_path(settings))


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Control]:
    control = await open_control(settings)
    try:
        yield control
    finally:
        await control.close()


def _build(
    settings: Settings,
    engine_command: Sequence[str],
    control: Control,
    prefixes: tuple[PrefixEntry, ...],
    watchers: Watchers,
    log_level: LogLevel,
) -> _House:
    all_replicas = replicas(settings)
    engine_of = engine_of_lanes(all_replicas)
    gates = {replica: Gate() for replica in all_replicas}
    gate, backend = Gates(gates), Backend(engine_of)
    options = TelemetryOptions(
        max_tenants=settings.metrics_max_tenants, vllm_names=settings.vllm_metric_names, device_hour_price=settings.device_hour_price
    )
    telemetry = Telemetry(CollectorRegistry(), options=options, engines={replica.name: replica.lanes for replica in all_replicas})
    telemetry.engine.oldest_queued_ns = backend.oldest_queued_ns
    views = {replica.name: load_view_of(settings.engine) for replica in all_replicas}
    clocks = Clocks(monotonic_ns=time.monotonic_ns, wall_s=time.time)
    predictor = Predictor({lane: views[name] for lane, name in engine_of.items()}, refuses=settings.admission)
    admission = Admission(gate, settings.max_queue_depth, clocks.monotonic_ns, clocks.wall_s, predictor)
    usage = UsageRecorder(control.store.database, data_path(settings) / SPOOL_FOLDER, clocks.wall_s, lambda: telemetry.requests.model_id)
    telemetry.record_usage = usage.note
    peers = Peers(control.store.database, admission.restore, admission.demand.wants, control.directory.capacity)
    telemetry.accounting.checks = accounting_checks(telemetry, admission, backend, usage)

    def policies() -> list[TenantPolicy]:
        return list(control.directory.snapshot.policies.values())

    recorder = FlightRecorder(
        telemetry,
        Sources(settings, own_version(), policies, backend.reports),
        data_path(settings) / FLIGHT_FOLDER,
    )
    patience = Patience(settings.max_unacknowledged_tokens, settings.write_deadline_s)

    starts = StartLog()

    def engine(replica: Replica) -> Engine:
        """It is ready when all are."""

        def on_progress(step: Progress) -> None:
            starts.note(replica.name, step)
            watchers.on_progress(step)

        to_ready = replace(
            watchers,
            on_progress=on_progress,
            on_ready=lambda ready: watchers.on_ready(ready) if gate.condition.state is GateState.OPEN else None,
        )
        own = replace(to_ready, on_load=views[replica.name].note_load)
        runtime = Runtime(control.directory, gates[replica], backend, telemetry, prefixes, own, replica.name)
        runtime.on_crash = lambda: recorder.dump_soon("engine lost")
        return Engine(runtime, Supervisor(engine_command, config_of(replica, engine_config(settings)), runtime))

    engines = Engines([engine(replica) for replica in all_replicas])
    telemetry.show(
        StateMetrics(
            State(
                is_ready=lambda: gate.condition.state is GateState.OPEN,
                num_engine_starts=engines.num_starts,
                are_engines_up=engines.are_up,
                is_degraded=lambda: bool(control.directory.flaw),
                unwritten_s=lambda: usage.unwritten_s,
                num_usage_lost=lambda: usage.num_lost,
            )
        )
    )
    telemetry.limits.ratios_of = lambda policy: {use.field: use.ratio for use in limit_uses(policy, admission.use_of(policy))}
    inference = InferenceService(
        control.directory,
        admission,
        backend,
        telemetry,
        clocks,
        random.Random(),
        patience,
        Doorstep(settings.refusals_per_s, settings.max_body_bytes, gate.require_open),
        LaneRules(fast_prompt_tokens=settings.engine.fast_prompt_tokens, one_engine=engine_of["fast"] == engine_of["slow"]),
        share=peers.share,
        logs_prompts=settings.log_prompts,
    )
    health = Health(gate, control.directory, lambda: engines.heartbeat_age_s, lambda: gate.down)
    explainer = ExplainService(telemetry, backend.report_of, names_tenants=settings.explain_names_tenants)
    pages = DebugPages(telemetry, backend.reports)
    canceller = Canceller(backend, control.store.database)
    metrics, sampler = open_metrics(settings, telemetry)
    pulse = Pulse(telemetry)
    telemetry.watchers.append(pulse.note)
    ui = build_ui(
        House(
            settings=settings,
            control=control,
            telemetry=telemetry,
            health=health,
            admission=admission,
            backend=backend,
            inference=inference,
            explainer=explainer,
            debug=pages,
            canceller=canceller,
            viewer=Viewer(metrics),
            usage=usage,
            log_level=log_level,
            engines=engines,
            starts=starts,
            version=own_version(),
        ),
        pulse,
    )
    parts = Parts(
        inference=inference,
        health=health,
        telemetry=telemetry,
        directory=control.directory,
        admission=admission,
        canceller=canceller,
        recorder=recorder,
        debug=guarded_router(control, DebugController),
        pages=pages,
        explainer=explainer,
        ui=ui_router(ui),
        max_body_bytes=settings.max_body_bytes,
        body_deadline_s=settings.body_deadline_s,
        trace_sample_ratio=settings.otlp_sample_ratio if settings.otlp_endpoint else 0.0,
        log_level=log_level,
        metrics_need_key=not (settings.metrics_without_key or is_loopback(settings.host)),
        admin=admin_router(control, *ADMIN_CONTROLLERS),
    )
    telemetry.host.engine_pids = engines.pids
    return _House(
        engines=engines,
        telemetry=telemetry,
        recorder=recorder,
        exporter=exporter_of(settings, own_version(), telemetry),
        sampler=sampler,
        ui=ui,
        backend=backend,
        gate=gate,
        control=control,
        admission=admission,
        usage=usage,
        peers=peers if sqlalchemy_url(settings).startswith("postgresql") else None,
        server=_Server(server_config(create_app(parts), settings.write_deadline_s, settings.trusted_proxies)),
    )


async def _open_books(house: _House) -> None:
    """Write what an earlier process left unwritten, then count this day's and month's use against the budgets."""
    await house.usage.recover()
    now = datetime.now(UTC)
    async with house.control.store.database.read() as session:
        house.admission.restore(*await read_all_spent(session, now), now)
    if house.peers is not None:
        await house.peers.join()


async def _run(settings: Settings, house: _House, sock: socket.socket, failed: asyncio.Future[None]) -> None:
    """Until the server has stopped, or the engine can not be started (raises `StartFailed`)."""
    loop = asyncio.get_running_loop()
    serving = asyncio.create_task(house.server.serve([sock]))
    supervising = asyncio.create_task(house.engines.run())
    helpers = [asyncio.create_task(house.control.directory.follow()), asyncio.create_task(_sweep(house.backend))]
    helpers += [
        asyncio.create_task(coroutine)
        for coroutine in (house.usage.run(), house.telemetry.host.watch_loop(), house.telemetry.reviewer.run(), _look(house.telemetry))
    ]
    helpers += [asyncio.create_task(house.ui.pulse.run()), asyncio.create_task(house.ui.live.run())]
    if house.peers is not None:
        helpers.append(asyncio.create_task(house.peers.run()))
    if house.exporter is not None:
        helpers.append(asyncio.create_task(house.exporter.run()))
    if house.sampler is not None:
        helpers.append(asyncio.create_task(house.sampler.run()))
    draining: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        # the second signal ends the grace time, the third everything
        if len(draining) > 1:
            house.server.force_exit = house.server.should_exit = True
        draining.append(asyncio.create_task(_drain(house, 0.0 if draining else settings.shutdown_grace_s)))

    loop.add_signal_handler(signal.SIGUSR1, house.recorder.dump_soon, "signal")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await asyncio.wait([serving, supervising, failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        house.server.should_exit = True
        await asyncio.wait([serving])
        for task in (supervising, *helpers, *draining):
            task.cancel()
        await asyncio.wait([supervising, *helpers, *draining])
        await house.usage.close()
        if house.exporter is not None:
            await house.exporter.flush(LAST_SEND_S)
        if house.peers is not None:
            await house.peers.leave()
    for ended in (failed, supervising):
        if ended.done() and not ended.cancelled() and (error := ended.exception()):
            raise error
    serving.result()


async def _drain(house: _House, grace_s: float) -> None:
    """Refuse what is new, let what runs finish within the grace time, then stop the server."""
    try:
        house.gate.drain()
        log.info("draining", in_flight=house.backend.num_live, grace_s=grace_s)
        await house.backend.wait_idle(grace_s)
        for job in house.backend.live_jobs():
            job.interrupt(Unavailable("the server is shutting down", reason="draining", retry_after_s=10.0))
        await house.backend.wait_idle(SETTLE_S)
    finally:
        house.ui.live.close()
        house.server.should_exit = True  # whatever else goes wrong, who asked for the end gets it


async def _sweep(backend: Backend) -> None:
    while True:
        await asyncio.sleep(SWEEP_EVERY_S)
        backend.sweep(time.monotonic_ns())


async def _look(telemetry: Telemetry) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        telemetry.look()


@contextlib.contextmanager
def _run_file(path: Path, url: str, port: int) -> Iterator[None]:
    """run.json: where this process listens, for scripts; it goes when the process ends. Raises `StartFailed`."""
    content = json.dumps({"pid": os.getpid(), "port": port, "url": url}) + "\n"
    draft = path.with_suffix(f".{os.getpid()}")
    try:
        draft.write_text(content)
        draft.replace(path)  # whoever looks sees all of it
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        reason = f"the data directory {str(path.parent)!r} takes no {path.name} ({error.strerror})"
        raise StartFailed(f"{reason}: make room on its disk, or name another folder with --data-dir") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text() == content:  # not a later server's on the same folder
                path.unlink()
