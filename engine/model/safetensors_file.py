"""Safetensors files, one or many, mapped; tensors are views until they are copied into their place.

The format is an 8-byte length, a JSON header and raw little-endian data. Read here because numpy has no bfloat16: the
view is made with ml_dtypes, and the copy into the target converts, without a detour over f32.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from engine.errors import ModelError
from engine.model.hf_config import read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_DTYPES: dict[str, Any] = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32, "F64": np.float64}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """A tensor in a mapped file."""

    name: str
    shape: tuple[int, ...]
    values: np.ndarray

    def read_into(self, out: np.ndarray) -> None:
        """Copy into `out`, which has this shape and the type wanted."""
        out[...] = self.values


def read_folder(folder: Path) -> dict[str, SafetensorsTensor]:
    """All tensors of a folder, by name. ModelError if a file is missing or damaged."""
    if (folder / INDEX_NAME).is_file():
        names = sorted(set(read_json(folder / INDEX_NAME)["weight_map"].values()))
    elif (folder / SINGLE_NAME).is_file():
        names = [SINGLE_NAME]
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise ModelError(
            f"{folder} holds no .safetensors file; PyTorch .bin files are not read: convert them with transformers' save_pretrained,"
            " or use --load-format dummy for random weights"
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(f"{folder}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing[:4])}; finish the download")
    tensors: dict[str, SafetensorsTensor] = {}
    for name in names:
        tensors |= read_file(folder / name)
    return tensors


def read_file(path: Path) -> dict[str, SafetensorsTensor]:
    """The tensors of one file."""
    damaged = f"{path} is damaged or cut short ({path.stat().st_size:,} bytes); download it again"
    if path.stat().st_size < 8:
        raise ModelError(damaged)
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise ModelError(damaged)
    try:
        header = msgspec.json.decode(data[8 : 8 + header_bytes])
        return {name: _view(name, entry, data[8 + header_bytes :]) for name, entry in header.items() if name != "__metadata__"}
    except (msgspec.DecodeError, ValueError, LookupError) as error:
        raise ModelError(f"{damaged}: {error}") from error


def _view(name: str, entry: Mapping[str, Any], data: memoryview) -> SafetensorsTensor:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ModelError(f"tensor {name} is of type {entry['dtype']}, which is not supported; supported are {', '.join(_DTYPES)}")
    start, end = entry["data_offsets"]
    values = np.frombuffer(data[start:end], dtype).reshape(entry["shape"])
    return SafetensorsTensor(name, tuple(entry["shape"]), values)
