"""What a benchmark with bars leaves behind: its figures beside their bars as text, and everything as a JSON file."""

import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers import machine
from benchmarks.tail.case import Figure
from benchmarks.tail.text import figure_table

RESULTS = Path(__file__).parent / "results"


def keep(name: str, figures: Sequence[Figure], numbers: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Print the figures and write them, with the numbers they came from and the machine, to a file named by the time."""
    now = datetime.datetime.now(datetime.UTC)
    shown = [{**asdict(figure), "verdict": figure.verdict} for figure in figures]
    record = {"when": now.isoformat(timespec="seconds"), "machine": machine(), "load_average": os.getloadavg(), "figures": shown, **numbers}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(figure_table(figures))
    return path
