"""A machine as a simulation sees it: how long steps take and how much fits, as a JSON file that warm-up's measurement wrote."""

import dataclasses
import os
import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import TraceError
from engine.scheduling.plan import Bucket
from engine.scheduling.step_model import StepTimes

MACHINE_NAME = "machine.json"
"""In the folder that the engine exports its model to (`var/model`, as a rule): each start measures anew."""
DEFAULT_MACHINE = Path(__file__).parent / MACHINE_NAME
"""Such a file of the machine that the README's numbers are of."""
HOW = f"take {MACHINE_NAME} from the folder `model` of the data directory of a server that runs as wanted"
_BUCKET = re.compile(r"(?:d(\d+))?(?:p(\d+))?")


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured."""

    facts: "Facts"
    times: StepTimes


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model on a machine."""

    model: str
    device: str
    """The processor or card."""
    backend: str
    measured: str
    """The day."""
    vocab_size: int
    max_model_len: int
    num_pages: int
    """KV pages of `page_size` tokens."""
    page_size: int


class _File(Facts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    step_times: dict[str, float | dict[str, float]]
    """Fields of `StepTimes`; buckets by their names."""


def write_machine(path: Path, machine: Machine) -> None:
    """Write the file."""
    times: dict[str, Any] = {}
    for field in dataclasses.fields(StepTimes):
        value = getattr(machine.times, field.name)
        times[field.name] = {str(key): number for key, number in value.items()} if isinstance(value, Mapping) else value
    file = _File(**msgspec.structs.asdict(machine.facts), step_times=times)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


def read_machine(path: Path) -> Machine:
    """The machine of a file.

    Raises:
        TraceError: it is not there, or not what `write_machine` writes.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        known = {field.name for field in dataclasses.fields(StepTimes)}
        unknown = sorted(set(file.step_times) - known)
        if unknown:
            raise TraceError(f"{path}: step_times.{unknown[0]} is no number of the step-time model: {HOW}")
        times = StepTimes(**{name: _value(path, value) for name, value in file.step_times.items()})  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}: {HOW}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise TraceError(f"{path}: {error}: {HOW}") from error
    return Machine(Facts(**{name: getattr(file, name) for name in Facts.__struct_fields__}), times)


def missing_buckets(machine: Machine, wanted: Iterable[Bucket]) -> list[Bucket]:
    """Programs that were not measured."""
    return [bucket for bucket in wanted if bucket not in machine.times.base_s]


def _value(path: Path, value: float | dict[str, float]) -> float | dict[Bucket, float]:
    return {_bucket(path, name): number for name, number in value.items()} if isinstance(value, dict) else value


def _bucket(path: Path, name: str) -> Bucket:
    match = _BUCKET.fullmatch(name)
    if not name or match is None:
        raise TraceError(f"{path}: {name!r} is no step's name: write d8 for 8 decode rows, p64 for 64 prefill tokens, d8p64 for both")
    return Bucket(int(match[1] or 0), int(match[2] or 0))


def processor_name() -> str:
    """As Linux tells it, with the number of cores; elsewhere the architecture has to do."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"
