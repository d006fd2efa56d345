"""Weights as pytrees. Every matrix is stored [out, in]: XLA's int8 products and the tied head are fastest so.

`Weight` is a dense array, or one of the quantised forms of `engine.kernels.products`.
"""

from typing import Any, NamedTuple

type Weight = Any
"""A matrix [out, in] in a form that `engine.kernels.products.product` takes."""


class LayerParams(NamedTuple):
    """One block. None where the architecture has no such tensor."""

    input_norm: Any  # [hidden] f32
    qkv: Weight  # [(H + 2K) * D, hidden]: q, then k, then v, heads in order
    qkv_bias: Any | None  # [(H + 2K) * D]
    q_norm: Any | None  # [D]
    k_norm: Any | None  # [D]
    output: Weight  # [hidden, H * D]
    output_bias: Any | None  # [hidden]
    post_norm: Any  # [hidden] f32
    gate_up: Weight  # [2 * intermediate, hidden]: gate, then up
    gate_up_bias: Any | None
    down: Weight  # [hidden, intermediate]
    down_bias: Any | None


type Layers = Any
"""One `LayerParams` a layer, or an `engine.kernels.cpu.decoder.NativeStack` that holds them all."""


class Params(NamedTuple):
    """The whole model. `head` is None where it is tied to `embed`."""

    embed: Any  # [V, hidden]
    layers: Layers
    final_norm: Any  # [hidden] f32
    head: Weight | None  # [V, hidden]
