"""Choosing an attention backend: the best one that can, with a reason, and a fallback rather than an error."""

from dataclasses import dataclass

import pytest

from engine.errors import ConfigError
from engine.kernels.attention import AttentionShape
from engine.kernels.select import choose_backend
from engine.kernels.xla_attention import XlaAttention

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, page_size=16, scale=0.35)


@dataclass(frozen=True)
class Only8Bit(XlaAttention):
    """A backend for one KV type."""

    name: str = "eight"

    def supports(self, shape: AttentionShape, kv_dtype: str) -> bool:
        return kv_dtype == "int8"


AVAILABLE = (Only8Bit(), XlaAttention())


def test_auto_takes_the_first_that_can() -> None:
    assert choose_backend("auto", AVAILABLE, SHAPE, "int8").backend.name == "eight"
    assert choose_backend("auto", AVAILABLE, SHAPE, "float32").backend.name == "xla"


def test_where_only_the_last_one_can_it_says_what_that_costs() -> None:
    chosen = choose_backend("auto", AVAILABLE, SHAPE, "float8_e4m3fn")
    assert chosen.reason == "eight can not do head dim 8 with float8_e4m3fn KV here; xla runs instead, slowly"
    assert chosen.fell_back
    for wished in (choose_backend("auto", AVAILABLE, SHAPE, "int8"), choose_backend("auto", AVAILABLE[1:], SHAPE, "float8_e4m3fn")):
        assert (wished.reason, wished.fell_back) == ("the fastest that can run here", False)


def test_a_named_backend_that_can_not_falls_back_and_says_why() -> None:
    chosen = choose_backend("eight", AVAILABLE, SHAPE, "float32")
    assert (chosen.backend.name, chosen.fell_back) == ("xla", True)
    assert "eight can not do" in chosen.reason


def test_a_backend_that_is_not_there_falls_back_and_says_so() -> None:
    chosen = choose_backend("pallas-triton", AVAILABLE, SHAPE, "bfloat16")
    assert (chosen.backend.name, chosen.fell_back) == ("xla", True)
    assert "not available" in chosen.reason


def test_a_type_that_nobody_can_is_an_error_with_the_names() -> None:
    with pytest.raises(ConfigError, match="eight, xla"):
        choose_backend("auto", AVAILABLE, SHAPE, "float16")
