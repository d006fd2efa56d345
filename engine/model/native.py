"""Weights in the form of the native CPU kernels: packed from dense ones, or a GGUF file's own blocks re-ordered."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gguf
import jax
import jax.numpy as jnp
import numpy as np

from engine.kernels.cpu.products import NativeWeight, pack_bf16, pack_int8, pack_q4_0, pack_q4_1, pack_q8_0
from engine.model.checkpoint import LOAD_THREADS, load_gguf_blocks
from engine.model.config import ModelConfig
from engine.model.gguf_file import GgufTensor
from engine.model.params import LayerParams, Params
from engine.model.source import ModelSource
from engine.model.tensors import layer_name

PACKERS = {
    gguf.GGMLQuantizationType.Q4_0: pack_q4_0,
    gguf.GGMLQuantizationType.Q4_1: pack_q4_1,
    gguf.GGMLQuantizationType.Q8_0: pack_q8_0,
}

MATRICES = ("qkv", "output", "gate_up", "down")


def native_params(params: Params, isa_level: int, *, int8: bool) -> Params:
    """Dense bf16 weights packed; with `int8` the layers' matrices are rounded (the head, and a tied embedding, are not).

    A tied embedding is kept once, packed: the head streams it, the look-up picks rows from it.
    """
    pack_layer = partial(pack_int8 if int8 else pack_bf16, isa_level=isa_level)
    pack_head = partial(pack_bf16, isa_level=isa_level)

    def layer(dense: LayerParams) -> LayerParams:
        return dense._replace(**{name: pack_layer(np.asarray(getattr(dense, name))) for name in MATRICES})

    with ThreadPoolExecutor(LOAD_THREADS, thread_name_prefix="pack") as pool:
        if params.head is None:
            embed, head = pool.submit(pack_head, np.asarray(params.embed)), None
        else:
            embed, head = None, pool.submit(pack_head, np.asarray(params.head))
        layers = tuple(pool.map(layer, params.layers))
        return Params(params.embed if embed is None else embed.result(), layers, params.final_norm, head and head.result())


def native_gguf_params(source: str | ModelSource, isa_level: int) -> tuple[ModelConfig, Params]:
    """A GGUF file's blocks as they are, re-ordered; what is not in blocks that the kernels know is read as bf16.

    Raises:
        ModelError: the source is no GGUF file, or a damaged one.
    """
    config, tensors = load_gguf_blocks(source)
    loader = _BlockLoader(config, tensors, isa_level)
    with ThreadPoolExecutor(LOAD_THREADS, thread_name_prefix="pack") as pool:
        embed = pool.submit(loader.matrix, ["model.embed_tokens.weight"])
        head = None if config.tie_embeddings else pool.submit(loader.matrix, ["lm_head.weight"])
        layers = tuple(pool.map(loader.layer, range(config.num_layers)))
        final_norm = loader.vector("model.norm.weight", jnp.float32)
        return config, Params(embed.result(), layers, final_norm, head and head.result())


class _BlockLoader:
    def __init__(self, config: ModelConfig, tensors: dict[str, GgufTensor], isa_level: int) -> None:
        self._config = config
        self._tensors = tensors
        self._isa_level = isa_level

    def layer(self, index: int) -> LayerParams:
        config = self._config
        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        gate_up = ("mlp.gate_proj", "mlp.up_proj")

        def names(parts: Sequence[str], kind: str) -> list[str]:
            return [layer_name(index, part, kind) for part in parts]

        def bias(wanted: bool, *parts: str) -> jax.Array | None:
            return jnp.concatenate([self.vector(name, jnp.bfloat16) for name in names(parts, "bias")]) if wanted else None

        def norm(part: str) -> jax.Array:
            return self.vector(layer_name(index, part, "weight"), jnp.float32)

        return LayerParams(
            input_norm=norm("input_layernorm"),
            qkv=self.matrix(names(qkv, "weight")),
            qkv_bias=bias(config.qkv_bias, *qkv),
            q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
            k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
            output=self.matrix(names(["self_attn.o_proj"], "weight")),
            output_bias=bias(config.output_bias, "self_attn.o_proj"),
            post_norm=norm("post_attention_layernorm"),
            gate_up=self.matrix(names(gate_up, "weight")),
            gate_up_bias=bias(config.mlp_bias, *gate_up),
            down=self.matrix(names(["mlp.down_proj"], "weight")),
            down_bias=bias(config.mlp_bias, "mlp.down_proj"),
        )

    def matrix(self, names: Sequence[str]) -> NativeWeight:
        """The named matrices one below the other."""
        tensors = [self._tensors[name] for name in names]
        pack = PACKERS.get(tensors[0].kind)
        if pack is not None and all(tensor.kind == tensors[0].kind for tensor in tensors):
            return pack(np.concatenate([tensor.rows for tensor in tensors]), self._isa_level)
        dense = np.empty((sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]), jnp.bfloat16)
        start = 0
        for tensor in tensors:
            tensor.read_into(dense[start : start + tensor.shape[0]])
            start += tensor.shape[0]
        return pack_bf16(dense, self._isa_level)

    def vector(self, name: str, dtype: jax.typing.DTypeLike) -> jax.Array:
        tensor = self._tensors[name]
        values = np.empty(tensor.shape, np.float32)
        tensor.read_into(values)
        return jnp.asarray(values, dtype)
