"""Blocks of every GGUF type come out as the `gguf` package itself dequantises them."""

import gguf
import numpy as np
import pytest

from engine.model.gguf_file import DEQUANTISE_ELEMENTS, GgufTensor

KINDS = [gguf.GGMLQuantizationType[name] for name in ("F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ3_S", "IQ4_XS")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random scales overflow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_blocks_of_each_type_are_dequantised_whatever_the_number_of_portions(kind: gguf.GGMLQuantizationType) -> None:
    width = 1024
    num_rows = DEQUANTISE_ELEMENTS // width + 5  # one full portion and a part of one
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows = np.random.RandomState(0).randint(0, 256, (num_rows, width // block_elements * block_bytes)).astype(np.uint8)
    out = np.empty((num_rows, width), np.float32)
    GgufTensor("t", out.shape, kind, rows).read_into(out)
    np.testing.assert_array_equal(out, gguf.dequantize(rows, kind).astype(np.float32))
