"""The tiny model served on two devices made of this machine's CPU writes what it writes on one."""

import os
import subprocess
import sys
from pathlib import Path

from tests.appliance import Appliance, start_appliance
from tests.parity.conftest import SERVED_FLAGS
from tests.parity.served import PROMPTS, ask_alone, ask_together, greedy, texts

TWO_DEVICES = "--xla_force_host_platform_device_count=2"
QUICK_COMPILE = "--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0"
FEW_BUCKETS = ("--decode-buckets", "8", "--prefill-buckets", "64", "--mixed-decode-buckets", "8", "--mixed-prefill-buckets", "64")
GREEDY = [greedy(prompt) for prompt in PROMPTS[::2]]


def test_text_is_the_same_on_two_devices(baseline: Appliance, tiny_model: Path, tmp_path: Path) -> None:
    """Pages leave for the host and come back on the way."""
    flags = (*SERVED_FLAGS, *FEW_BUCKETS, "--max-num-seqs", "8", "--tensor-parallel-size", "2", "--preempt-every-steps", "7")
    environment = {"XLA_FLAGS": f"{TWO_DEVICES} {QUICK_COMPILE}"}
    with start_appliance(tmp_path, *flags, model=str(tiny_model), env=environment) as split:
        got, log = texts(ask_together(split, GREEDY)), split.log()
    expected = texts(ask_alone(baseline, GREEDY))
    assert len(set(expected)) == len(GREEDY)
    assert got == expected
    assert "split over 2 devices" in log
    assert ", xla (the fastest that can run here; no native kernels: they run all layers in one call, on one device" in log
    assert "split over" not in baseline.log()


def test_heads_that_do_not_divide_end_the_start_with_what_to_do(tmp_path: Path) -> None:
    """SmolLM2 has nine query heads and three KV heads."""
    command = [sys.executable, "-m", "appliance.cli.main", "serve", "--port", "0", "--data-dir", tmp_path, "--tensor-parallel-size", "2"]
    environment = {**os.environ, "XLA_FLAGS": TWO_DEVICES, "FAIRLANE_BOOTSTRAP_API_KEY": "test-key-0123456789abcdef"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in said, said
    assert "tensor_parallel_size is 2" in said and "9 query heads, 3 KV heads" in said and "give 1 or 3" in said, said
