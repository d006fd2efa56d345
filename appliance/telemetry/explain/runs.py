"""Steps on the engine's time line, and whose work each of them did."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.wire import StepRecord, WorkShare

KV_READS_PER_TOKEN = 512
QUERY_BLOCK_TOKENS = 16
"""As the scheduler charges tenants (`engine.scheduling.tenants`): reading so many cached tokens counts like computing one, and a
block of a prefill chunk reads its context once."""


@dataclass(frozen=True, slots=True)
class Run:
    """A step's time: from its planning, or the end of the step before it, to its results. Runs never overlap."""

    record: StepRecord
    begin_ns: int
    end_ns: int


def runs_of(records: Iterable[StepRecord]) -> list[Run]:
    """The runs of records in the ledger's order. The first one's predecessor is not known."""
    runs: list[Run] = []
    before_ns = 0
    for record in records:
        begin_ns = max(record.planned_ns, before_ns)
        runs.append(Run(record, min(begin_ns, record.done_ns), record.done_ns))
        before_ns = record.done_ns
    return runs


def units_of(share: WorkShare) -> float:
    """Virtual tokens: those computed, and the cached ones read."""
    reads = share.context_tokens * (share.decode_tokens + -(-share.prefill_tokens // QUERY_BLOCK_TOKENS))
    return share.decode_tokens + share.prefill_tokens + reads / KV_READS_PER_TOKEN


type Cause = str | None
"""Whose work took the time: a tenant, or None: the request itself, or nobody."""


def work_by_cause(record: StepRecord, own: frozenset[int] = frozenset()) -> dict[Cause, float]:
    """Virtual tokens by whose they are: that of the sequences `own` has no tenant. What a step did that was cut short, and is done again,
    is of whom it was cut short for."""
    work: dict[Cause, float] = {}
    for share in record.shares:
        cause = None if share.sequence_id in own else share.tenant_id
        work[cause] = work.get(cause, 0.0) + units_of(share)
    if record.interrupted_for:
        cause = None if record.interrupted_by in own else record.interrupted_for
        work[cause] = work.get(cause, 0.0) + record.lost_tokens
    return work


def waiting_causes(run: Run, duration_ns: int, own: frozenset[int] = frozenset()) -> dict[Cause, int]:
    """Who took a stretch of a step that did no work for the sequences `own`: its tenants, in proportion to their work."""
    return divide(duration_ns, work_by_cause(run.record, own))


def working_causes(run: Run, duration_ns: int, own: frozenset[int], floor_ns: int) -> dict[Cause, int]:
    """Who took a stretch of a step that worked for the sequences `own`: what the step would take with next to no work is ours,
    and of the rest everybody has what is in proportion to the work."""
    full_ns = max(1, run.end_ns - run.begin_ns)
    extra_ns = max(0, full_ns - floor_ns)
    work = work_by_cause(run.record, own)
    units = sum(work.values()) or 1.0
    weights: dict[Cause, float] = {None: float(full_ns - extra_ns)}
    for cause, part in work.items():
        weights[cause] = weights.get(cause, 0.0) + extra_ns * part / units
    return divide(duration_ns, weights)


def divide(whole_ns: int, weights: Mapping[Cause, float]) -> dict[Cause, int]:
    """Whole nanoseconds in proportion to the weights; they add up, what rounding leaves goes to the heaviest."""
    total = sum(weights.values())
    if total <= 0:
        return {None: whole_ns}
    parts = {cause: int(whole_ns * weight / total) for cause, weight in weights.items()}
    heaviest = max(weights, key=lambda cause: weights[cause])
    parts[heaviest] += whole_ns - sum(parts.values())
    return parts
