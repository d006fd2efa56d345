"""Weights from any source into `Params`: each tensor is written straight into its place, in its final type.

A source is a look-up from Hugging Face's tensor names; GGUF names and row orders are translated in `gguf_config`. The
look-up for dummy weights answers with seeded noise. Fused matrices (q, k, v; gate, up) are filled part by part.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from engine.errors import ModelError
from engine.model.config import ModelConfig
from engine.model.devices import LAYER_CUT, ONE_DEVICE, WHOLE, Devices
from engine.model.dummy import DummyTensor
from engine.model.gguf_config import find_tensor
from engine.model.gguf_file import GgufTensor
from engine.model.params import LayerParams, Params
from engine.model.safetensors_file import read_folder
from engine.model.source import GgufSource, ModelSource, open_source
from engine.model.tensors import layer_name, tensor_shapes

type Progress = Callable[[int, int, str], None]
"""Called with blocks done, blocks in all, and what is being read."""

LOAD_THREADS = min(8, os.cpu_count() or 1)


@runtime_checkable
class Tensor(Protocol):
    """A tensor in some file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_into(self, out: np.ndarray) -> None:
        """Write the values into `out`, converting to its type."""
        ...


def load_model(
    source: str | ModelSource,
    *,
    load_format: Literal["auto", "dummy"] = "auto",
    dtype: str = "auto",
    seed: int = 0,
    progress: Progress = lambda done, total, detail: None,
    devices: Devices = ONE_DEVICE,
) -> tuple[ModelConfig, Params]:
    """Read a model: matrices and biases in `dtype` (`auto` is bfloat16), norms in f32, on JAX's default device or cut over several.

    Raises:
        ModelError: a file or tensor is missing, damaged, or of an unsupported kind; the message says what to do.
    """
    opened = open_source(source) if isinstance(source, str) else source
    tensors = _tensors(opened, load_format, seed)
    loader = _Loader(opened.config, tensors, jnp.dtype("bfloat16" if dtype == "auto" else dtype), devices)
    return opened.config, loader.load(progress)


def load_gguf_blocks(source: str | ModelSource) -> tuple[ModelConfig, dict[str, GgufTensor]]:
    """The tensors of a GGUF file by Hugging Face name, still quantised, q and k rows in Hugging Face's order."""
    opened = open_source(source) if isinstance(source, str) else source
    if not isinstance(opened, GgufSource):
        raise ModelError(f"{opened.path} is not a GGUF file: --quantization gguf keeps a GGUF file's own blocks; choose none or int8")
    found = {name: find_tensor(opened.file, opened.config, name) for name in tensor_shapes(opened.config)}
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    _check_tensors(opened.config, tensors, str(opened.path))
    return opened.config, tensors


def _tensors(source: ModelSource, load_format: str, seed: int) -> Mapping[str, Tensor]:
    config = source.config  # first: a folder without one is no model, whatever else is missing
    if load_format == "dummy":
        return {name: DummyTensor(name, shape, seed) for name, shape in tensor_shapes(config).items()}
    if isinstance(source, GgufSource):
        return load_gguf_blocks(source)[1]
    tensors = read_folder(source.path)
    _check_tensors(config, tensors, str(source.path))
    return tensors


def _check_tensors(config: ModelConfig, tensors: Mapping[str, Tensor], where: str) -> None:
    """Every tensor is there, with the shape that the configuration asks for."""
    expected = tensor_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
        raise ModelError(
            f"{where}: {len(missing)} of {len(expected)} tensors are missing: {shown};"
            " the download is not complete, or config.json is of another model"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ModelError(
                f"{where}: tensor {name} has shape {tensors[name].shape}, the configuration asks for {shape};"
                " weights and configuration do not belong together"
            )


@dataclass(frozen=True, slots=True)
class _Loader:
    """Fills arrays from tensors; one block (embedding, layer, head) at a time on each thread."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    dtype: np.dtype
    devices: Devices

    def load(self, progress: Progress) -> Params:
        num_layers = self.config.num_layers
        with ThreadPoolExecutor(LOAD_THREADS, thread_name_prefix="load") as pool:
            embed = pool.submit(self._vocabulary, "model.embed_tokens.weight")
            head = None if self.config.tie_embeddings else pool.submit(self._vocabulary, "lm_head.weight")
            pending = [pool.submit(self._layer, index) for index in range(num_layers)]
            layers = []
            for index, layer in enumerate(pending):
                layers.append(layer.result())
                progress(index + 1, num_layers, f"layer {index + 1} of {num_layers}")
            final_norm = self._norm("model.norm.weight")
            return Params(embed.result(), tuple(layers), final_norm, None if head is None else head.result())

    def _layer(self, index: int) -> LayerParams:
        def norm(part: str) -> jax.Array:
            return self._norm(layer_name(index, part, "weight"))

        def weight(spec: PartitionSpec, *parts: str) -> jax.Array:
            return self._matrix(spec, *(layer_name(index, part, "weight") for part in parts))

        def bias(wanted: bool, spec: PartitionSpec, *parts: str) -> jax.Array | None:
            return self._matrix(spec, *(layer_name(index, part, "bias") for part in parts)) if wanted else None

        config = self.config
        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        gate_up = ("mlp.gate_proj", "mlp.up_proj")
        return LayerParams(
            input_norm=norm("input_layernorm"),
            qkv=weight(LAYER_CUT.qkv, *qkv),
            qkv_bias=bias(config.qkv_bias, LAYER_CUT.qkv_bias, *qkv),
            q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
            output=weight(LAYER_CUT.output, "self_attn.o_proj"),
            output_bias=bias(config.output_bias, LAYER_CUT.output_bias, "self_attn.o_proj"),
            post_norm=norm("post_attention_layernorm"),
            gate_up=weight(LAYER_CUT.gate_up, *gate_up),
            gate_up_bias=bias(config.mlp_bias, LAYER_CUT.gate_up_bias, *gate_up),
            down=weight(LAYER_CUT.down, "mlp.down_proj"),
            down_bias=bias(config.mlp_bias, LAYER_CUT.down_bias, "mlp.down_proj"),
        )

    def _norm(self, name: str) -> jax.Array:
        return self.devices.put(self._read([name], np.dtype(np.float32))[0], WHOLE)

    def _vocabulary(self, name: str) -> jax.Array:
        return self.devices.put_vocabulary(self._read([name], self.dtype)[0])

    def _matrix(self, spec: PartitionSpec, *names: str) -> jax.Array:
        values, part_rows = self._read(names, self.dtype)
        return self.devices.put(values, spec, part_rows)

    def _read(self, names: Sequence[str], dtype: np.dtype) -> tuple[np.ndarray, list[int]]:
        """The named tensors one below the other, in host memory, and how many rows each has."""
        tensors = [self.tensors[name] for name in names]
        part_rows = [tensor.shape[0] for tensor in tensors]
        out = np.empty((sum(part_rows), *tensors[0].shape[1:]), dtype)
        start = 0
        for tensor, rows in zip(tensors, part_rows, strict=True):
            tensor.read_into(out[start : start + rows])
            start += rows
        return out, part_rows
