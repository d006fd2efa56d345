"""The machine below: processor time and memory of both processes, the event loop's lag, the cards."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pynvml
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from appliance.telemetry import families as f
from appliance.telemetry.requests import histogram

LAG_EVERY_S = 0.1
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process used so far, and holds now."""

    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class CardUse:
    """A card as NVML sees it."""

    name: str
    """Number and name: `0 NVIDIA H200`."""
    utilization_ratio: float
    memory_used_bytes: int
    memory_total_bytes: int


class Cards(Protocol):
    """Where the use of cards is read."""

    def read(self) -> list[CardUse]:
        """All cards; none where there are none."""
        ...


class Nvml:
    """NVIDIA's management library. Without it, or without a card, there is nothing to read."""

    def __init__(self) -> None:
        self._handles: list[object] = []
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def read(self) -> list[CardUse]:
        cards: list[CardUse] = []
        for index, handle in enumerate(self._handles):
            with suppress(pynvml.NVMLError):  # a card may fall off the bus: the others are still shown
                memory: Any = pynvml.nvmlDeviceGetMemoryInfo(handle)
                rates: Any = pynvml.nvmlDeviceGetUtilizationRates(handle)
                cards.append(CardUse(f"{index} {pynvml.nvmlDeviceGetName(handle)}", rates.gpu / 100, memory.used, memory.total))
        return cards


def process_use(pid: int | None, proc: Path = PROC) -> ProcessUse | None:
    """Of a process, from Linux' /proc; None where there is no such process or no such folder."""
    if pid is None:
        return None
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # proc(5) counts from 1 and has pid and name before these: utime is 14, stime 15, rss 24
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUse(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


class HostMetrics(Collector):
    """Read when somebody asks, but for the lag, which is measured all the time."""

    def __init__(self, registry: CollectorRegistry, cards: Cards, device_hour_price: float) -> None:
        self.cards = cards
        self._device_hour_price = device_hour_price
        self.engine_pids: Callable[[], Sequence[int]] = tuple
        """The engines' processes; set by whoever starts them."""
        self._lag = histogram(registry, f.LOOP_LAG)
        self._engine_cpu_s: dict[int, float] = {}
        """Of each process of an engine so far."""
        registry.register(self)

    @property
    def metrics(self) -> tuple[Collector, ...]:
        """All of them, in the order they are shown."""
        return self._lag, self

    async def watch_loop(self) -> None:
        """Measure for ever how late the event loop is."""
        lag = self._lag.labels()
        while True:
            due_s = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            lag.observe(max(0.0, time.monotonic() - due_s))

    def describe(self) -> list[Metric]:
        """Nothing to describe up front: the registry would collect to find the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_processes()
        used = GaugeMetricFamily(f.GPU_USE.full_name, f.GPU_USE.help, labels=f.GPU_USE.labels)
        memory = GaugeMetricFamily(f.GPU_MEMORY.full_name, f.GPU_MEMORY.help, labels=f.GPU_MEMORY.labels)
        total = GaugeMetricFamily(f.GPU_MEMORY_TOTAL.full_name, f.GPU_MEMORY_TOTAL.help, labels=f.GPU_MEMORY_TOTAL.labels)
        for card in self.cards.read():
            used.add_metric((card.name,), card.utilization_ratio)
            memory.add_metric((card.name,), card.memory_used_bytes)
            total.add_metric((card.name,), card.memory_total_bytes)
        yield from (used, memory, total)
        yield GaugeMetricFamily(f.PRICE.full_name, f.PRICE.help, value=self._device_hour_price)

    def _collect_processes(self) -> Iterator[Metric]:
        cpu = CounterMetricFamily(f"fairlane_{f.PROCESS_CPU.name}", f.PROCESS_CPU.help, labels=f.PROCESS_CPU.labels)
        memory = GaugeMetricFamily(f.PROCESS_MEMORY.full_name, f.PROCESS_MEMORY.help, labels=f.PROCESS_MEMORY.labels)
        control = process_use(os.getpid())
        engines = {pid: use for pid in self.engine_pids() if (use := process_use(pid)) is not None}
        # over all engine processes so far: a counter does not fall when one is started again
        self._engine_cpu_s |= {pid: use.cpu_s for pid, use in engines.items()}
        if control is not None:
            cpu.add_metric(("control",), control.cpu_s)
            memory.add_metric(("control",), control.resident_bytes)
        if engines:
            cpu.add_metric(("engine",), sum(self._engine_cpu_s.values()))
            memory.add_metric(("engine",), sum(use.resident_bytes for use in engines.values()))
        yield from (cpu, memory)
