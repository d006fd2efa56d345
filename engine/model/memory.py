"""How many bytes weights take, and whether they fit beside the KV pool: arithmetic, no device."""

import math

from engine.errors import DoesNotFit
from engine.model.kv_size import BYTES_OF, SCALE_BYTES
from engine.model.source import GgufSource, ModelSource
from engine.model.tensors import tensor_shapes

_NORM_BYTES = 4


def weight_bytes(source: ModelSource, *, dtype: str, quantization: str = "none") -> int:
    """Bytes of all weights once loaded. `gguf` keeps the file's own blocks; `int8` rounds the layers' matrices."""
    if quantization == "gguf" and isinstance(source, GgufSource):
        return sum(tensor.rows.nbytes for tensor in source.file.tensors.values())
    return sum(_tensor_bytes(name, shape, dtype, quantization) for name, shape in tensor_shapes(source.config).items())


def _tensor_bytes(name: str, shape: tuple[int, ...], dtype: str, quantization: str) -> int:
    if name.endswith("norm.weight"):
        return math.prod(shape) * _NORM_BYTES
    if quantization == "int8" and len(shape) == 2 and name.startswith("model.layers."):
        return math.prod(shape) + shape[0] * SCALE_BYTES
    return math.prod(shape) * BYTES_OF[dtype]


def check_fit(*, model: str, weight_bytes: int, pool_bytes: int, free_bytes: int, device: str) -> None:
    """DoesNotFit, with the numbers and what to change, unless weights and KV pool fit in what is free."""
    if weight_bytes + pool_bytes <= free_bytes:
        return
    numbers = f"weights {gigabytes(weight_bytes)} + KV pool {gigabytes(pool_bytes)} > {gigabytes(free_bytes)} free on {device}"
    if weight_bytes > free_bytes:
        remedy = (
            "the weights alone are too much: use --quantization int8, a smaller --dtype, a smaller model, or more memory"
            " (--tensor-parallel-size splits a model over cards)"
        )
    else:
        left = gigabytes(free_bytes - weight_bytes)
        remedy = f"give the KV pool at most {left} (--kv-cache-memory-bytes, --num-gpu-blocks-override), or lower --max-model-len"
    raise DoesNotFit(f"{model} does not fit: {numbers}; {remedy}")


def gigabytes(num_bytes: int) -> str:
    """`1.23 GB` (10^9 bytes, as card makers count)."""
    return f"{num_bytes / 1e9:.2f} GB"
