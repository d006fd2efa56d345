"""What GPU kernels take of a card, without one: the committed table, and a fresh compile beside it where the compiler is."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tools.gpu_compile_kernels import mosaic_cases, triton_cases
from tools.gpu_compile_table import KEY_FIELDS, MAX_SPILL_BYTES, complaints, read_table
from tools.gpu_compile_target import CARDS

COMPILER_PYTHON = Path(os.environ.get("FAIRLANE_GPU_COMPILE_PYTHON", ".venv-gpu/bin/python"))
CHECKED = "^triton/(decode|prefill|write)/llama-3-8b/int8/page16|^mosaic/(decode|prefill)/llama-3-8b/int8/page16|^step/qwen3-0.6b/int8/d2$"
"""A few for Hopper; `.ci/run` compiles all kernels and the ends of every model's steps, also for Ampere, with the same complaints."""

GOOD = {
    "name": "triton/decode/llama-3-8b/bfloat16/page16",
    "target": "h200",
    "registers": 96,
    "spill_bytes": 0,
    "programs_per_core": 5,
    "cache_copies": 0,
    "serialised_wgmma": 0,
    "eager_launches": 0,
}


def test_table_has_every_kernel_of_every_card_that_can_run_it() -> None:
    cases = {(case.name, card): case.key for card in CARDS for case in (*triton_cases(card), *mosaic_cases(card))}
    table = read_table()
    assert {key: {field: row[field] for field in KEY_FIELDS} for key, row in table.items()} == cases
    assert len({(*name.split("/")[:2], *cases[name, card].values()) for name, card in table}) == len(table), "two rows say the same"


def test_no_kernel_in_the_table_spills_more_than_its_card_may() -> None:
    assert not [row for row in read_table().values() if row["spill_bytes"] > MAX_SPILL_BYTES[row["target"]]]


def test_no_mosaic_kernel_in_the_table_waits_after_each_tensor_core_instruction() -> None:
    waits = {name: row["serialised_wgmma"] for (name, _), row in read_table().items() if name.startswith("mosaic/")}
    assert waits and not any(waits.values())


@pytest.mark.parametrize(
    "worse",
    [
        {"registers": 120},
        {"spill_bytes": 4},
        {"programs_per_core": 4},
        {"cache_copies": 1},
        {"serialised_wgmma": 2},
        {"eager_launches": 3},
    ],
    ids=str,
)
def test_a_kernel_that_got_worse_is_complained_about(worse: dict[str, int]) -> None:
    table = {(GOOD["name"], GOOD["target"]): GOOD}
    assert complaints(GOOD, table) == []
    assert len(complaints(GOOD | worse, table)) == 1


@pytest.mark.timeout(600)
def test_kernels_compiled_now_are_no_worse_than_the_table_and_a_decode_step_is_one_cuda_graph(tmp_path: Path) -> None:
    if not COMPILER_PYTHON.exists():
        reason = f"{COMPILER_PYTHON} is not there: `make gpu-compile` installs XLA's GPU compiler (1.2 GB)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [COMPILER_PYTHON, "-W", "ignore", "-m", "tools.gpu_compile", "--targets", "h200", "--only", CHECKED]
    done = subprocess.run([*command, "--out", tmp_path / "out.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *kernels, step = json.loads((tmp_path / "out.json").read_text())
    assert len(kernels) == 5
    assert (step["backend"], step["command_buffers"], step["launches"]) == ("pallas-mosaic", 1, 1)
    assert step["cache_copies"] == 0 and 0 < step["widest_sort"] < 20_000, "no sort of 151,936 columns, which a sampled row would need"
