"""Runs a trace through the scheduler, measures the machine's capacity for it, and finds the largest load that holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from engine.errors import ConfigError
from engine.scheduling.limits import Limits, limits_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner
from engine.scheduling.simulator import Served, Simulator
from engine.scheduling.step_model import StepModel
from engine.simulation.figures import Collector, Figures, jain_index
from engine.simulation.machine import HOW, Machine, missing_buckets
from engine.simulation.trace import TraceRow
from engine.simulation.workload import Shape, arrived_s, policies_of, shaped, submits, tenants_of
from engine.wire import EngineConfig, TenantPolicy

CAPACITY_REQUESTS = 600
"""Of a trace, evenly picked, run as one backlog to find how fast the machine can be."""
CAPACITY_PART = 0.9
"""The end of a backlog does not count: rows stand empty there."""
SEARCH_STEPS = 7
"""Of a bisection: to a hundredth of its first interval."""

SEARCH_SPAN = 1024
"""No load beyond so many times the first is tried, nor below its part."""

type OnProgress = Callable[[int, int], None]
"""Requests ended, of how many."""


@dataclass(frozen=True, slots=True)
class Study:
    """A trace, a machine and a configuration."""

    rows: Sequence[TraceRow]
    machine: Machine
    config: EngineConfig
    base_policy: TenantPolicy
    given_policies: tuple[TenantPolicy, ...] = ()

    def limits(self) -> Limits:
        """Raises ConfigError where the configuration wants a step that was not measured."""
        config, facts = self.config, self.machine.facts
        limits = limits_of(
            config,
            vocab_size=facts.vocab_size,
            eos_token_ids=(),
            max_model_len=config.max_model_len or facts.max_model_len,
            num_pages=config.num_gpu_blocks_override or facts.num_pages * facts.page_size // config.block_size,
            cache_version="simulated",
        )
        missing = missing_buckets(self.machine, limits.buckets.all())
        if missing:
            raise ConfigError(f"the machine's file has no step {missing[0]}: change the rows or buckets, or {HOW}")
        return limits

    def run(self, shape: Shape, on_progress: OnProgress = lambda _done, _of: None) -> Figures:
        """One replay."""
        limits, count = self.limits(), shape.num_requests or len(self.rows)
        policies = self._policies(shape, limits)
        collector, gap = Collector(policies), CounterGap()
        last_ns = round(arrived_s(self.rows, shape, count - 1) * 1e9)
        scheduler = Scheduler(limits, model=StepModel(self.machine.times))
        scheduler.set_policies(policies.values())

        def on_end(served: Served) -> None:
            collector.take(served, last_ns)
            on_progress(collector.ended, count)

        def on_step() -> None:
            gap.look(scheduler)

        simulator = Simulator(scheduler, QuickRunner(limits.vocab_size), self.machine.times, on_end=on_end, on_step=on_step)
        simulator.follow(submits(shaped(self.rows, shape, limits.max_model_len), shape, policies, limits.vocab_size))
        simulator.run()
        tenants, virtual_s = collector.tenants(), simulator.now_ns / 1e9
        return Figures(
            total=collector.total(),
            tenants=tenants,
            virtual_s=virtual_s,
            steps=simulator.num_steps,
            tokens_per_s=sum(figures.tokens for figures in tenants) / virtual_s,
            jain_index=jain_index([figures.served_share for figures in tenants]),
            vtc_gap=gap.largest,
            vtc_bound=limits.max_num_seqs * collector.costliest / min(policy.weight for policy in policies.values()),
        )

    def capacity_rps(self, shape: Shape) -> float:
        """Requests a second where there are always more: a sample of the trace, all of which waits from the start."""
        count = min(CAPACITY_REQUESTS, len(self.rows))
        sample = [self.rows[index * len(self.rows) // count] for index in range(count)]
        limits, ended_ns = self.limits(), list[int]()
        # nobody may give up waiting: it would count as done
        policies = {name: msgspec.structs.replace(each, queue_ttl_s=None) for name, each in self._policies(shape, limits).items()}
        scheduler = Scheduler(limits, model=StepModel(self.machine.times))
        scheduler.set_policies(policies.values())
        simulator = Simulator(
            scheduler, QuickRunner(limits.vocab_size), self.machine.times, on_end=lambda served: ended_ns.append(served.ended_ns)
        )
        backlog = [replace(row, arrived_s=0.0) for row in sample]
        shape = replace(shape, num_requests=count)
        simulator.add(submits(shaped(backlog, shape, limits.max_model_len), shape, policies, limits.vocab_size))
        simulator.run()
        enough = max(1, round(CAPACITY_PART * count))
        return enough / (ended_ns[enough - 1] / 1e9)

    def trace_rps(self, shape: Shape) -> float:
        """Requests a second of the trace as it is; 0 where it has no times."""
        end_s = arrived_s(self.rows, replace(shape, speed=1.0), len(self.rows) - 1)
        return len(self.rows) / end_s if end_s else 0.0

    def _policies(self, shape: Shape, limits: Limits) -> dict[str, TenantPolicy]:
        once = replace(shape, num_requests=min(shape.num_requests, len(self.rows)))
        return policies_of(tenants_of(shaped(self.rows, once, limits.max_model_len)), self.base_policy, self.given_policies)


@dataclass(slots=True)
class CounterGap:
    """Of tenants that wait, how far the most served one's counter was ever ahead of the least served one's."""

    largest: float = 0.0

    def look(self, scheduler: Scheduler) -> None:
        """After a step."""
        counters = [account.counter for account in scheduler.accounts.waiting()]
        if len(counters) > 1:
            self.largest = max(self.largest, max(counters) - min(counters))


@dataclass(frozen=True, slots=True)
class Trial:
    """One load that was tried."""

    load: float
    attainment: float


def largest_load(attainment_at: Callable[[float], float], objective: float, first: float = 1.0) -> tuple[float, list[Trial]]:
    """The largest load at which attainment holds, by doubling or halving from `first` and then bisection (0: not even a thousandth of
    `first` holds), and all loads that were tried."""
    trials: list[Trial] = []

    def holds(load: float) -> bool:
        trials.append(Trial(load, attainment_at(load)))
        return trials[-1].attainment >= objective

    low = first
    if holds(low):
        while low < SEARCH_SPAN * first and holds(2 * low):
            low *= 2
    else:
        low /= 2
        while not holds(low):
            low /= 2
            if low * SEARCH_SPAN < first:
                return 0.0, trials
    high = 2 * low
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, sorted(trials, key=lambda trial: trial.load)
