"""Tells the C library to keep what a step frees, so that the next step finds it."""

import ctypes

KEPT_BYTES = 512 * 1024 * 1024
"""Larger than the scratch memory of any step."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """From now on blocks up to `KEPT_BYTES` come from the heap, and what is freed stays there; False where malloc has no such setting.

    A step's program takes its scratch memory anew each time: five times the logits. From 32 MiB on glibc maps it, and the kernel
    then zeroes 4 KiB at a time while the step runs: at 36 rows of SmolLM2 6 of 41 ms. Called once the weights are loaded: what is
    freed while they load should go back.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl, macOS
        return False
    return bool(mallopt(MMAP_THRESHOLD, KEPT_BYTES) and mallopt(TRIM_THRESHOLD, KEPT_BYTES))
