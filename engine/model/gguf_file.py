"""GGUF files: the header read into Python values, the tensors mapped, blocks dequantised straight into a target array.

The `gguf` package knows every quantised block's layout and is used for that; its reader is not, because it takes two
seconds to turn a vocabulary of 49,152 entries into Python strings. Format: docs/gguf.md of ggml.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine.errors import ModelError

DEQUANTISE_ELEMENTS = 1 << 17
"""Elements dequantised at once: their f32 values and the temporaries of it stay in a core's cache."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, str] = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8"}
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as it lies in the file: `rows` are bytes [out, bytes of one row] in blocks of `kind`."""

    name: str
    shape: tuple[int, ...]
    """In numpy's order: [out, in] for a matrix, [n] for a vector."""
    kind: gguf.GGMLQuantizationType
    rows: np.ndarray

    def read_into(self, out: np.ndarray) -> None:
        """Dequantise into `out`, which has this shape and the type wanted."""
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[self.kind]
        if self.kind == gguf.GGMLQuantizationType.F32 or self.kind == gguf.GGMLQuantizationType.F16:
            out[...] = self.rows.view("<f4" if block_bytes == 4 else "<f2").reshape(self.shape)
            return
        quant = getattr(gguf.quants, self.kind.name, None)
        if quant is None:
            raise ModelError(
                f"tensor {self.name} is of GGUF type {self.kind.name}, which can not be dequantised here; use a Q4_0 to Q8_0 or K file"
            )
        quant.init_grid()  # look-up tables of the IQ types
        flat = out.reshape(-1)  # a view: `out` is contiguous
        blocks = self.rows.reshape(-1, block_bytes)
        step = DEQUANTISE_ELEMENTS // block_elements
        for start in range(0, len(blocks), step):
            part = quant.dequantize_blocks(blocks[start : start + step])
            flat[start * block_elements : start * block_elements + part.size] = part.reshape(-1)

    def take_rows(self, order: np.ndarray) -> "GgufTensor":
        """The same tensor with its rows in another order, still quantised."""
        if self.rows.shape[0] != len(order):  # a vector is stored as one row of values
            width = self.rows.size // len(order)
            return GgufTensor(self.name, self.shape, self.kind, self.rows.reshape(-1, width)[order])
        return GgufTensor(self.name, self.shape, self.kind, self.rows[order])


@dataclass(frozen=True)
class GgufFile:
    """A parsed header and the tensors, which stay in the mapped file until read."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @cached_property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def setting(self, key: str, default: Any = None) -> Any:
        """Value of `<architecture>.<key>`."""
        return self.fields.get(f"{self.architecture}.{key}", default)


class _Cursor:
    """Reads the header from front to back."""

    def __init__(self, data: memoryview, offset: int) -> None:
        self.data = data
        self.offset = offset

    def scalar(self, kind: str) -> Any:
        value = np.frombuffer(self.data, kind, 1, self.offset)[0]
        self.offset += value.nbytes
        return value.item()

    def string(self) -> str:
        (length,) = struct.unpack_from("<Q", self.data, self.offset)
        start = self.offset + 8
        self.offset = start + length
        if self.offset > len(self.data):
            raise ValueError("a string reaches beyond the end")
        return str(self.data[start : self.offset], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        value = self.scalar(_SCALARS[kind])
        return bool(value) if kind == _BOOL else value

    def array(self) -> list[Any]:
        kind, length = self.scalar("<u4"), self.scalar("<u8")
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(length)]
        values = np.frombuffer(self.data, _SCALARS[kind], length, self.offset)
        self.offset += values.nbytes
        return values.tolist()


def read_gguf(path: Path) -> GgufFile:
    """Parse a GGUF file of version 2 or 3. ModelError if it is none, is cut short, or is of another version."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file (its first bytes are not 'GGUF'); download it again")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _parse(path, _Cursor(data, offset=4))
    except (ValueError, KeyError, struct.error) as error:
        raise ModelError(f"{path} is damaged or cut short ({len(data):,} bytes): {error}; download it again") from error


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    version = cursor.scalar("<u4")
    if version not in _VERSIONS:
        raise ModelError(
            f"{path} has GGUF version {version}; supported are {_VERSIONS}, little-endian; convert it with a current llama.cpp"
        )
    num_tensors, num_fields = cursor.scalar("<u8"), cursor.scalar("<u8")
    fields = {}
    for _ in range(num_fields):
        key = cursor.string()
        fields[key] = cursor.value(cursor.scalar("<u4"))
    return GgufFile(path, fields, _read_tensors(cursor, num_tensors, fields.get("general.alignment", 32)))


def _read_tensors(cursor: _Cursor, num_tensors: int, alignment: int) -> dict[str, GgufTensor]:
    """Tensor table, then the data behind it, each tensor aligned."""
    entries = []
    for _ in range(num_tensors):
        name, num_dims = cursor.string(), cursor.scalar("<u4")
        shape = tuple(cursor.scalar("<u8") for _ in range(num_dims))[::-1]
        entries.append((name, shape, gguf.GGMLQuantizationType(cursor.scalar("<u4")), cursor.scalar("<u8")))
    base = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in entries:
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row_bytes = shape[-1] // block_elements * block_bytes
        num_rows = int(np.prod(shape[:-1]))
        rows = np.frombuffer(cursor.data, np.uint8, num_rows * row_bytes, base + offset).reshape(num_rows, row_bytes)
        tensors[name] = GgufTensor(name, shape, kind, rows)
    return tensors
