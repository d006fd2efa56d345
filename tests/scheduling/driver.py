"""Drives a scheduler and the simulated runner step by step, and checks after each act what must always hold."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

from engine.errors import InvalidSequence
from engine.scheduling.buckets import buckets_of, round_to_block
from engine.scheduling.limits import Limits
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.roster import is_protected
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.simulated import SimulatedRunner, SimulatedTicket
from engine.scheduling.tenants import cost_of
from engine.wire import EngineConfig, FinishReason, Sampling, SequenceEvent, StepRecord, Submit, TenantPolicy

VOCAB_SIZE = 40
EOS = frozenset({0, 1})


def make_limits(**changes) -> Limits:
    """Small: pages of 4 tokens, 4 rows, 48 tokens a step. With more tokens a step, the largest bucket leaves a gap."""
    config = EngineConfig(
        max_num_seqs=changes.get("max_num_seqs", 4),
        max_num_batched_tokens=changes.get("max_num_batched_tokens", 48),
        prefill_buckets=(16, 32, 128) if changes.get("max_num_batched_tokens", 48) > 48 else (),
        mixed_prefill_buckets=(16, 32, 128) if changes.get("max_num_batched_tokens", 48) > 48 else (16, 32),
    )
    values = {
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": EOS,
        "max_model_len": 64,
        "num_pages": 64,
        "page_size": 4,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_prefill_rows": 3,
        "buckets": buckets_of(config),
        "cache_version": "tiny float32",
    }
    return Limits(**(values | changes))


def with_quotas(a: tuple[float, float], b: tuple[float, float]) -> tuple[TenantPolicy, ...]:
    """Policies of the tenants `a` and `b`: reserve and cap of each."""
    pairs = {"a": a, "b": b}
    return tuple(TenantPolicy(tenant_id=name, kv_reserve_ratio=pair[0], kv_cap_ratio=pair[1]) for name, pair in pairs.items())


def make_submit(
    sequence_id: int, prompt: tuple[int, ...], *, salt: str = "a", lane: str = "fast", sibling_of: int | None = None, **sampling
) -> Submit:
    """Tenant and salt have the same name; the request was received at `sequence_id` ns."""
    received_ns = sequence_id if sibling_of is None else sibling_of
    chosen = Sampling(**sampling)
    return Submit(sequence_id, f"req_{received_ns}", salt, lane, salt, prompt, chosen, received_ns, sibling_of=sibling_of)


@dataclass
class Outcome:
    """What the control plane saw of one sequence."""

    submit: Submit
    tokens: list[int] = field(default_factory=list)
    events: list[SequenceEvent] = field(default_factory=list)
    finish: FinishReason | None = None
    is_paused: bool = False
    samples_planned: int = 0
    """Since its last admission."""
    tokens_at_admission: int = 0


class Driver:
    """`start_step` plans and dispatches, `finish_step` collects and commits; in between, anything may happen."""

    def __init__(self, limits: Limits, scheduler: Scheduler | None = None) -> None:
        self.limits = limits
        self.scheduler = scheduler or Scheduler(limits)
        self.runner = SimulatedRunner(
            num_pages=limits.num_pages, page_size=limits.page_size, num_slots=limits.max_num_seqs, vocab_size=limits.vocab_size
        )
        self.outcomes: dict[int, Outcome] = {}
        self.plans: list[StepPlan] = []
        self.records: list[StepRecord] = []
        self._in_flight: deque[tuple[StepPlan, SimulatedTicket]] = deque()
        self._last_was_lone = False
        self._served: dict[str, float] = {}
        """Virtual tokens of rows whose results somebody got, by tenant."""
        watch_evictions(self.scheduler)
        watch_preemptions(self.scheduler)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def submit(self, submit: Submit) -> bool:
        """False: refused at the door."""
        try:
            self.scheduler.submit(submit)
        except InvalidSequence:
            return False
        self.outcomes[submit.sequence_id] = Outcome(submit)
        self.check()
        return True

    def next_turn(self, sequence_id: int, suffix: tuple[int, ...]) -> tuple[int, ...]:
        """A prompt that continues what was said so far, as a chat does; cut to 52 tokens."""
        outcome = self.outcomes.get(sequence_id)
        said = (*outcome.submit.prompt, *outcome.tokens) if outcome else ()
        return (*said, *suffix)[:52]

    def abort(self, sequence_id: int) -> None:
        self.scheduler.abort(sequence_id)
        self._take(self.scheduler.take_events())
        self.check()

    def pause(self, sequence_id: int) -> None:
        self.outcomes[sequence_id].is_paused = True
        self.scheduler.pause(sequence_id)
        self.check()

    def resume(self, sequence_id: int) -> None:
        self.outcomes[sequence_id].is_paused = False
        self.scheduler.resume(sequence_id, now_ns=1000 + len(self.plans))
        self.check()

    def resume_all(self) -> None:
        for sequence_id, outcome in self.outcomes.items():
            if outcome.is_paused:
                self.resume(sequence_id)

    def start_step(self) -> bool:
        """False: nothing to run; that must not happen while work is left and the device is idle."""
        due = self._due_decodes()
        plan = self.scheduler.plan(now_ns=1000 + len(self.plans))
        if plan is None:
            resting = all(outcome.is_paused for outcome in self.outcomes.values() if outcome.finish is None)
            assert self._in_flight or resting, "work is left, nothing runs, and nothing is planned"
            return False
        preempted = tuple(each.sequence_id for each in self.scheduler._in_flight[-1].preempted)
        self._check_plan(plan)
        self._check_nobody_left_for_nothing(plan)
        self._check_no_decode_skipped(plan, due - set(preempted))
        self._count_samples(plan, preempted)
        self.plans.append(plan)
        self._in_flight.append((plan, self.runner.dispatch(plan)))
        self.check()
        return True

    def finish_step(self) -> None:
        plan, ticket = self._in_flight.popleft()
        self._note_served(is_cut=False)
        self._take(self._commit(plan, self.runner.collect(ticket)))
        record = self.scheduler.record(plan, planned_ns=0, dispatched_ns=1, done_ns=2, committed_ns=3)
        self.records.append(record)
        assert sum(share.decode_tokens + share.prefill_tokens for share in record.shares) == record.decode_rows + record.prefill_tokens
        self.check()

    def _note_served(self, *, is_cut: bool) -> None:
        for row in self.scheduler._in_flight[0].rows:
            if row.epoch == row.sequence.epoch and (row.is_decode or not is_cut):
                tenant = row.sequence.submit.tenant_id
                self._served[tenant] = self._served.get(tenant, 0.0) + cost_of(row)

    def cut_step(self) -> None:
        """The one step in flight ends early, for the sake of whoever is there."""
        plan, ticket = self._in_flight.popleft()
        assert self.runner.interrupt(ticket)
        result = self.runner.collect(ticket)
        assert result.is_cut and all(token < 0 for token in result.tokens[len(plan.decodes) :])
        newcomer_id = next(iter(self.scheduler._sequences))
        self._note_served(is_cut=True)
        self._take(self.scheduler.settle(plan, result, 2, dispatched_ns=1, newcomer_id=newcomer_id))
        for row in (chunk for chunk in plan.prefills if chunk.samples):
            outcome = self.outcomes[row.sequence_id]
            outcome.samples_planned = max(0, outcome.samples_planned - 1)  # 0: it was preempted or ended since
        record = self.scheduler.record(plan, planned_ns=0, dispatched_ns=1, done_ns=2, committed_ns=3)
        assert (record.interrupted_by, record.interrupted_for) == (newcomer_id, self.outcomes[newcomer_id].submit.tenant_id)
        assert (record.decode_rows, record.prefill_tokens) == (len(plan.decodes), 0)
        self.check()

    def run(self, *, overlap: bool, max_steps: int = 5_000) -> "Driver":
        """As the engine's loop does, until nothing is left."""
        for _ in range(max_steps):
            started = self.start_step()
            if self._in_flight and (self.num_in_flight == 2 or not overlap or not started):
                self.finish_step()
            elif not started:
                assert self.scheduler.is_idle
                self.check_ended()
                return self
        raise AssertionError(f"not done after {max_steps} steps: somebody starves")

    def check(self) -> None:
        """Page conservation, page by page and reference by reference; nobody shares across salts."""
        roster = self.scheduler._roster
        pool = roster.memory.pool
        pool.check_every_page()
        references = dict.fromkeys(roster.memory._pinned, 1)
        salts: dict[int, set[str]] = {}
        for sequence in roster.running:
            assert sequence.computed_tokens <= sequence.planned_tokens <= len(sequence.tokens) + sequence.in_flight_samples
            assert sequence.planned_tokens <= len(sequence.pages) * self.limits.page_size
            samples = sum(
                row.samples and row.sequence is sequence and row.epoch == sequence.epoch
                for step in self.scheduler._in_flight
                for row in step.rows
            )
            assert samples == sequence.in_flight_samples
            for page in sequence.pages:
                references[page] = references.get(page, 0) + 1
                salts.setdefault(page, set()).add(sequence.submit.salt)
        assert all(pool.references(page) == references.get(page, 0) for page in range(pool.num_pages)), "references are not the holders"
        assert all(len(names) == 1 for names in salts.values()), "two salts share a page"
        self._check_quotas()
        self._check_host_pages()
        load = self.scheduler.load(0)
        assert load.pages_free + load.pages_used + load.pages_cached == self.limits.num_pages
        assert load.kv_slots_used <= load.pages_used * self.limits.page_size
        waiting = sum(sequence.waiting_tokens for sequence in roster.queue.order((), 0, with_waiting=True))
        assert sum(tenant.queued_tokens for tenant in load.tenants) == waiting + sum(s.uncomputed_tokens for s in roster.running)
        alive = sum(outcome.finish is None for outcome in self.outcomes.values())
        alive -= len(roster.parked)
        assert sum(load.running.values()) + sum(load.queued.values()) == alive
        assert sum(tenant.running_rows + tenant.queued_rows for tenant in load.tenants) == alive

    def _check_host_pages(self) -> None:
        roster = self.scheduler._roster
        moves = roster.memory.moves
        without_row = [*roster.queue.order((), 0, with_waiting=True), *roster.parked.values()]
        held = [page for sequence in without_row for page in sequence.host_pages]
        pages = [*held, *moves.host._free, *moves._returning]
        assert sorted(pages) == list(range(moves.host.num_pages)), "a host page is lost, or has two owners"
        assert not any(sequence.host_pages for sequence in roster.running)

    def _check_quotas(self) -> None:
        pool, running = self.scheduler._roster.memory.pool, self.scheduler._roster.running
        for holding in pool.holdings.all():
            own = [sequence for sequence in running if sequence.submit.tenant_id == holding.tenant_id]
            assert holding.sequences == len(own)
            assert holding.promised == sum(sequence.promised_pages for sequence in own)
            assert holding.used <= holding.quota.cap_pages or len(own) <= 1, f"{holding.tenant_id} is beyond its cap"
        assert pool.holdings.spoken_for == sum(holding.spoken_for for holding in pool.holdings.all())
        assert pool.num_free + pool.num_cached >= pool.holdings.set_aside, "referenced pages took a reserve"

    def check_ended(self) -> None:
        """Everybody has exactly one terminal event, and the output of running alone; tenants are charged what they got."""
        for tenant, served in self._served.items():
            account = self.scheduler.accounts.of(tenant)
            charged = account.counter - account.lifted - account.lost
            fair = self.limits.scheduling_policy == "wrr" or abs(charged - served) < 1e-6 * (1 + served)
            assert fair, f"{tenant} got {served} virtual tokens and was charged {charged}"
        for outcome in self.outcomes.values():
            assert outcome.finish is not None, f"{outcome.submit} never ended"
            expected = alone(outcome.submit.prompt, _hashable(outcome.submit.sampling))
            if outcome.finish is FinishReason.ABORT:
                assert tuple(outcome.tokens) == expected.tokens[: len(outcome.tokens)]
                continue
            assert (tuple(outcome.tokens), outcome.finish) == (expected.tokens, expected.finish)
            assert tuple(logprob for event in outcome.events for logprob in event.logprobs) == expected.logprobs
            assert outcome.events[0].prompt_logprobs == expected.prompt_logprobs

    def _commit(self, plan: StepPlan, result: StepResult) -> list[SequenceEvent]:
        events = self.scheduler.commit(plan, result, now_ns=2000)
        ids = [event.sequence_id for event in events]
        assert len(set(ids)) == len(ids), "two events of one sequence in a step"
        return events

    def _take(self, events: list[SequenceEvent]) -> None:
        for event in events:
            outcome = self.outcomes[event.sequence_id]
            assert outcome.finish is None, f"an event after the end: {event}"
            assert (event.cached_tokens >= 0) <= (not outcome.events), "cached_tokens belongs to the first event"
            outcome.events.append(event)
            outcome.tokens.extend(event.token_ids)
            outcome.finish = event.finish

    def _due_decodes(self) -> set[int]:
        """Whose decode row can be planned now, as far as anybody can know before the steps in flight are done."""
        return {
            sequence_id
            for sequence_id, outcome in self.outcomes.items()
            if outcome.finish is None
            and not outcome.is_paused
            and outcome.samples_planned
            and outcome.tokens_at_admission + outcome.samples_planned < outcome.submit.sampling.max_tokens
        }

    def _count_samples(self, plan: StepPlan, preempted: tuple[int, ...]) -> None:
        for sequence_id in (*preempted, *(admitted.sequence_id for admitted in plan.admitted)):
            outcome = self.outcomes[sequence_id]
            outcome.samples_planned, outcome.tokens_at_admission = 0, len(outcome.tokens)
        for row in (*plan.decodes, *(chunk for chunk in plan.prefills if chunk.samples)):
            self.outcomes[row.sequence_id].samples_planned += 1

    def _check_plan(self, plan: StepPlan) -> None:
        tokens = sum(len(chunk.tokens) for chunk in plan.prefills)
        padded = sum(round_to_block(len(chunk.tokens)) for chunk in plan.prefills)
        assert plan.bucket in self.limits.buckets.all()
        assert plan.bucket == self.limits.buckets.choose(len(plan.decodes), padded)
        assert tokens <= self.limits.max_num_batched_tokens
        assert len(plan.prefills) <= self.limits.max_prefill_rows
        assert len(plan.decodes) + len(plan.prefills) <= self.limits.max_num_seqs
        assert all(chunk.tokens for chunk in plan.prefills)
        arrivals = {sequence_id: number for number, sequence_id in enumerate(self.outcomes)}
        decoding = [arrivals[row.sequence_id] for row in plan.decodes]
        assert self.scheduler._roster.queue.is_fair or decoding == sorted(decoding), (
            "oldest first: a victim of preemption is never in the plan already"
        )
        for chunk in plan.prefills:
            if chunk.wants_prompt_logprobs:
                assert len(plan.prefills) == 1 and not plan.decodes and len(chunk.tokens) <= 16

    def _check_nobody_left_for_nothing(self, plan: StepPlan) -> None:
        """A step with room for one more chunk leaves somebody waiting only where somebody is cut short, or lacks a row or pages."""
        roster = self.scheduler._roster
        waiting = list(roster.queue.order((), 1000 + len(self.plans), with_waiting=True))
        tokens = sum(len(chunk.tokens) for chunk in plan.prefills)
        padded = sum(round_to_block(len(chunk.tokens)) for chunk in plan.prefills)
        is_full = tokens >= self.limits.max_num_batched_tokens or len(plan.prefills) >= self.limits.max_prefill_rows
        is_full = is_full or padded >= self.limits.buckets.prefill_capacity(len(plan.decodes))
        is_lone = any(sequence.wants_prompt_logprobs for sequence in (*waiting, *roster.running))
        has_followers = any(sequence.leader is not None for sequence in waiting)  # they wait for a step to end
        is_cut_short = bool(roster.begun()) or not self.limits.enable_chunked_prefill
        if waiting and not (is_full or is_lone or has_followers or is_cut_short):
            assert not all(map(self.scheduler._planner.can_start, waiting)), "a step has room, and who could start waits"

    def _check_no_decode_skipped(self, plan: StepPlan, due: set[int]) -> None:
        lone = any(chunk.wants_prompt_logprobs for chunk in plan.prefills)
        skipped = due - {row.sequence_id for row in plan.decodes}
        if skipped:
            assert lone and not self._last_was_lone, f"decodes of {skipped} were skipped"
        self._last_was_lone = lone


def watch_evictions(scheduler: Scheduler) -> None:
    """Nobody loses cached pages of its reserve for somebody else, and nobody a referenced page."""
    pool = scheduler._roster.memory.pool
    evict_one = pool._evict_one

    def watched(taker) -> bool:
        before = {holding.tenant_id: holding.used + holding.cached for holding in pool.holdings.all()}
        used = pool.num_used
        done = evict_one(taker)
        for holding in pool.holdings.all():
            is_less = holding.used + holding.cached < before[holding.tenant_id]
            assert not is_less or holding is taker or holding.used + holding.cached >= holding.quota.reserve_pages, "evicted from a reserve"
        assert pool.num_used == used, "evicted a referenced page"
        return done

    pool._evict_one = watched


def watch_preemptions(scheduler: Scheduler) -> None:
    """Under a fair policy, interactive work loses its pages only where no batch sequence could yield instead."""
    roster = scheduler._roster
    preempt = roster.preempt

    def watched(sequence, cause: str, taker_id: str = "") -> None:
        if cause != "forced" and roster.queue.is_fair and not roster.is_batch(sequence):
            tenant_id = sequence.submit.tenant_id
            batch = [other for other in roster.running if roster.is_batch(other) and not is_protected(other)]
            yielding = [other for other in batch if roster.shares.may_lose_to(other, tenant_id)]
            assert not yielding, f"{sequence.sequence_id} lost its pages while batch work could yield"
        preempt(sequence, cause, taker_id)

    roster.preempt = watched


@dataclass(frozen=True)
class Alone:
    tokens: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple
    prompt_logprobs: tuple


def _hashable(sampling: Sampling) -> tuple:
    return (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos, sampling.seed, sampling.stop_token_ids, sampling.logprobs,
            sampling.prompt_logprobs)  # fmt: skip


@lru_cache(maxsize=20_000)
def alone(prompt: tuple[int, ...], sampling: tuple) -> Alone:
    """The same sequence with the engine to itself: plain loop, whole prefill, no prefix cache."""
    names = ("max_tokens", "min_tokens", "ignore_eos", "seed", "stop_token_ids", "logprobs", "prompt_logprobs")
    limits = make_limits(enable_prefix_caching=False, max_model_len=512, num_pages=128)
    scheduler = Scheduler(limits)
    runner = SimulatedRunner(num_pages=limits.num_pages, page_size=limits.page_size, num_slots=4, vocab_size=limits.vocab_size)
    scheduler.submit(make_submit(1, prompt, **dict(zip(names, sampling, strict=True))))
    events: list[SequenceEvent] = []
    while (plan := scheduler.plan(0)) is not None:
        events += scheduler.commit(plan, runner.collect(runner.dispatch(plan)), 0)
    return Alone(
        tuple(token for event in events for token in event.token_ids),
        events[-1].finish,
        tuple(logprob for event in events for logprob in event.logprobs),
        events[0].prompt_logprobs,
    )
