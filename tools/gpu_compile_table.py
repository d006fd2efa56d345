"""The committed register table: what every kernel took when it was last looked at, and what counts as worse."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

TABLE_PATH = Path(__file__).with_suffix(".json")

MAX_SPILL_BYTES = {"h200": 0, "a100": 64, "b200": 128}
REGISTER_SLACK = 8
"""Another ptxas moves a kernel by a register or two; eight are a whole allocation step."""

KEY_FIELDS = ("arch", "kv_dtype", "head_dim", "group", "page_tokens")
MEASURED = ("registers", "spill_bytes", "smem_bytes", "threads", "programs_per_core", "serialised_wgmma")
KEPT = ("name", "target", *KEY_FIELDS, *MEASURED)

type Key = tuple[str, str]


def read_table() -> dict[Key, dict[str, Any]]:
    """Records by (name, target)."""
    return {(row["name"], row["target"]): row for row in json.loads(TABLE_PATH.read_text())["kernels"]}


def write_table(records: list[dict[str, Any]]) -> None:
    """Puts kernels into the table; those that were not compiled stay. One a line, so that a change is a line in a diff."""
    versions = {name: version(name) for name in ("jax", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")}
    rows = read_table() | {(made["name"], made["target"]): made for made in records if "programs_per_core" in made}
    lines = ",\n".join("  " + json.dumps({key: row[key] for key in KEPT}) for _, row in sorted(rows.items()))
    TABLE_PATH.write_text(f'{{\n "versions": {json.dumps(versions)},\n "kernels": [\n{lines}\n ]\n}}\n')


def complaints(made: dict[str, Any], table: dict[Key, dict[str, Any]]) -> list[str]:
    """What is wrong with a compiled program, by itself and beside the table; a program that the table lacks is judged alone."""
    who = f"{made['target']} {made['name']}"
    found = []
    if "programs_per_core" in made and made["spill_bytes"] > MAX_SPILL_BYTES[made["target"]]:
        found.append(f"{who} spills {made['spill_bytes']} bytes, at most {MAX_SPILL_BYTES[made['target']]} are allowed")
    if made["cache_copies"]:
        found.append(f"{who} copies a whole KV array {made['cache_copies']} times")
    if made.get("eager_launches"):
        found.append(f"{who} starts {made['eager_launches']} kernels outside of its CUDA graph: a decode step is one")
    known = table.get((made["name"], made["target"]))
    if made["serialised_wgmma"] and not (known is not None and known["serialised_wgmma"]):
        found.append(f"{who} waits after each tensor core instruction (ptxas C75xx), the table does not say so")
    if known is not None and made["registers"] > known["registers"] + REGISTER_SLACK:
        found.append(f"{who} takes {made['registers']} registers, the table says {known['registers']}")
    if known is not None and made["programs_per_core"] < known["programs_per_core"]:
        found.append(f"{who} fits {made['programs_per_core']} times on a core, the table says {known['programs_per_core']}")
    return found
