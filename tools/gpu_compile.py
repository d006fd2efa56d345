"""`make gpu-compile`: every GPU kernel and the engine's real steps through XLA's GPU compiler and ptxas, without a GPU.

usage: python -m tools.gpu_compile [--targets h200,a100,b200] [--only REGEX] [--write-table]

Writes var/gpu-compile.json: a list of {name, target, registers, spill_bytes, smem_bytes, seconds}, of a step its worst
kernel. Kernels are compared with tools/gpu_compile_table.json; what got worse is printed, and the exit status is 1.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.gpu_compile_kernels import compile_case, mosaic_cases, triton_cases
from tools.gpu_compile_steps import DEVICES, compile_step, step_cases
from tools.gpu_compile_table import TABLE_PATH, complaints, read_table, write_table
from tools.gpu_compile_target import CARDS, Target

OUT_PATH = "var/gpu-compile.json"


def compile_all(targets: list[str], only: re.Pattern[str]) -> Iterator[dict[str, Any]]:
    """Records, kernels before steps, as they are done."""
    for target_name in targets:
        target = Target(target_name)
        for case in (*triton_cases(target_name), *mosaic_cases(target_name)):
            if only.search(case.name):
                yield compile_case(case, target)
        for step in step_cases(target_name):
            if only.search(step.name):
                count = DEVICES.get(step.model, 1)
                yield compile_step(step, target if count == 1 else Target(target_name, count))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--targets", default=",".join(CARDS), help="cards, of h200, a100, b200")
    parser.add_argument("--only", default="", help="a regular expression that names must match")
    parser.add_argument("--out", type=Path, default=Path(OUT_PATH), help=f"where the records go (default {OUT_PATH})")
    parser.add_argument("--write-table", action="store_true", help=f"make {TABLE_PATH} say what came out")
    options = parser.parse_args(arguments)
    records, worse = [], []
    table = {} if options.write_table else read_table()
    for made in compile_all(options.targets.split(","), re.compile(options.only)):
        records.append(made)
        sizes = (
            f"{made['registers']:4} registers {made['spill_bytes']:5} B spilled {made['smem_bytes']:7} B shared {made['seconds']:6.2f} s"
        )
        graphs = f" {made['launches']:4} launches" if "launches" in made else ""
        print(f"{made['target']:5} {made['name']:48} {sizes}{graphs}", flush=True)
        worse += complaints(made, table)
    if options.write_table:
        write_table(records)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(records, indent=1) + "\n")
    for line in worse:
        print(line, file=sys.stderr)
    print(f"{len(records)} programs compiled, {len(worse)} complaints; {options.out}")
    return 1 if worse or not records else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
