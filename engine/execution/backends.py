"""Which kernels a replica can run on, and its weights in the form that these want."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec

from engine.config import resolve_dtype, resolve_kv_dtype
from engine.execution.kv_pool import attention_shape
from engine.kernels.attention import AttentionBackend, AttentionShape
from engine.kernels.cpu.attention import CpuNativeAttention
from engine.kernels.cpu.decoder import decoder_supports, stack_layers
from engine.kernels.cpu.library import NativeUnavailable, native_library
from engine.kernels.gpu_backends import gpu_backends
from engine.kernels.products import Int8Weight, quantize_int8
from engine.kernels.xla_attention import XlaAttention
from engine.model.checkpoint import load_model
from engine.model.devices import ONE_DEVICE, Devices
from engine.model.native import MATRICES, native_gguf_params, native_params
from engine.model.params import LayerParams, Params
from engine.model.source import GgufSource, ModelSource
from engine.wire import EngineConfig


@dataclass(frozen=True, slots=True)
class Available:
    """Backends of this machine, best first, and why the native one is missing ("" where it is not)."""

    backends: tuple[AttentionBackend, ...]
    native_missing: str


def available_backends(devices: Devices = ONE_DEVICE) -> Available:
    """Looks for (and at need builds) the native library on a CPU."""
    if jax.default_backend() != "cpu":
        return Available((*gpu_backends(jax.devices()[0]), XlaAttention()), "the device is not a CPU")
    if devices.count > 1:
        return Available((XlaAttention(),), "they run all layers in one call, on one device")
    library = native_library()
    if isinstance(library, NativeUnavailable):
        return Available((XlaAttention(),), library.reason)
    return Available((CpuNativeAttention(library), XlaAttention()), "")


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """`form` says in words how the matrices are kept and multiplied."""

    params: Params
    form: str


def load_weights(
    source: ModelSource,
    config: EngineConfig,
    backend: AttentionBackend,
    progress: Callable[[int, int, str], None],
    devices: Devices = ONE_DEVICE,
) -> LoadedWeights:
    """Weights in the form that `quantization`, `dtype` and the backend call for.

    Raises:
        ModelError: a file or tensor is missing or damaged, or `gguf` was asked of a model that is no GGUF file.
    """
    library = backend.library if isinstance(backend, CpuNativeAttention) and resolve_dtype(config) == "bfloat16" else None
    keeps_blocks = config.quantization == "gguf" and config.load_format != "dummy"
    if library is not None and keeps_blocks:
        params = native_gguf_params(source, library.level())[1]
        return LoadedWeights(_stacked(params, source, config), "GGUF blocks, native products")
    if keeps_blocks and not isinstance(source, GgufSource):
        native_gguf_params(source, 0)  # says what is wrong
    _, params = load_model(
        source, load_format=config.load_format, dtype=resolve_dtype(config), seed=config.seed, progress=progress, devices=devices
    )
    int8 = config.quantization == "int8"
    if library is not None:
        params = native_params(params, library.level(), int8=int8)
        return LoadedWeights(_stacked(params, source, config), f"{'int8' if int8 else 'bfloat16'}, native products")
    if int8:
        return LoadedWeights(_int8_params(params), "int8, XLA products")
    note = "dequantised, for the native kernels are not in use; " if keeps_blocks else ""
    return LoadedWeights(params, f"{note}{resolve_dtype(config)}, XLA products")


def _stacked(params: Params, source: ModelSource, config: EngineConfig) -> Params:
    """All layers in one, where the native decoder takes them."""
    return stacked_params(params, attention_shape(source.config, config.block_size), resolve_kv_dtype(config))


def stacked_params(params: Params, shape: AttentionShape, kv_dtype: str) -> Params:
    """Native weights as one `NativeStack`, where the native decoder can run them all in one call."""
    if not decoder_supports(shape, params.layers, kv_dtype):
        return params
    return params._replace(layers=stack_layers(params.layers))


def _int8_params(params: Params) -> Params:
    def layer(dense: LayerParams) -> LayerParams:
        return dense._replace(**{name: _quantize(getattr(dense, name)) for name in MATRICES})

    return params._replace(layers=tuple(map(layer, params.layers)))


def _quantize(weight: jax.Array) -> Int8Weight:
    """Cut as it was; a scale is of a whole row, whoever has the row's parts."""
    if not isinstance(weight.sharding, NamedSharding):
        return jax.jit(quantize_int8)(weight)
    mesh, spec = weight.sharding.mesh, weight.sharding.spec
    places = Int8Weight(weight.sharding, NamedSharding(mesh, PartitionSpec(*spec[:1])))
    return jax.jit(quantize_int8, out_shardings=places)(weight)
