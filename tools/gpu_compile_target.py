"""Compiles JAX functions for a GPU that is not there, and reads what ptxas says of each kernel.

Needs a venv of its own (requirements/gpu-compile.lock): jax, and its CUDA plugin and PJRT library without their
dependencies, and ptxas. XLA's real GPU compiler runs; the card is described to it in text. Nothing here runs a kernel.
"""

import atexit
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax._src import lib as jax_lib
from jax._src import xla_bridge
from jax._src.pallas.triton import gpu_info
from jax.experimental import topologies
from jax.experimental.mosaic.gpu import core as mosaic_core
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Figures of OpenXLA's target specifications. Bytes, bytes/s."""

    name: str
    capability: tuple[int, int]
    cores: int
    shared_block_bytes: int
    shared_core_bytes: int
    l2_bytes: int
    bandwidth_bytes_s: int
    memory_bytes: int


CARDS = {
    "h200": Card(
        name="NVIDIA H200",
        capability=(9, 0),
        cores=132,
        shared_block_bytes=232_448,
        shared_core_bytes=233_472,
        l2_bytes=52_428_800,
        bandwidth_bytes_s=4_800_000_000_000,
        memory_bytes=151_397_597_184,
    ),
    "a100": Card(
        name="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        cores=108,
        shared_block_bytes=166_912,
        shared_core_bytes=167_936,
        l2_bytes=41_943_040,
        bandwidth_bytes_s=2_039_040_000_000,
        memory_bytes=85_100_068_864,
    ),
    "b200": Card(
        name="NVIDIA B200",
        capability=(10, 0),
        cores=148,
        shared_block_bytes=232_448,
        shared_core_bytes=233_472,
        l2_bytes=132_644_864,
        bandwidth_bytes_s=7_672_320_000_000,
        memory_bytes=191_514_411_008,
    ),
}


@dataclass(frozen=True, slots=True)
class KernelStats:
    """One GPU kernel of a program. `spill_bytes` are stores plus loads as ptxas counts them."""

    name: str
    registers: int
    spill_bytes: int
    smem_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program compiled for a card. `text` is the optimised HLO."""

    text: str
    kernels: tuple[KernelStats, ...]
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    seconds: float
    serialised_wgmma: int
    """ptxas's warnings (C75xx) that it had to wait after each tensor core instruction."""
    command_buffers: int
    """CUDA graphs that XLA captures the first time that the program runs, which is in the engine's warm-up."""
    launches: int
    """What the host starts at the top level of a call: graphs, and kernels that lie in none."""

    def count_of(self, operation: str) -> int:
        """Instructions of one kind, asynchronous ones once."""
        return len(re.findall(rf" {operation}(?:-start)?\(", self.text))

    @property
    def widest_sort(self) -> int:
        """Columns of the widest array that is sorted, by XLA itself or by CUB; 0 without any."""
        sorts = re.findall(r"= (.*?) (?:sort\(|custom-call\(.*__cub\$)", self.text)
        return max((int(size) for kinds in sorts for dims in re.findall(r"\[([\d,]+)\]", kinds) for size in dims.split(",")), default=0)

    def copies_of(self, aval: Any) -> int:
        """Copies of whole arrays of this shape and type that the program makes."""
        hlo_type = {"bfloat16": "bf16", "float32": "f32", "int8": "s8", "float8_e4m3fn": "f8e4m3fn"}[aval.dtype.name]
        dims = ",".join(str(n) for n in aval.shape)
        return len(re.findall(rf"= \(?{hlo_type}\[{dims}\][^=]*? copy(?:-start)?\(", self.text))


def _target_config(card: Card) -> str:
    """GpuTargetConfigProto as text."""
    major, minor = card.capability
    accelerated = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: {card.cores} fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {card.shared_block_bytes} shared_memory_per_core: {card.shared_core_bytes}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  memory_bandwidth: {card.bandwidth_bytes_s} l2_cache_size: {card.l2_bytes} clock_rate_ghz: 1.98 device_memory_size: {card.memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} {accelerated} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  device_vendor: "NVIDIA Corporation" device_address_bits: 64 name: "{card.name}"
  driver_version: "13.0.0" runtime_version: "12.8.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{card.name}"
"""


class Target:
    """A card's compile-only devices, as a mesh with the axis `tp`."""

    def __init__(self, card_name: str, num_devices: int = 1) -> None:
        self.card_name = card_name
        self.card = CARDS[card_name]
        # the CUDA plugin is loaded for its compiler; asked for devices, it would look for a driver and fail
        jax.config.update("jax_platforms", "cpu")
        xla_bridge.backends()
        topology = topologies.get_topology_desc(
            platform="cuda", topology_name=card_name, target_config=_target_config(self.card), topology=f"1x1x{num_devices}"
        )
        self.mesh = Mesh(np.array(topology.devices), ("tp",))

    def compile(self, function: Callable[..., Any], *avals: Any, donate_argnums: tuple[int, ...] = ()) -> Compiled:
        """Avals are pytrees of ShapeDtypeStruct; those without a sharding are whole on every device."""
        return self.compile_jitted(jax.jit(function, donate_argnums=donate_argnums), *avals)

    def compile_jitted(self, jitted: Any, *avals: Any, options: Mapping[str, str | bool] = MappingProxyType({})) -> Compiled:
        """The same of what is a `jax.jit` already, with places of its own; `options` are XLA's."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        placed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding or whole), avals)
        started = time.perf_counter()
        log = _ptxas_log()
        log.write_text("")
        with tempfile.TemporaryDirectory() as dump, _answering_for(self.card), _mosaic_shared_bytes() as shared, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
            lowered = jitted.lower(*placed)
            # there is nothing to time candidates on, so no autotuning
            program = lowered.compile(compiler_options={**options, "xla_gpu_autotune_level": 0, "xla_dump_to": dump})
            seconds = time.perf_counter() - started
            thunks = "".join(path.read_text() for path in Path(dump).glob("*thunk_sequence.txt"))
            launches = _LAUNCH.findall("".join(path.read_text() for path in Path(dump).glob("*thunk_sequence_after_thunk_passes.txt")))
            said = log.read_text()
            kernels = _kernels(said, thunks, max(shared, default=0))
        text, memory = program.as_text(), program.memory_analysis()
        assert text is not None
        assert memory is not None
        return Compiled(
            text=text,
            kernels=kernels,
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            temp_bytes=memory.temp_size_in_bytes,
            alias_bytes=memory.alias_size_in_bytes,
            seconds=seconds,
            serialised_wgmma=said.count("C75"),
            command_buffers=launches.count("kCommandBuffer"),
            launches=len(launches),
        )


@contextmanager
def _answering_for(card: Card) -> Iterator[None]:
    """Pallas asks the default device which card it lowers for; there is none to ask."""
    kind, platform = gpu_info.get_device_kind, gpu_info.get_device_platform
    gpu_info.get_device_kind = lambda: card.name.removesuffix("-SXM4-80GB")
    gpu_info.get_device_platform = lambda: "gpu"
    try:
        yield
    finally:
        gpu_info.get_device_kind, gpu_info.get_device_platform = kind, platform


@contextmanager
def _mosaic_shared_bytes() -> Iterator[list[int]]:
    """Shared memory of each Mosaic GPU kernel that is lowered inside: neither ptxas nor XLA tells it."""
    measure, sizes = mosaic_core._smem_tree_size, []

    def measured(buffers: Any) -> int:
        sizes.append(measure(buffers))
        return sizes[-1]

    mosaic_core._smem_tree_size = measured
    try:
        yield sizes
    finally:
        mosaic_core._smem_tree_size = measure


@cache
def _ptxas_log() -> Path:
    """Where ptxas writes what it used, from the first call of this process on.

    XLA runs `bin/ptxas` of the CUDA folder that JAX names, Mosaic GPU the first on the PATH (and remembers it): both
    find one here that is the real one and keeps a copy of what it says. XLA reads that too (it asks for the PTX
    version by way of an error message), so nothing is taken away.
    """
    real = Path(jax_lib.cuda_path or "")
    if not (real / "bin" / "ptxas").exists():
        raise RuntimeError("ptxas is missing: install requirements/gpu-compile.lock")
    root = Path(tempfile.mkdtemp(prefix="gpu-compile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for entry in real.iterdir():
        if entry.name != "bin":
            (root / entry.name).symlink_to(entry)
    wrapper, log = root / "bin" / "ptxas", root / "ptxas.log"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nout=$(mktemp "{root}/err.XXXXXX")\n"{real}/bin/ptxas" -v "$@" 2>"$out"\nrc=$?\n'
        'cat "$out" >&2\n'
        f'cat "$out" >>"{log}"\nrm "$out"\nexit $rc\n'
    )
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    jax_lib.cuda_path = str(root)
    os.environ["PATH"] = f"{wrapper.parent}:{os.environ['PATH']}"
    return log


_PTXAS = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
_LAUNCH = re.compile(r"^\d+: (k\w+)", re.MULTILINE)  # nested ones are indented
_THUNK = re.compile(r"(?P<name>\S+) grid: \[[^]]*\] threads: \[(?P<x>\d+), (?P<y>\d+), (?P<z>\d+)\]\s+shared_memory: (?P<smem>\d+) bytes")


MOSAIC_SUFFIX = "_mosaic_gpu_kernel"
MOSAIC_THREADS = {"mosaic_decode": 256, "mosaic_prefill": 384}
"""Which a Mosaic kernel sets itself, a warpgroup of 128 after another."""


def _kernels(ptxas_text: str, thunk_text: str, mosaic_smem_bytes: int) -> tuple[KernelStats, ...]:
    """Joins ptxas's report (registers, spills) with XLA's launch list (threads, shared memory) by kernel name."""
    launches = {found["name"]: found for found in _THUNK.finditer(thunk_text)}
    kernels = {}
    for found in _PTXAS.finditer(ptxas_text):
        launch, name = launches.get(found["name"]), found["name"].removesuffix(MOSAIC_SUFFIX)
        is_mosaic = name != found["name"]
        kernels[name] = KernelStats(
            name=name,
            registers=int(found["registers"]),
            spill_bytes=int(found["stores"]) + int(found["loads"]),
            smem_bytes=mosaic_smem_bytes if is_mosaic else int(launch["smem"]) if launch else 0,
            threads=MOSAIC_THREADS[name] if is_mosaic else int(launch["x"]) * int(launch["y"]) * int(launch["z"]) if launch else 0,
        )
    return tuple(kernels.values())
