"""Which programs XLA is asked to capture as CUDA graphs. That it does is for the GPU compiler to show (tests/kernels_gpu)."""

import pytest

from engine.execution.command_buffers import OPTION, compiler_options
from engine.execution.warmup import warm_up
from engine.kernels.xla_attention import XlaAttention
from engine.scheduling.plan import Bucket
from tests.execution.driver import CONFIG, LIMITS, tiny_params

DECODE, PREFILL, MIXED = Bucket(2, 0), Bucket(0, 16), Bucket(8, 16)


def test_decode_programs_of_a_gpu_are_captured_with_the_sums_of_a_split_model_and_the_samplers_branches() -> None:
    kinds = str(compiler_options(DECODE, "gpu", enforce_eager=False)[OPTION]).split(",")
    assert {"FUSION", "CUSTOM_CALL", "CUBLAS", "COLLECTIVES", "CONDITIONAL", "WHILE"} <= set(kinds)
    assert all(compiler_options(bucket, "gpu", enforce_eager=False) == {} for bucket in (PREFILL, MIXED))


@pytest.mark.parametrize("bucket", [DECODE, PREFILL, MIXED], ids=str)
def test_enforce_eager_switches_graphs_off_and_a_cpu_has_none(bucket: Bucket) -> None:
    assert compiler_options(bucket, "gpu", enforce_eager=True) == {OPTION: ""}
    assert compiler_options(bucket, "cpu", enforce_eager=False) == {}


def test_warm_up_hands_each_buckets_options_to_the_compiler() -> None:
    with pytest.raises(Exception, match="xla_no_such_option"):
        warm_up(
            CONFIG,
            tiny_params(),
            LIMITS,
            XlaAttention(),
            (PREFILL, DECODE),
            "float32",
            lambda *_: None,
            options_of=lambda bucket: {"xla_no_such_option": "true"} if bucket == DECODE else {},
        )
