"""Which attention backend a replica uses, and why: a value to log, never an error where a fallback exists."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.kernels.attention import AttentionBackend, AttentionShape


@dataclass(frozen=True, slots=True)
class Chosen:
    """`reason` says in words why it is this one; `fell_back`: not the one that was asked for, or the last one where others are here."""

    backend: AttentionBackend
    reason: str
    fell_back: bool


def choose_backend(wanted: str, available: Sequence[AttentionBackend], shape: AttentionShape, kv_dtype: str) -> Chosen:
    """The wanted backend, or for `auto` the first of `available` (best first, the one that does everything last) that can do the shape.

    Raises:
        ConfigError: no backend can do this shape with this KV type.
    """
    able = [backend for backend in available if backend.supports(shape, kv_dtype)]
    if not able:
        names = ", ".join(backend.name for backend in available)
        raise ConfigError(f"kv_cache_dtype is {kv_dtype} and block_size {shape.page_size}: none of the backends here ({names}) can do that")
    can_not = f"can not do head dim {shape.head_dim} with {kv_dtype} KV here"
    if wanted == "auto":
        faster = " and ".join(backend.name for backend in available[:-1])
        if faster and able[0] is available[-1]:
            return Chosen(able[0], f"{faster} {can_not}; {able[0].name} runs instead, slowly", fell_back=True)
        return Chosen(able[0], "the fastest that can run here", fell_back=False)
    named = next((backend for backend in able if backend.name == wanted), None)
    if named is not None:
        return Chosen(named, f"{wanted} was asked for", fell_back=False)
    if any(backend.name == wanted for backend in available):
        why = f"{wanted} {can_not}"
    else:
        why = f"{wanted} is not available on this machine"
    return Chosen(able[-1], f"{why}; {able[-1].name} runs instead", fell_back=True)
