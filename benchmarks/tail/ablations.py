"""Each part of the scheduler switched off, on a small simulated stage where that part matters: what it buys."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from appliance.domain.admission.decisions import Admit
from appliance.domain.admission.load_view import load_view_of
from appliance.domain.admission.prediction import Ask, Predictor
from benchmarks.tail.case import Figure, Setup
from benchmarks.tail.flags import ABLATIONS
from benchmarks.tail.simulated import Point, Show, Simulated, engine_flags, policy_of, study_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import QuickRunner
from engine.scheduling.simulator import Served, Simulator
from engine.scheduling.step_model import StepModel
from engine.simulation.figures import Collector, TenantFigures
from engine.simulation.trace import TraceRow
from engine.simulation.workload import Shape, prompt_of, submits
from engine.wire import LANES, Submit, TenantPolicy

STAGE_S = 120.0
NO_ADMISSION = "--no-admission"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """One tenant: keeps requests in flight, or asks at even times from `begin_s` on."""

    tenant: str
    prompt_tokens: int
    output_tokens: int
    tier: str = "interactive"
    weight: float = 1.0
    lane: str = ""
    prefix_tokens: int = 0
    """Of each prompt's begin, always the same."""
    in_flight: int = 0
    every_s: float = 0.0
    begin_s: float = 5.0
    reserve: float = 0.0
    """Of the KV pool."""
    queue_ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Who is there, on which engine. The first one is looked at."""

    name: str
    askers: tuple[Asker, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is switched off (a name of `ABLATIONS`), where, and the number that shows it."""

    off: str
    stage: Stage
    figure: str


QUIET = Asker(tenant="quiet", weight=4.0, prompt_tokens=70, output_tokens=32, every_s=1.013)
LONG = Asker(tenant="noisy", tier="standard", prompt_tokens=1500, output_tokens=64, in_flight=16)
SCARCE = ("--num-gpu-blocks-override", "700")

BESIDE = Stage(name="a short prompt a second beside 16 of 1,500 tokens", askers=(QUIET, LONG))
RANKED = Stage(
    name="tier standard beside 48 requests of tier interactive",
    askers=(
        Asker(tenant="low", tier="standard", prompt_tokens=70, output_tokens=32, every_s=1.0),
        Asker(tenant="high", prompt_tokens=300, output_tokens=100, in_flight=48),
    ),
)
COUNTED = Stage(
    name="short requests beside long ones, both without end",
    askers=(
        Asker(tenant="brief", tier="standard", prompt_tokens=48, output_tokens=8, in_flight=24),
        Asker(tenant="lengthy", tier="standard", prompt_tokens=500, output_tokens=8, in_flight=24),
    ),
)
HURRIED = Stage(
    name="tier interactive beside four tenants of tier standard, all with short prompts",
    askers=(
        Asker(tenant="hurried", prompt_tokens=150, output_tokens=8, every_s=0.32),
        *(Asker(tenant=f"calm{number}", tier="standard", prompt_tokens=480, output_tokens=8, in_flight=2) for number in range(4)),
    ),
)
CROWDED = Stage(
    name="scarce memory: a long prefix beside long prompts and batch work",
    askers=(
        Asker(tenant="quiet", weight=4.0, prompt_tokens=582, output_tokens=32, prefix_tokens=512, every_s=1.0),
        LONG,
        Asker(tenant="batch", tier="standard", prompt_tokens=700, output_tokens=200, lane="batch", in_flight=8),
    ),
    flags=SCARCE,
)
HOG = Stage(
    name="scarce memory: a long prefix with a reserve beside a hog",
    askers=(
        Asker(tenant="quiet", prompt_tokens=1094, output_tokens=32, prefix_tokens=1024, every_s=1.0, reserve=0.15),
        Asker(tenant="hog", prompt_tokens=300, output_tokens=600, in_flight=32),
    ),
    flags=SCARCE,
)
BATCHED = Stage(
    name="scarce memory: prompts of 1,000 tokens beside batch work of a heavier tenant",
    askers=(
        Asker(tenant="quiet", prompt_tokens=1000, output_tokens=32, every_s=4.1),
        Asker(tenant="batch", tier="standard", weight=10.0, prompt_tokens=200, output_tokens=1200, lane="batch", in_flight=16),
    ),
    flags=SCARCE,
)
CHAT = Stage(
    name="a prefix of 1,024 tokens",
    askers=(Asker(tenant="quiet", prompt_tokens=1094, output_tokens=32, prefix_tokens=1024, every_s=1.0),),
)
FLOODED = Stage(
    name="a flood of 1.5 times capacity",
    askers=(Asker(tenant="crowd", prompt_tokens=200, output_tokens=64, every_s=0.085, queue_ttl_s=10.0),),
    flags=("--fast-max-wait-targets", "0"),
)

PARTS = (
    Part(off="fcfs", stage=BESIDE, figure="ttft_p99_ms"),
    Part(off="no step limit", stage=BESIDE, figure="worst_gap_ms"),
    Part(off="fixed chunks of 256", stage=BESIDE, figure="worst_gap_ms"),
    Part(off="no chunks", stage=BESIDE, figure="worst_gap_ms"),
    Part(off="no step interrupts", stage=BESIDE, figure="ttft_p50_ms"),
    Part(off="priority", stage=RANKED, figure="ttft_p99_ms"),
    Part(off="wrr", stage=COUNTED, figure="tokens_per_s"),
    Part(off="no deadline order", stage=HURRIED, figure="attainment"),
    Part(off="contiguous memory", stage=CROWDED, figure="attainment"),
    Part(off="no batch preemption", stage=BATCHED, figure="attainment"),
    Part(off="no KV quota", stage=HOG, figure="ttft_p99_ms"),
    Part(off="no prefix cache", stage=CHAT, figure="ttft_p50_ms"),
    Part(off="no admission", stage=FLOODED, figure="attainment"),
)


class Play:
    """One stage under some flags."""

    def __init__(self, stage: Stage, flags: Sequence[str], duration_s: float) -> None:
        self._stage, self._duration_s = stage, duration_s
        self._policies = {asker.tenant: _policy_of(asker) for asker in stage.askers}
        study = study_of([], engine_flags([flag for flag in (*stage.flags, *flags) if flag != NO_ADMISSION]))
        self._limits = study.limits()
        self._scheduler = Scheduler(self._limits, model=StepModel(study.machine.times))
        self._scheduler.set_policies(self._policies.values())
        self._collector = Collector(self._policies)
        self._numbers = itertools.count(1)
        self._done_tokens = 0
        self.refused = 0
        view = load_view_of(study.config)
        self._predictor = None if NO_ADMISSION in flags else Predictor(dict.fromkeys(LANES, view))
        self._simulator = Simulator(
            self._scheduler,
            QuickRunner(self._limits.vocab_size),
            study.machine.times,
            on_end=self._on_end,
            on_step=lambda: view.note_load(self._scheduler.load(self._simulator.now_ns)),
        )

    def run(self) -> dict[str, float]:
        """What becomes of the stage's first asker."""
        for asker in self._stage.askers:
            self._simulator.add(self._request(asker, 0.0) for _ in range(asker.in_flight))
        for at_s, asker in self._arrivals():
            request = self._request(asker, at_s)
            if asker.queue_ttl_s is not None:  # others are never refused, and may come while a step runs
                self._simulator.run(until_ns=round(at_s * 1e9))
            if asker.queue_ttl_s is None or self._lets_in(asker, request):
                self._simulator.add([request])
        self._simulator.run()
        return self._numbers_of(next(each for each in self._collector.tenants() if each.tenant == self._stage.askers[0].tenant))

    def _arrivals(self) -> Iterator[tuple[float, Asker]]:
        open_loops = [asker for asker in self._stage.askers if asker.every_s]
        times = (
            (asker.begin_s + turn * asker.every_s, asker.tenant, asker)
            for asker in open_loops
            for turn in range(round((self._duration_s - asker.begin_s) / asker.every_s))
        )
        return ((at_s, asker) for at_s, _, asker in sorted(times, key=lambda each: each[:2]))

    def _lets_in(self, asker: Asker, request: Submit) -> bool:
        policy = self._policies[asker.tenant]
        ask = Ask(lane=request.lane, prompt_tokens=asker.prompt_tokens, rows=1, fingerprint=request.sequence_id)
        if self._predictor is not None:
            verdict = self._predictor.judge(policy, ask, 1.0, in_contract=False, now_s=request.received_ns / 1e9)
            if not isinstance(verdict, Admit):
                self.refused += asker is self._stage.askers[0]
                return False
            self._predictor.note_submit(request.sequence_id, request.lane, policy, asker.prompt_tokens)
        return True

    def _request(self, asker: Asker, at_s: float) -> Submit:
        number, vocab_size = next(self._numbers), self._limits.vocab_size
        blocks = (vocab_size,) if asker.prefix_tokens else ()
        row = TraceRow(at_s, asker.tenant, asker.prompt_tokens, asker.output_tokens, blocks, asker.prefix_tokens)
        (submit,) = submits([row], Shape(lane=asker.lane), self._policies, vocab_size)
        return msgspec.structs.replace(submit, sequence_id=number, prompt=prompt_of(row, number, vocab_size))

    def _on_end(self, served: Served) -> None:
        self._collector.take(served, 0)
        asker = next(asker for asker in self._stage.askers if asker.tenant == served.submit.tenant_id)
        if served.ended_ns < self._duration_s * 1e9:
            if asker is self._stage.askers[0]:
                self._done_tokens += len(served.submit.prompt) + len(served.token_times_ns)
            if asker.in_flight:
                self._simulator.add([self._request(asker, served.ended_ns / 1e9)])

    def _numbers_of(self, found: TenantFigures) -> dict[str, float]:
        return {
            "ttft_p50_ms": found.ttft.p50_ms,
            "ttft_p99_ms": found.ttft.p99_ms,
            "worst_gap_ms": found.worst_gap_ms,
            "attainment": found.attainment * found.requests / (found.requests + self.refused),
            "tokens_per_s": self._done_tokens / self._duration_s,
        }


def _policy_of(asker: Asker) -> TenantPolicy:
    policy = policy_of(asker.tier, asker.weight)
    return msgspec.structs.replace(policy, tenant_id=asker.tenant, kv_reserve_ratio=asker.reserve, queue_ttl_s=asker.queue_ttl_s)


def run_parts(setup: Setup, show: Show) -> list[Point]:
    """Each stage as it is, and with its parts switched off in turn."""
    duration_s, points = setup.seconds(STAGE_S), list[Point]()
    for index, (stage, parts) in enumerate(itertools.groupby(PARTS, key=lambda part: part.stage)):
        for off in ("everything on", *(part.off for part in parts)):
            show(f"{stage.name}: {off}", index / len(PARTS))
            points.append(Point(name=f"{stage.name}: {off}", numbers=Play(stage, ABLATIONS[off], duration_s).run()))
    return points


def figures(points: Sequence[Point]) -> list[Figure]:
    """With the part, and without it."""
    numbers = {point.name: point.numbers for point in points}
    found: list[Figure] = []
    for part in PARTS:
        unit = "ms" if part.figure.endswith("_ms") else "1/s" if part.figure.endswith("_per_s") else ""
        for off in ("everything on", part.off):
            name = f"simulated, {part.off}: {part.figure.removesuffix('_ms')} {'then' if off == part.off else 'else'}"
            found.append(Figure(name, numbers[f"{part.stage.name}: {off}"][part.figure], unit))
    return found


SCENARIO = Simulated(name="ablations", about=__doc__ or "", run=run_parts, figures=figures)
