"""One engine replica from its configuration to its last frame: prepare, load, compile, warm up, canary, serve."""

import hashlib
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import msgspec

from engine.config import check_config, resolve_cache_dir, resolve_dtype, resolve_kv_dtype, resolve_max_model_len
from engine.errors import ConfigError, EngineError, EngineGone, ModelError
from engine.execution.backends import available_backends, load_weights
from engine.execution.batch import Limits as DeviceLimits
from engine.execution.command_buffers import compiler_options
from engine.execution.host_memory import keep_freed_memory
from engine.execution.kv_pool import attention_shape
from engine.execution.warmup import use_compile_cache, warm_up
from engine.garbage import freeze_garbage
from engine.kernels.select import choose_backend
from engine.link import Link
from engine.loop import EngineLoop
from engine.model.config import ModelConfig
from engine.model.devices import Devices, find_devices, share_of
from engine.model.export import export_model, write_card
from engine.model.source import ModelSource, open_source
from engine.scheduling.budget import suggest_fast_prompt_tokens
from engine.scheduling.drain import capacity_tpm
from engine.scheduling.limits import limits_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_model import StepModel
from engine.simulation.machine import MACHINE_NAME, Facts, Machine, processor_name, write_machine
from engine.sizing import size_pool
from engine.startup import Startup
from engine.wire import (
    CommonPrefix,
    CommonPrefixes,
    EngineConfig,
    Fatal,
    FinishReason,
    ModelCard,
    Prepared,
    Ready,
    Sampling,
    Shutdown,
    Submit,
    ToEngine,
)

type Clock = Callable[[], int]
"""Monotonic nanoseconds."""

type Outcome = Literal["done", "at_fault"]
"""`at_fault`: a setting or the model; a restart would end the same way."""

OWN_TENANT = "fairlane"
"""Work of our own, before anybody is served."""
CANARY_TOKENS = 4


def serve(config: EngineConfig, link: Link, clock: Clock, environment: Mapping[str, str]) -> Outcome:
    """Serve until the control plane asks for the end or goes away; whatever goes wrong is told to it first."""
    try:
        Replica(config, link, clock, environment).run()
    except EngineGone:
        return "done"  # there is nobody left to serve
    except (ConfigError, ModelError) as error:
        _tell(link, error)
        return "at_fault"
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        _tell(link, error)
        raise
    return "done"


def _tell(link: Link, error: Exception) -> None:
    try:
        link.send(Fatal(type(error).__name__, str(error)))
    except EngineGone:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A replica that can run steps."""

    loop: EngineLoop
    scheduler: Scheduler
    backend_name: str
    backend_reason: str
    num_pages: int
    step_floor_s: float
    capacity_tpm: int
    suggested_fast_prompt_tokens: int


class Replica:
    """The phases of a start, in order; each is timed and shown."""

    def __init__(self, config: EngineConfig, link: Link, clock: Clock, environment: Mapping[str, str]) -> None:
        self._config = config
        self._link = link
        self._clock = clock
        self._environment = environment
        self._startup = Startup(link, clock)
        self._early: list[ToEngine] = []
        """Received before there was a loop to take it: the tenants' policies, as a rule."""

    def run(self) -> None:
        """Start, say `Ready`, serve. Raises what made it impossible."""
        check_config(self._config)
        with self._startup.beating():
            source = open_source(self._config.model)
            share = share_of(source.config, self._config.tensor_parallel_size)
            devices = find_devices(self._config.tensor_parallel_size)
            card = self._prepare(source)
            prefixes = self._receive_prefixes()
            loaded = self._load(source, devices, share)
            self._pin(loaded, prefixes)
            self._decode_canary(loaded.loop, source.config.vocab_size)
        card = msgspec.structs.replace(card, num_pages=loaded.num_pages)
        write_card(Path(self._config.export_dir), card)
        freeze_garbage()
        facts = (loaded.backend_reason, loaded.step_floor_s, loaded.capacity_tpm, loaded.suggested_fast_prompt_tokens)
        self._link.send(Ready(card, _device_name(), loaded.backend_name, self._startup.seconds, *facts))
        loaded.loop.run(self._early)

    def _prepare(self, source: ModelSource) -> ModelCard:
        """Hand tokenizer and limits to the control plane, so that it prepares while weights load."""
        config = self._config
        with self._startup.phase("prepare"):
            use_compile_cache(resolve_cache_dir(config, self._environment))
            card = export_model(
                source,
                Path(config.export_dir),
                served_model_name=config.served_model_name,
                load_format=config.load_format,
                dtype=resolve_dtype(config),
                quantization=config.quantization,
                kv_dtype=resolve_kv_dtype(config),
                max_model_len=resolve_max_model_len(config, source.config.max_position),
                block_size=config.block_size,
            )
            self._link.send(Prepared(config.export_dir))
        return card

    def _receive_prefixes(self) -> tuple[CommonPrefix, ...]:
        """The control plane's tokenised prefixes, where it announced some."""
        while self._config.await_common_prefixes:
            for message in self._link.receive(1.0):
                if isinstance(message, Shutdown):
                    raise EngineGone("asked to stop while starting")
                self._early.append(message)
            for message in self._early:
                if isinstance(message, CommonPrefixes):
                    return message.prefixes
        return ()

    def _load(self, source: ModelSource, devices: Devices, share: ModelConfig) -> Loaded:
        """Weights, pool, programs; all of them called once. `share` is what each of the devices has of the model."""
        config, model = self._config, source.config
        kv_dtype, max_model_len = resolve_kv_dtype(config), resolve_max_model_len(config, model.max_position)
        size = size_pool(config, source, share)
        limits = limits_of(
            config,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            max_model_len=max_model_len,
            num_pages=size.num_pages,
            cache_version=_cache_version(config, source),
            swap_pages=size.swap_pages,
        )
        available = available_backends(devices)
        chosen = choose_backend(config.attention_backend, available.backends, attention_shape(share, config.block_size), kv_dtype)
        backend = chosen.backend
        if chosen.fell_back:
            self._startup.progress("backend", 1, 1, chosen.reason)  # before what takes minutes
        with self._startup.phase("load"):
            weights = load_weights(source, config, backend, self._show_loading, devices)
        keep_freed_memory()
        rows = (config.max_num_seqs, max_model_len, config.max_prefill_rows)
        device_limits = DeviceLimits(*rows, size.num_pages, config.block_size, size.swap_pages)
        buckets, progress = limits.buckets.all(), self._startup.progress
        options_of = partial(compiler_options, platform=jax.default_backend(), enforce_eager=config.enforce_eager)
        warmed = warm_up(share, weights.params, device_limits, backend, buckets, kv_dtype, progress, devices=devices, options_of=options_of)
        self._startup.seconds.update(warmed.seconds)
        facts = Facts(
            model=model.name,
            device=_device_name() if jax.default_backend() != "cpu" else processor_name(),
            backend=backend.name,
            measured=f"{datetime.now(UTC):%Y-%m-%d}",
            vocab_size=model.vocab_size,
            max_model_len=max_model_len,
            num_pages=size.num_pages,
            page_size=config.block_size,
        )
        write_machine(Path(config.export_dir) / MACHINE_NAME, Machine(facts, warmed.step_times))
        can_interrupt = config.enable_step_interrupts and warmed.runner.can_interrupt
        scheduler = Scheduler(replace(limits, enable_step_interrupts=can_interrupt), model=StepModel(warmed.step_times))
        guard = warmed.compiles_after_ready
        if config.compile_after_ready_is_fatal:
            guard = _fatal_guard(guard)
        loop = EngineLoop(scheduler, warmed.runner, self._link, self._clock, overlap=config.async_scheduling, compiles_after_ready=guard)
        missing = f"; no native kernels: {available.native_missing}" if available.native_missing else ""
        split = f"; each layer split over {devices.count} devices" if devices.count > 1 else ""
        times, reason = warmed.step_times, f"{chosen.reason}{missing}; weights: {weights.form}{split}"
        capacity, suggested = capacity_tpm(limits.buckets, times, limits.max_step_ms / 1e3), suggest_fast_prompt_tokens(times, limits)
        return Loaded(loop, scheduler, backend.name, reason, size.num_pages, times.floor_s, capacity, suggested)

    def _show_loading(self, done: int, total: int, detail: str) -> None:
        self._startup.progress("load", done, total, detail)

    def _pin(self, loaded: Loaded, prefixes: tuple[CommonPrefix, ...]) -> None:
        """Compute each common prefix by running it as a prompt, then keep its full pages for ever."""
        if not prefixes:
            return
        with self._startup.phase("prefixes"):
            for index, prefix in enumerate(prefixes):
                loaded.loop.run_alone(self._own_submit(-2 - index, prefix.tokens, prefix.salt, max_tokens=1))
                pages = loaded.scheduler.pin_prefix(prefix.salt, prefix.tokens)
                self._startup.progress("prefixes", index + 1, len(prefixes), f"{pages} pages pinned")

    def _decode_canary(self, loop: EngineLoop, vocab_size: int) -> None:
        """A few tokens through the real path: prefill, decode, sampling."""
        with self._startup.phase("canary"):
            events = loop.run_alone(self._own_submit(-1, (1 % vocab_size, 2 % vocab_size), "canary", max_tokens=CANARY_TOKENS))
        tokens = [token for event in events for token in event.token_ids]
        if len(tokens) != CANARY_TOKENS or events[-1].finish is not FinishReason.LENGTH:
            raise EngineError(f"the canary drew {tokens} and ended with {events[-1].finish}: {CANARY_TOKENS} tokens were expected")

    def _own_submit(self, sequence_id: int, tokens: tuple[int, ...], salt: str, *, max_tokens: int) -> Submit:
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return Submit(sequence_id, f"own_{-sequence_id}", OWN_TENANT, "slow", salt, tokens, sampling, received_ns=self._clock())


def _fatal_guard(count: Callable[[], int]) -> Callable[[], int]:
    """Tests run with this: a compile after ready is our own bug, and ends the process."""

    def checked() -> int:
        compiles = count()
        assert not compiles, f"{compiles} programs were compiled after ready"
        return compiles

    return checked


def _cache_version(config: EngineConfig, source: ModelSource) -> str:
    """Names everything that a cached page depends on besides its tokens."""
    facts = (
        source.name,
        str(source.path),
        config.load_format,
        str(config.seed),
        resolve_dtype(config),
        resolve_kv_dtype(config),
        config.quantization,
    )
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _device_name() -> str:
    """The `gpu_type` label: `cpu`, or the card's name."""
    device = jax.devices()[0]
    return "cpu" if device.platform == "cpu" else device.device_kind
