"""Which programs XLA captures as command buffers (CUDA graphs): one launch where a decode step has hundreds of small kernels.

XLA records a command buffer when its program runs for the first time; that is in the warm-up, which calls each (`warmup._call_each`).
Prefill steps are long enough to hide their launches, so they keep what XLA does by itself.
"""

from engine.scheduling.plan import Bucket

OPTION = "xla_gpu_enable_command_buffer"
CAPTURED = ("FUSION", "CUBLAS", "CUBLASLT", "CUDNN", "CUSTOM_CALL", "COLLECTIVES", "CONDITIONAL", "WHILE")
"""XLA's kinds of commands. A split model's sums are collectives; the sampler's branches and loops are the last two."""
NO_SLICE_FUSION = {"xla_gpu_enable_dynamic_slice_fusion": False}
"""Fused with the slice of an argument (a page table is a part of the step's one input buffer) a Mosaic kernel is not captured."""


def compiler_options(bucket: Bucket, platform: str, *, enforce_eager: bool) -> dict[str, str | bool]:
    """XLA's options for a bucket's program; `platform` is that of JAX's devices, and any but `gpu` has no command buffers."""
    if platform != "gpu":
        return {}
    if enforce_eager:
        return {OPTION: ""}
    return {} if bucket.prefill_tokens else {OPTION: ",".join(CAPTURED), **NO_SLICE_FUSION}
