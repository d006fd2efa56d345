"""What the scheduler tells about itself: counters, the load report, the ledger's record."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.scheduling.draft import PlannedStep
from engine.scheduling.holdings import Holdings
from engine.scheduling.moves import PendingMoves
from engine.scheduling.pages import PagePool
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import Accounts
from engine.wire import NOBODY, Drain, Load, StepRecord, TenantLoad, WorkShare


@dataclass(slots=True)
class Counters:
    """Run from the start of the process, like the fields of `Load` with the same names."""

    preemptions: dict[str, int] = field(default_factory=lambda: {"memory": 0, "swap": 0, "forced": 0, "slow_reader": 0})
    """By cause; `swap` is lack of memory where the pages went to the host."""
    recomputed_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    pad_tokens: int = 0


class WaitingTally:
    """Rows and tokens that wait, by tenant and lane: kept by differences, because a queue may be long."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], int] = {}
        self._tokens: dict[tuple[str, str], int] = {}
        self.lanes: Counter[str] = Counter()
        """Rows."""

    def add(self, sequence: Sequence) -> None:
        key = tenant_and_lane(sequence)
        self._rows[key] = self._rows.get(key, 0) + 1
        self._tokens[key] = self._tokens.get(key, 0) + sequence.waiting_tokens
        self.lanes[key[1]] += 1

    def remove(self, sequence: Sequence) -> None:
        key = tenant_and_lane(sequence)
        self._rows[key] -= 1
        self._tokens[key] -= sequence.waiting_tokens
        self.lanes[key[1]] -= 1
        if not self._rows[key]:
            del self._rows[key], self._tokens[key]

    def items(self) -> Iterable[tuple[tuple[str, str], int, int]]:
        """(tenant, lane), rows, tokens."""
        return ((key, rows, self._tokens[key]) for key, rows in self._rows.items())


def tenant_and_lane(sequence: Sequence) -> tuple[str, str]:
    return sequence.submit.tenant_id, sequence.submit.lane


def tenant_loads(running: Iterable[Sequence], waiting: WaitingTally, accounts: Accounts, holdings: Holdings) -> tuple[TenantLoad, ...]:
    """One entry for each tenant and lane with a row; queued tokens include what running prefills have still to do."""
    rows: dict[tuple[str, str], list[int]] = {}
    for sequence in running:
        entry = rows.setdefault(tenant_and_lane(sequence), [0, 0, 0])
        entry[0] += 1
        entry[2] += sequence.uncomputed_tokens
    for key, queued_rows, queued_tokens in waiting.items():
        entry = rows.setdefault(key, [0, 0, 0])
        entry[1] += queued_rows
        entry[2] += queued_tokens
    return tuple(
        TenantLoad(
            *key,
            *entry,
            weight=accounts.of(key[0]).policy.weight,
            debt=accounts.debt(key[0]),
            counter=accounts.of(key[0]).counter,
            pages=holdings.of(key[0]).used,
        )
        for key, entry in rows.items()
    )


def by_lane(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Sums of the rows, without lanes that have none."""
    sums: dict[str, int] = {}
    for lane, rows in pairs:
        if rows:
            sums[lane] = sums.get(lane, 0) + rows
    return sums


def load_of(
    *,
    now_ns: int,
    last_sequence_id: int,
    running: Iterable[Sequence],
    waiting: WaitingTally,
    oldest_queued_ns: int,
    pool: PagePool,
    page_size: int,
    counters: Counters,
    compiles_after_ready: int,
    step_model_error_ratio: float,
    eviction_policy: str,
    moves: PendingMoves,
    accounts: Accounts,
    drain: Drain,
) -> Load:
    """The load report. Shared and pinned pages are full; only a sequence's own last pages have empty slots."""
    tenants = tenant_loads(running, waiting, accounts, pool.holdings)
    empty_slots = sum(len(sequence.pages) * page_size - sequence.planned_tokens for sequence in running)
    return Load(
        time_ns=now_ns,
        last_sequence_id=last_sequence_id,
        running=by_lane((tenant.lane, tenant.running_rows) for tenant in tenants),
        queued=by_lane((tenant.lane, tenant.queued_rows) for tenant in tenants),
        oldest_queued_ns=oldest_queued_ns,
        pages_free=pool.num_free,
        pages_used=pool.num_used,
        pages_cached=pool.num_cached,
        tenants=tenants,
        preemptions=dict(counters.preemptions),
        recomputed_tokens=counters.recomputed_tokens,
        evicted_pages=sum(pool.num_evicted.values()),
        prefix_query_tokens=counters.prefix_query_tokens,
        prefix_hit_tokens=counters.prefix_hit_tokens,
        pad_tokens=counters.pad_tokens,
        compiles_after_ready=compiles_after_ready,
        kv_slots_used=pool.num_used * page_size - empty_slots,
        step_model_error_ratio=step_model_error_ratio,
        eviction_policy=eviction_policy,
        evictions={**pool.num_evicted},
        copied_pages=moves.num_copied,
        swapped_out_pages=moves.num_swapped_out,
        swapped_in_pages=moves.num_swapped_in,
        drain=drain,
    )


def record_of(step: PlannedStep, *, planned_ns: int, dispatched_ns: int, done_ns: int, committed_ns: int, pages_free: int) -> StepRecord:
    """The ledger's tuple of a committed step, or of one that was cut short: that worked for its decodes only."""
    rows = step.rows if step.interrupted_by is None else step.rows[: step.work.decode_rows]
    return StepRecord(
        step=step.plan.step,
        planned_ns=planned_ns,
        dispatched_ns=dispatched_ns,
        done_ns=done_ns,
        committed_ns=committed_ns,
        bucket=str(step.plan.bucket),
        decode_rows=sum(row.is_decode for row in rows),
        prefill_tokens=sum(row.tokens for row in rows if not row.is_decode),
        pad_tokens=pad_tokens_of(step) if step.interrupted_by is None else 0,
        shares=tuple(
            WorkShare(
                row.sequence.sequence_id,
                row.sequence.submit.tenant_id,
                row.tokens if row.is_decode else 0,
                0 if row.is_decode else row.tokens,
                row.context_tokens,
                row.draws,
            )
            for row in rows
        ),
        preempted=step.preempted,
        evicted_pages=sum(each.pages for each in step.evictions),
        pages_free=pages_free,
        predicted_s=step.predicted_s,
        copied_pages=len(step.plan.moves.copied),
        swapped_out_pages=len(step.plan.moves.swapped_out),
        swapped_in_pages=len(step.plan.moves.swapped_in),
        token_limit_s=step.token_limit.mean_s if step.token_limit is not None else 0.0,
        budget_tokens=step.budget_tokens or 0,
        interrupted_by=NOBODY if step.interrupted_by is None else step.interrupted_by.sequence_id,
        interrupted_for="" if step.interrupted_by is None else step.interrupted_by.submit.tenant_id,
        evictions=step.evictions,
        lost_tokens=step.lost_tokens,
    )


def pad_tokens_of(step: PlannedStep) -> int:
    """Rows of the bucket that no token uses."""
    bucket, work = step.plan.bucket, step.work
    return bucket.decode_rows + bucket.prefill_tokens - work.decode_rows - work.prefill_tokens
