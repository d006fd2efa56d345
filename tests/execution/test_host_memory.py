"""What a step frees stays at hand: the next step does not fault it in again."""

import resource
import subprocess
import sys

import numpy as np

from engine.execution.host_memory import keep_freed_memory

SCRATCH_BYTES = 48 * 1024 * 1024
PAGE_BYTES = 4096


def faults_of_taking_and_freeing(times: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        np.empty(SCRATCH_BYTES, np.uint8)[::PAGE_BYTES] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def report() -> None:
    """Run in a process of its own: the setting can not be taken back."""
    before = faults_of_taking_and_freeing(4)
    kept = keep_freed_memory()
    faults_of_taking_and_freeing(2)  # the heap grows once
    print(int(kept), before, faults_of_taking_and_freeing(4))


def test_memory_that_was_freed_is_not_faulted_in_again() -> None:
    out = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True).stdout
    kept, before, after = map(int, out.split())
    assert not kept or after < before / 20


if __name__ == "__main__":
    report()
