"""Random weights for speed tests: the same for a seed and a tensor's name, whatever the order of loading."""

import zlib
from dataclasses import dataclass

import numpy as np

_NOISE_ELEMENTS = 1 << 20
_STANDARD_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class DummyTensor:
    """Seeded noise of a trained model's size, ones for norms. One million values are drawn and repeated: fast, and no
    kernel's speed depends on more."""

    name: str
    shape: tuple[int, ...]
    seed: int

    def read_into(self, out: np.ndarray) -> None:
        if self.name.endswith("norm.weight"):
            out[...] = 1
            return
        draw = np.random.default_rng((self.seed, zlib.crc32(self.name.encode())))
        noise = draw.standard_normal(min(out.size, _NOISE_ELEMENTS), np.float32) * np.float32(_STANDARD_DEVIATION)
        flat, noise = out.reshape(-1), noise.astype(out.dtype)
        for start in range(0, flat.size, noise.size):
            part = flat[start : start + noise.size]
            part[...] = noise[: part.size]
