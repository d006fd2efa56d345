"""The control plane's serving half in this process: real HTTP, real frames, a fake engine behind them."""

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from appliance.app import Parts, create_app
from appliance.domain.access.directory import Directory
from appliance.domain.access.keys import digest_key
from appliance.domain.access.principal import Scope
from appliance.domain.access.snapshot import AccessSnapshot, KeyRecord
from appliance.domain.admission.gate import Gate
from appliance.domain.admission.load_view import load_view_of
from appliance.domain.admission.prediction import Predictor
from appliance.domain.admission.service import Admission
from appliance.domain.explain.service import ExplainService
from appliance.domain.inference.backend import Backend
from appliance.domain.inference.backpressure import Patience
from appliance.domain.inference.doorstep import Doorstep
from appliance.domain.inference.service import Clocks, InferenceService
from appliance.domain.lanes.decisions import LANES
from appliance.domain.system.health import Health
from appliance.listening import listen, server_config, url_of
from appliance.runtime import Runtime, Watchers
from appliance.telemetry.hub import Telemetry
from engine.wire import EngineConfig, ModelCard, TenantPolicy
from tests.inference.fake_engine import Answer, FakeEngine

KEY = "fl-0123456789abcdef0123"
OTHER_KEY = "fl-other-6789abcdef0123"
METRICS_KEY = "fl-metrics-89abcdef0123"
PEPPER = b"pepper"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def key(tenant_id: str, *scopes: Scope, **fields: Any) -> KeyRecord:
    return KeyRecord(key_id=f"key_{tenant_id}", tenant_id=tenant_id, scopes=frozenset(scopes or {Scope.INFERENCE}), **fields)


def snapshot(*policies: TenantPolicy, **keys: KeyRecord) -> AccessSnapshot:
    """Tenants `default` and `other`, each with a key, unless given otherwise."""
    by_text = {KEY: key("default"), OTHER_KEY: key("other"), METRICS_KEY: key("other", Scope.METRICS), **keys}
    tenants = {policy.tenant_id: policy for policy in (TenantPolicy(tenant_id="default"), TenantPolicy(tenant_id="other"), *policies)}
    return AccessSnapshot(1, PEPPER, {digest_key(text, PEPPER): record for text, record in by_text.items()}, tenants)


class FixedSource:
    """A database that never changes."""

    def __init__(self, snapshot: AccessSnapshot) -> None:
        self._snapshot = snapshot

    async def version(self) -> int:
        return self._snapshot.version

    async def load(self) -> AccessSnapshot:
        return self._snapshot

    @property
    def takes_writes(self) -> bool:
        return True

    async def try_writing(self, quiet_s: float) -> None: ...

    async def keep_capacity(self, capacity_tpm: int) -> None: ...


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class House:
    """A running control plane. What lives on its loop is touched through `on_loop` only."""

    base_url: str
    loop: asyncio.AbstractEventLoop
    runtime: Runtime
    engine: FakeEngine
    gate: Gate
    admission: Admission
    backend: Backend
    telemetry: Telemetry
    directory: Directory
    inference: InferenceService
    registry: CollectorRegistry
    client: httpx.Client
    predictor: Predictor | None

    def on_loop[T](self, call: Callable[[], T]) -> T:
        """Run a plain function on the server's loop and give back its answer."""

        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def until(self, fact: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait until a fact about the server is true."""
        deadline = time.monotonic() + timeout_s
        while not self.on_loop(fact):
            assert time.monotonic() < deadline, "it did not become true in time"
            time.sleep(0.002)  # polling another thread

    def set_engine(self, **fields: Any) -> None:
        """Change the fake engine's behaviour, and let it go on."""

        def change() -> None:
            for name, value in fields.items():
                assert hasattr(self.engine, name)
                setattr(self.engine, name, value)
            self.engine.go()

        self.on_loop(change)

    def connect_engine(self, export: Path, answer: Answer, card: ModelCard) -> None:
        """Put a fresh fake engine in place of the one that died, and wait until it serves."""
        engine = asyncio.run_coroutine_threadsafe(connect(self.runtime, FakeEngine(card, answer), export), self.loop).result(10)
        self.engine = engine
        self.until(lambda: self.gate.condition.state == "open")

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, json=body, **kwargs)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        return self.on_loop(lambda: self.metric_now(name, **labels))

    def metric_now(self, name: str, **labels: str) -> float:
        """As `metric`, from the server's loop."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"fairlane_{name}" and labels.items() <= sample.labels.items()
        )


async def connect(runtime: Runtime, engine: FakeEngine, export: Path) -> FakeEngine:
    """Join runtime and fake engine by a socket pair, and let the engine say that it is ready."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    client = runtime.new_client()
    await loop.create_connection(lambda: engine, sock=theirs)
    await loop.create_connection(lambda: client, sock=ours)
    runtime.send_policies()
    engine.become_ready(str(export))
    return engine


@contextlib.contextmanager
def start_house(
    export: Path,
    card: ModelCard,
    answer: Answer,
    *,
    access: AccessSnapshot | None = None,
    max_queue_depth: int = 64,
    max_body_bytes: int = 1 << 20,
    body_deadline_s: float = 30.0,
    metrics_need_key: bool = False,
    write_deadline_s: float = 5.0,
    max_unacknowledged_tokens: int = 32,
    wait: bool = True,
    predicts: bool = False,
    refusals_per_s: float = 0.0,
    door_clock_ns: Callable[[], int] = time.monotonic_ns,
) -> Iterator[House]:
    """Run until the block ends, on a thread of its own; the engine is ready when it begins (unless `wait` is off)."""
    houses: list[House] = []
    begun, stop = threading.Event(), threading.Event()

    async def live() -> None:
        directory = Directory(FixedSource(access or snapshot()), access or snapshot())
        registry = CollectorRegistry()
        gate, backend, telemetry = Gate(), Backend(), Telemetry(registry)
        view = load_view_of(EngineConfig())
        watchers = Watchers(lambda _: None, lambda _: None, lambda _: None, view.note_load)
        runtime = Runtime(directory, gate, backend, telemetry, (), watchers)
        predictor = Predictor(dict.fromkeys(LANES, view)) if predicts else None
        admission = Admission(gate, max_queue_depth, predictor=predictor)
        clocks = Clocks(monotonic_ns=time.monotonic_ns, wall_s=time.time)
        inference = InferenceService(
            directory,
            admission,
            backend,
            telemetry,
            clocks,
            random.Random(0),
            Patience(max_unacknowledged_tokens, write_deadline_s),
            Doorstep(refusals_per_s, max_body_bytes, gate.require_open, door_clock_ns),
        )
        parts = Parts(
            inference=inference,
            health=Health(gate, directory, lambda: runtime.heartbeat_age_s),
            telemetry=telemetry,
            directory=directory,
            explainer=ExplainService(telemetry, backend.report_of, names_tenants=False),
            admission=admission,
            max_body_bytes=max_body_bytes,
            body_deadline_s=body_deadline_s,
            metrics_need_key=metrics_need_key,
        )
        engine = FakeEngine(card, answer)
        with contextlib.closing(listen("127.0.0.1", 0)) as sock:
            server = _Server(server_config(create_app(parts), write_deadline_s))
            serving = asyncio.create_task(server.serve([sock]))
            if wait:
                await connect(runtime, engine, export)
            client = httpx.Client(base_url=url_of(sock), headers=HEADERS, timeout=20.0)
            loop = asyncio.get_running_loop()
            houses.append(
                House(
                    url_of(sock),
                    loop,
                    runtime,
                    engine,
                    gate,
                    admission,
                    backend,
                    telemetry,
                    directory,
                    inference,
                    registry,
                    client,
                    predictor,
                )
            )
            begun.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving
            houses[0].engine.die()
            runtime.new_client()
            await asyncio.sleep(0.01)

    failures: list[BaseException] = []

    def run() -> None:
        try:
            uvloop.run(live())
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(20)
        if failures:
            raise failures[0]
        if wait:
            houses[0].until(lambda: houses[0].gate.condition.state == "open")
        yield houses[0]
    finally:
        if houses:
            houses[0].client.close()
        stop.set()
        thread.join(20)


@contextlib.contextmanager
def in_background(house: House, number: int, headers: dict[str, str] | None = None) -> Iterator[list[httpx.Response]]:
    """So many completions in flight inside the block; their answers are there after it."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(house.base_url + "/v1/completions", json={"prompt": "x"}, headers=headers or HEADERS, timeout=20))

    threads = [threading.Thread(target=ask) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        for thread in threads:
            thread.join(20)
    assert [answer.status_code for answer in answers] == [200] * number
