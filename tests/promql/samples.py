"""A made-up hour of every declared family, kept in memory and, the same, in a real Prometheus."""

import contextlib
import itertools
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from appliance.promql.source import Samples
from appliance.promql.values import Labels
from appliance.telemetry import families as f
from appliance.telemetry.families import FAMILIES, Family
from tests.appliance import require_service
from tests.observability.monitoring import free_port, process

EVERY_MS = 15_000
NUM_TICKS = 240
FIRST_MS = 1_800_000_000_000
LAST_MS = FIRST_MS + (NUM_TICKS - 1) * EVERY_MS

CHOICES: Mapping[str, Sequence[str]] = {
    "lane": ("fast", "batch"), "tenant": ("acme", "noisy"), "victim": ("acme", "noisy"), "culprit": ("noisy", "other"),
    "slo": ("ttft", "tpot"), "outcome": (*f.SLO_OUTCOMES, "completed"), "reason": ("budget", "queue_full"), "phase": f.STEP_PHASES,
    "state": f.PAGE_STATES, "process": f.PROCESSES, "kind": f.ROW_KINDS, "direction": f.DIRECTIONS, "window": ("5m",),
}  # fmt: skip
"""Values of labels; a label that is not here has one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Samples in memory, as a source."""

    times_ms: Sequence[int]
    by_name: Mapping[str, Sequence[Samples]]

    def select(self, name: str, is_wanted: Callable[[Labels], bool]) -> Iterator[Samples]:
        return (each for each in self.by_name.get(name, ()) if is_wanted(each.labels))


def made_up(seed: int = 7) -> Kept:
    """Counters rise by fits and starts, begin late, and begin again; gauges wander. A family's are its own, whatever others there are."""
    by_name: dict[str, list[Samples]] = {}
    for family in FAMILIES:
        rng = random.Random(f"{seed} {family.name}")
        for number, values in enumerate(itertools.product(*(CHOICES.get(name, ("x",)) for name in family.labels))):
            for name, more, column in _series(family, rng, rests=number > 0 and rng.random() < 0.1):
                labels = {**dict(zip(family.labels, values, strict=True)), **more}
                by_name.setdefault(name, []).append(Samples(labels, column))
    return Kept(list(_times_ms(random.Random(seed))), by_name)


def _times_ms(rng: random.Random) -> Iterator[int]:
    """As scrapes come: late by fits, and now and then one is missed. None lies on a whole second, so none on a window's border."""
    for tick in range(NUM_TICKS):
        late_ms = rng.choice((0, 0, 1_300, 3_700)) + (EVERY_MS // 2 if tick % 17 == 0 else 0)
        yield FIRST_MS + tick * EVERY_MS + late_ms + 123


def _series(family: Family, rng: random.Random, *, rests: bool) -> Iterator[tuple[str, dict[str, str], Sequence[float | None]]]:
    """`rests`: a counter that does not rise."""
    born = rng.choice((0, 0, 0, 97))
    match family.kind:
        case "gauge":
            yield family.full_name, {}, [None if tick < born else rng.uniform(0.1, 9) for tick in range(NUM_TICKS)]
        case "counter":
            yield family.full_name, {}, _counter(rng, born, 0.0 if rests else rng.choice((0.3, 5.0)))
        case "histogram":
            bounds = ["0", *(f"{bound:g}" for bound in family.grid_s[::9]), "+Inf"]
            cumulated: Sequence[float | None] = [None if tick < born else 0.0 for tick in range(NUM_TICKS)]
            for bound in bounds:
                own = _counter(rng, born, rng.choice((0.0, 0.2, 2.0)), restarts=False)
                cumulated = [None if a is None or b is None else a + b for a, b in zip(cumulated, own, strict=True)]
                yield f"{family.full_name}_bucket", {"le": bound}, cumulated
            yield f"{family.full_name}_count", {}, cumulated


def _counter(rng: random.Random, born: int, pace: float, *, restarts: bool = True) -> Sequence[float | None]:
    column: list[float | None] = []
    value = rng.choice((0.0, 40.0))
    for tick in range(NUM_TICKS):
        value += rng.choice((0.0, 0.0, rng.random())) * pace  # no two series are alike: `topk` has one answer
        if restarts and rng.random() < 0.01:
            value = 0.0
        column.append(value if tick >= born else None)
    return column


@contextlib.contextmanager
def prometheus_with(kept: Kept, folder: Path) -> Iterator[str]:
    """The URL of a Prometheus that has the same samples, until the block ends."""
    require_service("Prometheus", program="prometheus")
    require_service("promtool", program="promtool")
    lines = [
        f"{name}{{{','.join(f'{label}="{text}"' for label, text in each.labels.items())}}} {value!r} {time_ms / 1000:.3f}\n"
        for name, series in kept.by_name.items()
        for each in series
        for time_ms, value in zip(kept.times_ms, each.values, strict=True)
        if value is not None
    ]
    (folder / "samples.txt").write_text("".join(lines) + "# EOF\n")
    (folder / "prometheus.yaml").write_text("")
    backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "tsdb"]
    subprocess.run(backfill, cwd=folder, check=True, capture_output=True)
    port = free_port()
    command = ["prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb", "--storage.tsdb.retention.time=100y"]
    with process([*command, f"--web.listen-address=127.0.0.1:{port}"], folder):
        url = f"http://127.0.0.1:{port}"
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(transport=transport) as client:
            while client.get(f"{url}/-/ready").status_code != 200:
                pass  # it answers within milliseconds
        yield url
