"""A simulated engine's ledger and the reports of the requests it served: everything that explaining reads, at random."""

import random
from dataclasses import dataclass, replace

from appliance.telemetry.explain.pieces import Recorded
from appliance.telemetry.requests import Outcome, RequestReport
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner
from engine.scheduling.simulator import Served, SimulatedStep, Simulator
from engine.scheduling.step_model import StepModel, StepTimes
from engine.wire import Sampling, StepRecord, Submit
from tests.scheduling.driver import make_limits

MS = 1_000_000
FLOOR_S = 0.010
TENANTS = ("quiet", "noisy", "third")


@dataclass(frozen=True)
class World:
    """Steps, and requests that ended while they ran. `prompt_tokens` of each request's sequences, by request id."""

    records: list[StepRecord]
    reports: list[RequestReport]
    token_times_ns: dict[int, list[int]]
    """Of each sequence."""

    def recorded(self, report: RequestReport, since_ns: int = 0) -> Recorded:
        """As the ledger would have it, with steps before `since_ns` forgotten."""
        kept = [record for record in self.records if record.planned_ns >= since_ns and record.planned_ns <= report.ended_ns]
        return Recorded(kept, since_ns, round(FLOOR_S * 1e9))


def simulate(seed: int, num_requests: int, *, num_pages: int = 60, gap_ms: int = 60) -> World:
    """So many requests of one or two outputs each, of three tenants, on 8 rows and few pages."""
    rng = random.Random(seed)
    limits = make_limits(max_num_seqs=8, num_pages=num_pages, scheduling_policy=rng.choice(["vtc", "fcfs"]))
    times = StepTimes({b: FLOOR_S + 1e-4 * b.prefill_tokens for b in limits.buckets.all()}, 0.0, 1e-9, 5e-4, 2e-6)
    scheduler = Scheduler(limits, model=StepModel(times))
    runner = SimulatedRunner(num_pages=num_pages, page_size=4, num_slots=8, vocab_size=limits.vocab_size)
    steps: list[SimulatedStep] = []
    simulator = Simulator(scheduler, runner, times, steps.append)
    drafts = [_draft(rng, number, rng.randrange(num_requests * gap_ms) * MS) for number in range(num_requests)]
    simulator.add(submit for draft in drafts for submit in draft)
    simulator.run()
    reports = [_report(rng, [simulator.served[s.sequence_id] for s in draft]) for draft in drafts]
    return World([step.record for step in steps], reports, {number: served.token_times_ns for number, served in simulator.served.items()})


def _draft(rng: random.Random, number: int, handed_ns: int) -> list[Submit]:
    tenant = rng.choice(TENANTS)
    prompt = tuple(rng.randrange(2, 40) for _ in range(rng.randrange(1, 45)))
    sampling = Sampling(max_tokens=rng.randrange(1, 18), ignore_eos=True)
    lane = rng.choice(["fast", "slow", "batch"])
    return [
        Submit(2 * number + output, f"req_{number}", tenant, lane, tenant, prompt, sampling, handed_ns)
        for output in range(rng.choice([1, 2]))
    ]


def _report(rng: random.Random, served: list[Served]) -> RequestReport:
    """What the control plane would have noted; one in four was cancelled at a random moment."""
    submit = served[0].submit
    handed_ns = submit.received_ns + MS
    over_ns = max(each.ended_ns for each in served) + rng.randrange(MS)
    longest = max(served, key=lambda each: len(each.token_times_ns))
    fed_ns = over_ns + rng.randrange(MS)
    blocked = tuple((fed_ns + n * 7 * MS, fed_ns + n * 7 * MS + rng.randrange(9 * MS)) for n in range(-2, rng.randrange(3)))
    report = RequestReport(
        request_id=submit.request_id,
        route="/v1/completions",
        tenant_id=submit.tenant_id,
        lane=submit.lane,
        outcome=Outcome.COMPLETED,
        status=200,
        streamed=True,
        prompt_tokens=len(submit.prompt),
        generated_tokens=sum(len(each.token_times_ns) for each in served),
        received_ns=handed_ns - 3 * MS,
        held_ns=MS // 2 if submit.sequence_id % 5 == 0 else 0,
        read_ns=handed_ns - 2 * MS,
        tokenized_ns=handed_ns - MS,
        submitted_ns=handed_ns,
        scheduled_ns=handed_ns,
        first_token_ns=longest.token_times_ns[0],
        first_sent_ns=longest.token_times_ns[0],
        last_token_ns=longest.token_times_ns[-1],
        over_ns=over_ns,
        fed_ns=fed_ns,
        ended_ns=fed_ns + rng.randrange(20 * MS),
        tokens_after_first=len(longest.token_times_ns) - 1,
        sequence_ids=tuple(each.submit.sequence_id for each in served),
        blocked_ns=blocked,
    )
    return report if rng.random() < 0.75 else _cut(rng, report)


def _cut(rng: random.Random, report: RequestReport) -> RequestReport:
    """The same request, cancelled on its way."""
    ended_ns = rng.randrange(report.received_ns, report.over_ns + 1)
    names = (
        "read_ns",
        "tokenized_ns",
        "submitted_ns",
        "scheduled_ns",
        "first_token_ns",
        "first_sent_ns",
        "last_token_ns",
        "over_ns",
        "fed_ns",
    )
    reached = {name: stamp if (stamp := getattr(report, name)) <= ended_ns else 0 for name in names}
    return replace(report, outcome=Outcome.CANCELLED, cause="disconnect", ended_ns=ended_ns, blocked_ns=(), **reached)
