"""From weights to a runner that never compiles again: allocate the pool, compile every shape, call each once."""

import hashlib
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import jax.monitoring
import numpy as np

from engine.execution.batch import Limits, SlotArrays, StepShape, buffer_size, pack, step_shape
from engine.execution.kv_pool import DeviceState, admit, allocate, allocate_over
from engine.execution.page_moves import MOVE_PAGES, PageMover, compile_moves
from engine.execution.runner import SCORING_BUCKET, DeviceRunner, Programs
from engine.execution.sampler import SlotState
from engine.execution.step import run_step
from engine.kernels.attention import AttentionBackend
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import NativeStack
from engine.model.config import ModelConfig
from engine.model.devices import ONE_DEVICE, Devices
from engine.model.params import Params
from engine.scheduling.plan import QUERY_BLOCK_TOKENS, Bucket, DecodeRow, PageMoves, PrefillChunk, StepPlan
from engine.scheduling.step_model import Probe, StepTimes, fit_step_times, work_of

type OnProgress = Callable[[str, int, int, str], None]
"""Phase (allocate, compile, warmup), done, total, detail."""

type CompilerOptions = Callable[[Bucket], dict[str, str | bool]]

PROBE_CONTEXT_TOKENS = 1024
"""Context of the steps from which the step-time model learns what reading the cache costs."""
PROBE_TOKENS = 128
"""What a token and its context cost is measured in the smallest prefill program of so many tokens."""
PROBE_TIMES, PROBE_S = 4, 0.06
"""The quickest of so many calls counts, or of as many as take so long: a busy machine's one odd call would make every step seem long until
the next start."""
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts XLA compiles of this process from `arm()` on. After ready there must be none."""

    def __init__(self) -> None:
        self._count = 0
        self._armed = False
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def arm(self) -> None:
        self._armed = True

    def count(self) -> int:
        return self._count

    def _on_event(self, event: str, _duration_s: float, **_labels: str | int) -> None:
        if self._armed and event == COMPILE_EVENT:
            self._count += 1


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A runner that is ready, what it took (`seconds` by phase: allocate, compile, warmup), and how long its steps take."""

    runner: DeviceRunner
    compiles_after_ready: Callable[[], int]
    seconds: dict[str, float]
    step_times: StepTimes


def use_compile_cache(folder: Path) -> None:
    """Keep compiled programs in `folder`, apart by processor and versions: a program of another machine may crash here."""
    facts = f"{platform.machine()} {_cpu_flags()} {jax.__version__} {version('jaxlib')}"
    own = folder / f"jax-{jax.__version__}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
    own.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(own))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _cpu_flags() -> str:
    """Instruction sets, as Linux tells them; elsewhere the processor's name has to do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    return next((line for line in lines if line.startswith(("flags", "Features"))), lines[0] if lines else "")


def warm_up(
    config: ModelConfig,
    params: Params,
    limits: Limits,
    backend: AttentionBackend,
    buckets: Sequence[Bucket],
    kv_dtype: str,
    on_progress: OnProgress,
    *,
    devices: Devices = ONE_DEVICE,
    options_of: CompilerOptions = lambda _: {},
    compile_threads: int = 2,
) -> WarmedUp:
    """Compile and call every bucket's program, the prompt-scoring one and the admission one. `config` is one device's share of the model;
    `options_of` a bucket are XLA's for its program.

    Raises:
        ConfigError: the pool does not fit one layer's index range.
    """
    counter = CompileCounter()
    started_s = time.monotonic()
    on_progress("allocate", 0, 1, f"{limits.num_pages} pages")
    if devices.count > 1:
        state = allocate_over(devices, config, limits, backend, kv_dtype)
    else:
        state = allocate(config, limits, backend, kv_dtype, stacked=isinstance(params.layers, NativeStack))
    jax.block_until_ready(state)
    on_progress("allocate", 1, 1, "")
    allocated_s = time.monotonic()
    shapes = [*(step_shape(bucket, limits) for bucket in buckets), step_shape(SCORING_BUCKET, limits, scores_prompt=True)]
    programs = _compile(config, params, limits, backend, shapes, state, devices, options_of, on_progress, compile_threads)
    compiled_s = time.monotonic()
    caller = _Caller(params, limits, programs, state)
    times = _call_each(caller, on_progress)
    warmed_s = time.monotonic()
    counter.arm()
    seconds = {"allocate": allocated_s - started_s, "compile": compiled_s - allocated_s, "warmup": warmed_s - compiled_s}
    cutter = backend.library if isinstance(backend, CpuNativeAttention) and isinstance(params.layers, NativeStack) else None
    return WarmedUp(DeviceRunner(config, limits, params, caller.state, programs, cutter), counter.count, seconds, times)


def _compile(
    config: ModelConfig,
    params: Params,
    limits: Limits,
    backend: AttentionBackend,
    shapes: Sequence[StepShape],
    state: DeviceState,
    devices: Devices,
    options_of: CompilerOptions,
    on_progress: OnProgress,
    threads: int,
) -> Programs:
    """Tracing holds the interpreter's lock, so it happens here, one after another, while threads compile."""
    done, lock = 0, threading.Lock()

    def finished(shape: StepShape) -> None:
        nonlocal done
        with lock:
            done += 1
            on_progress("compile", done, len(shapes), str(shape))

    on_progress("compile", 0, len(shapes), "the first start takes longest")
    with ThreadPoolExecutor(threads) as pool:
        running = {}
        for shape in shapes:
            function = partial(run_step, config, limits, backend, shape)
            buffer = jax.ShapeDtypeStruct((buffer_size(shape),), np.int32)
            lowered = devices.jit(function, (params, state, buffer), (state, buffer), donate_argnums=(1,)).lower(params, state, buffer)
            running[shape] = pool.submit(lowered.compile, compiler_options=options_of(shape.bucket))
            running[shape].add_done_callback(lambda _, shape=shape: finished(shape))
        rows = SlotState(*(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in state.slots))
        admitted = (state.slots, jax.ShapeDtypeStruct((), np.int32), rows)
        admission = devices.jit(admit, admitted, state.slots, donate_argnums=(0,)).lower(*admitted).compile()
        moves = compile_moves(state.caches, with_swap=limits.swap_pages > 0, devices=devices)
        return Programs({shape: future.result() for shape, future in running.items()}, admission, moves)


@dataclass(slots=True)
class _Caller:
    """Calls programs one after another; each takes the state that the one before gave back."""

    params: Params
    limits: Limits
    programs: Programs
    state: DeviceState

    def best_of(self, times: int, plan: StepPlan) -> Probe:
        """The quickest of some calls from the packed plan to its results on the host: other processes only make them slower. Nothing that
        serving uses depends on what they wrote. A long step is called once: nothing that short disturbs it much."""
        shape = step_shape(plan.bucket, self.limits)
        seconds = [self.call(shape, plan)]
        while len(seconds) < times and sum(seconds) < PROBE_S:
            seconds.append(self.call(shape, plan))
        return Probe(plan.bucket, work_of(plan), min(seconds))

    def call(self, shape: StepShape, plan: StepPlan) -> float:
        """Its seconds."""
        buffer = pack(shape, plan, SlotArrays(self.limits)).buffer
        started_s = time.monotonic()
        self.state, results = self.programs.steps[shape](self.params, self.state, buffer)
        np.asarray(results)
        return time.monotonic() - started_s

    def move_pages(self) -> float:
        """Each program that moves pages, twice; seconds a page takes to the host and back the second time, 0 without swap space."""
        count = min(MOVE_PAGES, self.limits.swap_pages, self.limits.num_pages)
        mover = PageMover(self.programs.moves, self.state.caches, self.limits.num_pages, count)
        pairs = tuple((page, page) for page in range(count))
        seconds = 0.0
        for _ in range(2):
            started_s = time.monotonic()
            caches = mover.run(self.state.caches, PageMoves(swapped_out=pairs, swapped_in=pairs))
            self.state = self.state._replace(caches=jax.block_until_ready(caches))
            seconds = (time.monotonic() - started_s) / count if count else 0.0
            caches = mover.run(self.state.caches, PageMoves(copied=((0, 0),)))
            self.state = self.state._replace(caches=jax.block_until_ready(caches))
        return seconds


def _call_each(caller: _Caller, on_progress: OnProgress) -> StepTimes:
    """The first call of a program costs more than later ones, which give its time in the step-time model."""
    limits, programs = caller.limits, caller.programs
    rows = SlotState(*(np.zeros(array.shape[1:], array.dtype) for array in caller.state.slots))
    caller.state = caller.state._replace(slots=programs.admit(caller.state.slots, np.int32(limits.max_num_seqs), rows))
    full: list[Probe] = []
    for index, shape in enumerate(programs.steps):
        plan = _plan(shape.bucket, limits)
        caller.call(shape, plan)
        if not shape.scores_prompt:
            full.append(caller.best_of(PROBE_TIMES, plan))
        on_progress("warmup", index + 1, len(programs.steps), str(shape))
    decode = max((probe.bucket for probe in full if not probe.bucket.prefill_tokens), key=lambda b: b.decode_rows, default=None)
    prefills = sorted((probe.bucket for probe in full if not probe.bucket.decode_rows), key=lambda b: b.prefill_tokens)
    prefill = next((bucket for bucket in prefills if bucket.prefill_tokens >= PROBE_TOKENS), prefills[-1] if prefills else None)
    probed = [bucket for bucket in (decode, prefill) if bucket is not None]
    halves = [caller.best_of(PROBE_TIMES, _plan(bucket, limits, part=0.5)) for bucket in probed]
    deep = [caller.best_of(PROBE_TIMES, _plan(bucket, limits, context=PROBE_CONTEXT_TOKENS)) for bucket in probed]
    return replace(fit_step_times(full, halves, deep), swap_page_s=caller.move_pages())


def _plan(bucket: Bucket, limits: Limits, *, part: float = 1.0, context: int = 0) -> StepPlan:
    """So large a part of the bucket: of as many decode rows as there are slots, and of one chunk in a slot of its own as far as the bucket
    and the context hold it; all read the first page over and over."""
    longest = min(bucket.prefill_tokens, limits.max_model_len - QUERY_BLOCK_TOKENS)
    chunk = max(1, round(part * longest)) if bucket.prefill_tokens else 0
    most_rows = min(bucket.decode_rows, limits.max_num_seqs - bool(chunk))
    rows = max(1, round(part * most_rows)) if most_rows else 0
    position = min(context, limits.max_model_len - 1)
    pages = (0,) * (position // limits.page_size + 1)
    decodes = tuple(DecodeRow(slot, slot, position, pages) for slot in range(rows))
    if not chunk:
        return StepPlan(0, bucket, (), decodes, ())
    start = min(context, limits.max_model_len - chunk)
    pages = (0,) * -(-(start + chunk) // limits.page_size)
    return StepPlan(0, bucket, (), decodes, (PrefillChunk(rows, rows, start, (0,) * chunk, pages, samples=False),))
