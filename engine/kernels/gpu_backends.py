"""Which GPU attention backends a device can run, best first: what `select.choose_backend` is given before `xla`."""

import warnings
from typing import Any

from engine.kernels.attention import AttentionBackend
from engine.kernels.pallas_mosaic import PallasMosaicBackend
from engine.kernels.pallas_triton import PallasTritonBackend


def gpu_backends(device: Any) -> tuple[AttentionBackend, ...]:
    """Of a `jax.Device`; empty on anything but an NVIDIA GPU.

    Also silences the one warning that JAX gives each time it lowers a Triton kernel: that its Triton backend will go.
    """
    if device.platform != "gpu" or not hasattr(device, "compute_capability"):
        return ()
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
    major, minor = (int(part) for part in device.compute_capability.split("."))
    return backends_of((major, minor))


def backends_of(capability: tuple[int, int]) -> tuple[AttentionBackend, ...]:
    """Of a card's (major, minor), best first; `supports` says which of them the card can run."""
    return PallasMosaicBackend(capability), PallasTritonBackend(capability)
