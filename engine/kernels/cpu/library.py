"""The built library, found (or built) and registered with JAX once a process."""

import ctypes
import functools
import os
from dataclasses import dataclass

import jax

from engine.kernels.cpu.build import BuildFailed, build, find_library

TARGETS = ("fairlane_kv_write", "fairlane_decode", "fairlane_prefill", "fairlane_product", "fairlane_decoder")

ISA_LEVELS = range(3)
"""As in `csrc/select.h`, best first."""


@dataclass(frozen=True, slots=True)
class NativeLibrary:
    """A library whose calls JAX knows. `isa_names` are the instruction sets that run here, by level, best first."""

    path: str
    isa_names: dict[int, str]
    handle: ctypes.CDLL

    def level(self, isa: str | None = None) -> int:
        """The level of an instruction set by name; the best one by default. KeyError when it does not run here."""
        if isa is None:
            return min(self.isa_names)
        return {name: level for level, name in self.isa_names.items()}[isa]

    def want_cut(self) -> None:
        """Before its next layer the decoder call that runs leaves out all rows but its decodes: they end as ever. What the others wrote
        to their caches is half of it, and what is drawn for them is noise."""
        self.handle.fairlane_want_cut()

    def settle_cut(self) -> bool:
        """Whether the call that has ended was cut; the next one runs to its end. A cut is only wanted while no other call waits."""
        return self.handle.fairlane_settle_cut()


@dataclass(frozen=True, slots=True)
class NativeUnavailable:
    """Why the native kernels cannot be used; the caller goes on with `xla` and says so once."""

    reason: str


@functools.cache
def native_library() -> NativeLibrary | NativeUnavailable:
    """Load, building first where that was not done at install time. Never raises.

    `FAIRLANE_CPU_ISA` (read here, once) leaves only the named instruction set, for tests and comparisons;
    `FAIRLANE_CPU_NATIVE=off` turns the native kernels off.
    """
    if os.environ.get("FAIRLANE_CPU_NATIVE") == "off":
        return NativeUnavailable("turned off by FAIRLANE_CPU_NATIVE")
    found = find_library() or build()
    if isinstance(found, BuildFailed):
        return NativeUnavailable(found.reason)
    try:
        handle = ctypes.CDLL(str(found))
        for target in TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(handle, target)), platform="cpu")
    except (OSError, AttributeError, RuntimeError, ValueError) as error:  # refused by this machine or this jaxlib
        return NativeUnavailable(f"{found.name} was refused: {error}")
    names = _isa_names(handle, os.environ.get("FAIRLANE_CPU_ISA"))
    if not names:
        return NativeUnavailable(f"FAIRLANE_CPU_ISA={os.environ.get('FAIRLANE_CPU_ISA')} does not run on this machine")
    handle.fairlane_settle_cut.restype = ctypes.c_bool
    return NativeLibrary(str(found), names, handle)


def _isa_names(handle: ctypes.CDLL, only: str | None) -> dict[int, str]:
    handle.fairlane_isa_name.restype = ctypes.c_char_p
    names = {level: handle.fairlane_isa_name(level) for level in ISA_LEVELS}
    return {level: name.decode() for level, name in names.items() if name and only in (None, name.decode())}
