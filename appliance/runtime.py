"""What an engine's life does to the appliance: model loaded, gate opened, steps recorded, everything closed when it dies."""

import asyncio
import contextlib
import gc
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from appliance.domain.access.directory import Directory
from appliance.domain.access.snapshot import AccessSnapshot
from appliance.domain.admission.gate import Gate, GateState
from appliance.domain.inference.backend import Backend, Served
from appliance.domain.slas.decisions import contract_warnings
from appliance.errors import Invalid
from appliance.telemetry.hub import Telemetry
from appliance.text.model import TextModel, load_text_model
from appliance.text.prefixes import PrefixEntry, encode_prefix
from engine.client import EngineClient, Listener
from engine.errors import EngineGone
from engine.wire import ONLY_ENGINE, CommonPrefixes, Fatal, Heartbeat, Load, Prepared, Progress, Ready, SetPolicies, StepDone

log = structlog.get_logger(__name__)

PHASE_START_PERCENT = {"prepare": 0, "backend": 3, "load": 4, "allocate": 14, "compile": 18, "warmup": 88, "prefixes": 94, "canary": 98}
"""How far a start is when a phase begins; on a cold cache compiling takes most of it."""


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who else wants to know. Called from the event loop."""

    on_progress: Callable[[Progress], None]
    on_ready: Callable[[Ready], None]
    on_broken: Callable[[str], None]
    """The model's text can not be served: a restart would not help."""
    on_load: Callable[[Load | None], None] = lambda load: None
    """A load report; None: its engine is gone."""


class Runtime:
    """Listens to one replica's engine processes, one after the other."""

    def __init__(
        self,
        directory: Directory,
        gate: Gate,
        backend: Backend,
        telemetry: Telemetry,
        prefixes: tuple[PrefixEntry, ...],
        watchers: Watchers,
        engine: str = ONLY_ENGINE,
    ) -> None:
        """`engine`: the replica's name."""
        self.engine = engine
        self._gate = gate
        self._backend = backend
        self._telemetry = telemetry
        self._prefixes = prefixes
        self._watchers = watchers
        self._client: EngineClient | None = None
        self._model: asyncio.Task[TextModel] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._policies: SetPolicies | None = None
        self.heard_ns = 0
        """The connected engine's last sign of life, `monotonic_ns`."""
        self._lost = asyncio.Event()
        self.came_up = asyncio.Event()
        """An engine has come to take requests."""
        self.num_starts = 0
        """Engines that came to take requests."""
        self.fatal: Fatal | None = None
        """The last engine's last words."""
        self.on_crash: Callable[[], None] = lambda: None
        """An engine that had served was lost, and not because we shut down."""
        self.was_ready = False
        """Whether the last engine came to take requests."""
        self._directory = directory
        directory.subscribe(self._on_policies)

    @property
    def heartbeat_age_s(self) -> float | None:
        """Since the connected engine's last sign of life; None while none is connected."""
        return (time.monotonic_ns() - self.heard_ns) / 1e9 if self._client is not None else None

    @property
    def is_up(self) -> bool:
        """An engine is connected and takes requests."""
        return self._client is not None and self.was_ready

    def new_client(self) -> EngineClient:
        """A client for the next engine, wired to this."""
        self.fatal, self.was_ready = None, False
        self.heard_ns = time.monotonic_ns()
        self._lost = lost = asyncio.Event()
        self._client = EngineClient(
            Listener(
                on_progress=self._on_progress,
                on_prepared=self._on_prepared,
                on_ready=self._on_ready,
                on_step=self._on_step,
                on_heartbeat=self._on_heartbeat,
                on_fatal=self._on_fatal,
                on_lost=lambda reason: self._on_lost(lost, reason),
            )
        )
        return self._client

    async def wait_lost(self, timeout_s: float) -> None:
        """Until the last engine's connection has ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._lost.wait()

    def send_policies(self) -> None:
        """Tell a connected engine the tenants' policies."""
        if self._client is not None and self._client.is_connected and self._policies is not None:
            self._client.send_policies(self._policies)

    def _on_policies(self, snapshot: AccessSnapshot) -> None:
        self._policies = SetPolicies(snapshot.version, tuple(snapshot.policies.values()))
        self._telemetry.sync_policies(snapshot.policies)
        self.send_policies()
        self._warn_of_contracts()

    def _warn_of_contracts(self) -> None:
        contracts = (policy.committed_tpm for policy in self._directory.snapshot.policies.values())
        capacity_tpm = self._directory.capacity.tpm
        for warning in contract_warnings(contracts, capacity_tpm) if capacity_tpm else ():
            log.warning("contracts_exceed_capacity", detail=warning)

    def _on_progress(self, step: Progress) -> None:
        self.heard_ns = time.monotonic_ns()
        self._gate.warm_up(step.phase, percent_of(step), f"{step.phase} {step.done} of {step.total}")
        if step.phase == "backend":
            log.warning("backend_fell_back", engine=self.engine, detail=step.detail)
        self._watchers.on_progress(step)

    def _on_prepared(self, prepared: Prepared) -> None:
        self.heard_ns = time.monotonic_ns()
        self._model = asyncio.create_task(self._load_model(Path(prepared.export_dir), self._client))

    async def _load_model(self, folder: Path, client: EngineClient | None) -> TextModel:
        """Read the model's text half; compute the common prefixes where the engine waits for them."""
        try:
            model = await asyncio.to_thread(load_text_model, folder)
            if self._prefixes and client is not None:
                encoded = await asyncio.to_thread(lambda: tuple(encode_prefix(entry, model) for entry in self._prefixes))
                client.send_prefixes(CommonPrefixes(encoded))
        except EngineGone:
            raise
        except Exception as error:
            message = error.message if isinstance(error, Invalid) else f"{type(error).__name__}: {error}"
            self._watchers.on_broken(f"the model's text can not be served: {message}")
            raise
        return model

    def _on_ready(self, ready: Ready) -> None:
        self.heard_ns = time.monotonic_ns()
        self._opening = asyncio.create_task(self._open(ready, self._client))

    async def _open(self, ready: Ready, client: EngineClient | None) -> None:
        assert self._model is not None, "an engine says Prepared before Ready"
        await asyncio.wait([self._model])
        if self._model.exception() is not None or client is None or client is not self._client or not client.is_connected:
            return
        model = replace(self._model.result(), card=ready.card)
        self._telemetry.note_ready(ready, self.engine)
        self._backend.serve(Served(client, model, fingerprint_of(ready), int(time.time()), self.engine))
        gc.collect()
        gc.freeze()  # what lives until shutdown is not looked at again
        self.was_ready = True
        self.num_starts += 1
        self.came_up.set()
        self._gate.open()
        self._directory.capacity.own_tpm = self._telemetry.engine.capacity_tpm
        self._warn_of_contracts()
        log.info(
            "ready",
            engine=self.engine,
            model=ready.card.model_id,
            device=ready.device,
            backend=ready.attention_backend,
            reason=ready.backend_reason,
            suggested_fast_prompt_tokens=ready.suggested_fast_prompt_tokens,
            startup_s=ready.startup_s,
        )
        self._watchers.on_ready(ready)

    def _on_step(self, step: StepDone) -> None:
        self.heard_ns = time.monotonic_ns()
        self._backend.note_step(step, self.engine)
        self._telemetry.note_step(step, self.engine)
        self._watchers.on_load(step.load)

    def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heard_ns = time.monotonic_ns()
        if heartbeat.load is not None:
            self._telemetry.note_load(heartbeat.load, self.engine)
            self._watchers.on_load(heartbeat.load)

    def _on_fatal(self, fatal: Fatal) -> None:
        self.fatal = fatal  # the supervisor says it, once

    def _on_lost(self, lost: asyncio.Event, reason: str) -> None:
        lost.set()
        if lost is not self._lost:
            return  # an older engine's connection; the next one is there already
        self._client = None
        self._backend.lose(self.engine)
        self._telemetry.engine.lose_engine(self.engine)
        self._watchers.on_load(None)
        if self.was_ready and self._gate.condition.state is not GateState.DRAINING:
            self.on_crash()
        self._gate.lose_engine(self.fatal.message if self.fatal else reason)


def percent_of(step: Progress) -> int:
    """How far a start is, 0 to 99."""
    starts = sorted({*PHASE_START_PERCENT.values(), 99})
    start = PHASE_START_PERCENT.get(step.phase, 0)
    end = next(percent for percent in starts if percent > start)
    return start + (end - start) * min(step.done, step.total) // max(1, step.total)


def fingerprint_of(ready: Ready) -> str:
    """Names what answers depend on beside the request."""
    card = ready.card
    parts = (card.model_id, card.dtype, card.quantization, ready.device, ready.attention_backend)
    return "fp_" + hashlib.sha256("|".join(parts).encode()).hexdigest()[:10]
