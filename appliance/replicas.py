"""Which lanes run on which engine replica, and what a replica's engine is started with."""

from collections import Counter
from dataclasses import dataclass

import msgspec

from engine.wire import LANES, ONLY_ENGINE, EngineConfig

BATCH_NICE = 10
"""Added niceness of an engine that serves nothing but batch: on a CPU it gets about a tenth of the time that an interactive one wants."""
MAX_NICE = 19


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine, supervised as a process of its own."""

    name: str
    """Value of the metrics' label `engine`: its lanes joined, or `0` where it is the only one."""
    lanes: tuple[str, ...]


ONE_FOR_ALL = (Replica(ONLY_ENGINE, LANES),)


def read_replicas(text: str) -> tuple[Replica, ...]:
    """`fast,slow;batch` is two replicas; nothing is one for all lanes.

    Raises:
        ValueError: not every lane is named exactly once; the message says which one.
    """
    if not text.strip():
        return ONE_FOR_ALL
    groups = [tuple(lane.strip() for lane in group.split(",")) for group in text.split(";")]
    counts = Counter(lane for group in groups for lane in group)
    if strange := [lane for lane in counts if lane not in LANES]:
        raise ValueError(f"{strange[0]!r} is no lane" if strange[0] else "a lane's name is missing")
    if wrong := [lane for lane in LANES if counts[lane] != 1]:
        raise ValueError(f"lane {wrong[0]!r} is named {counts[wrong[0]]} times")
    return tuple(Replica("-".join(group), group) for group in groups) if len(groups) > 1 else ONE_FOR_ALL


def engine_of_lanes(replicas: tuple[Replica, ...]) -> dict[str, str]:
    """The replica's name of each lane."""
    return {lane: replica.name for replica in replicas for lane in replica.lanes}


def config_of(replica: Replica, config: EngineConfig) -> EngineConfig:
    """The engine's configuration for one replica: a folder of its own for the exported model, and batch work yields."""
    if replica.name == ONLY_ENGINE:
        return config
    nice = min(MAX_NICE, config.nice + BATCH_NICE) if replica.lanes == ("batch",) else config.nice
    return msgspec.structs.replace(config, export_dir=f"{config.export_dir}-{replica.name}", nice=nice)
