"""Which rows run in the next step, and what becomes of a step's tokens. Pure and deterministic: no clock, no I/O.

Decode first: every running decode whose next token is due is in every step, and the others where they fit and no
first token is late for them. Then prefill chunks in the policy's order, under the budgets of tokens and of the step's
time. A step may be planned while the one before it runs: a decode row whose input token is still on the device is
planned by its position alone, and what turns out to be late is dropped at its commit (see `Sequence.epoch`).
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from engine.errors import InvalidSequence
from engine.scheduling.budget import StepBudget
from engine.scheduling.door import check_pool, check_submit, leader_of
from engine.scheduling.draft import PlannedStep, Row
from engine.scheduling.events import event_of, finish_reason
from engine.scheduling.interrupt import Interrupts
from engine.scheduling.lanes import final_lane, latest_start_ns
from engine.scheduling.limits import Limits
from engine.scheduling.pace import Pace
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.planner import Planner
from engine.scheduling.policies import policy_of
from engine.scheduling.policy import Policy
from engine.scheduling.repeat import DecodeRepeater, Repeated, TokenOf
from engine.scheduling.report import load_of, pad_tokens_of, record_of
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster
from engine.scheduling.step_model import StepModel, StepTimes
from engine.scheduling.tenants import Accounts
from engine.wire import FinishReason, Load, SequenceEvent, StepRecord, Submit, TenantPolicy, TokenLogprob


class Scheduler:
    """Owns all sequences between `submit` and their one event with `finish`."""

    def __init__(self, limits: Limits, queue: Policy | None = None, model: StepModel | None = None) -> None:
        """The order is that of `limits.scheduling_policy`, if `queue` is not given. Without a model no step is predicted, and time bounds
        nothing."""
        self._limits = limits
        self.accounts = Accounts("requests" if limits.scheduling_policy == "wrr" else "tokens")
        self._roster = Roster(limits, queue or policy_of(limits, self.accounts), self.accounts, model)
        self._planner = Planner(self._roster, StepBudget(limits, model))
        self._repeater = DecodeRepeater(self._roster, model)
        self._sequences: dict[int, Sequence] = {}
        self._lone: dict[int, None] = {}  # those that want prompt log-probabilities
        self._latest_starts: list[tuple[int, int]] = []  # a heap with sequence ids
        self._pace = Pace(limits, model)
        self._interrupts = Interrupts(limits, self.accounts, model)
        self._committed: PlannedStep | None = None
        self._events: list[SequenceEvent] = []
        self._num_steps = 0
        self._last_step_was_lone = False
        self._num_arrivals = 0
        self._last_sequence_id = 0

    def set_policies(self, policies: Iterable[TenantPolicy]) -> None:
        """All tenants' policies, replacing the earlier ones. Weights and priorities count at once, targets for new sequences."""
        policies = tuple(policies)
        self.accounts.set_policies(policies)
        self._roster.memory.set_policies(policies)
        names = {policy.tenant_id for policy in policies}
        self._roster.outputs.forget_all_but(names)
        self._interrupts.forget_all_but(names)

    def submit(self, submit: Submit) -> None:
        """Take a sequence into the queue.

        Raises:
            InvalidSequence: it can never run; nothing was taken.
        """
        self._last_sequence_id = max(self._last_sequence_id, submit.sequence_id)
        check_submit(submit, self._limits)
        if submit.sequence_id in self._sequences:
            raise InvalidSequence(f"sequence {submit.sequence_id} exists already")
        sequence = Sequence(submit, self._num_arrivals, list(submit.prompt), len(submit.prompt))
        check_pool(sequence, self._limits, self._roster.memory)
        sequence.leader = leader_of(sequence, self._sequences, self._limits)
        self._num_arrivals += 1
        self._sequences[submit.sequence_id] = sequence
        if sequence.wants_prompt_logprobs:
            self._lone[submit.sequence_id] = None
        self._settle_lane(sequence)
        self.accounts.enter(submit.tenant_id, submit.received_ns)
        self.accounts.note_tokens(submit.tenant_id, sequence.prompt_tokens, submit.received_ns)
        self._roster.enqueue(sequence)
        self._interrupts.note_arrival(sequence)

    def abort(self, sequence_id: int) -> None:
        """End a sequence now, wherever it is; its event comes from `take_events`. Unknown ids ended already."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._events.append(event_of(sequence, (), (), FinishReason.ABORT))
            self._end(sequence)
            self._check_if_idle()

    def pause(self, sequence_id: int) -> None:
        """Plan no more tokens for a sequence until it is resumed or aborted. Its pages and its row go to others who need them."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._roster.pause(sequence)

    def resume(self, sequence_id: int, now_ns: int) -> None:
        """Go on with a paused sequence; the time it was paused is no gap that anybody has to make up for."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._roster.resume(sequence)
            if sequence.last_token_ns:
                sequence.first_token_ns += now_ns - sequence.last_token_ns
                sequence.last_token_ns = now_ns

    def take_events(self) -> list[SequenceEvent]:
        """Events that no step made, since the last call."""
        events, self._events = self._events, []
        return events

    def pin_prefix(self, salt: str, tokens: tuple[int, ...]) -> int:
        """Keep the full pages of `tokens` for ever, once a sequence with this prompt has run; leading pages pinned."""
        return self._roster.memory.pin(salt, tokens)

    def plan(self, now_ns: int, *, running_dispatched_ns: int | None = None) -> StepPlan | None:
        """The next step, or None when there is nothing to run before the steps in flight are committed. `running_dispatched_ns`:
        of the step in flight."""
        self._preempt_if_forced()
        self._expire(now_ns)
        self._interrupts.note_plan()
        draft = self._planner.draft(
            now_ns,
            ahead_s=self._pace.ahead_s(now_ns, running_dispatched_ns),
            is_idle=not self._in_flight,
            lone_first=not self._last_step_was_lone,
            lone_possible=bool(self._lone),
        )
        if draft.is_empty:
            return None
        memory = self._roster.memory
        step = draft.finish(self._num_steps, tuple(self._roster.preempted), memory.pool.take_evictions(), memory.moves.take())
        self._roster.preempted.clear()
        self._num_steps += 1
        self._last_step_was_lone = draft.lone
        self._roster.counters.pad_tokens += pad_tokens_of(step)
        step = self._pace.foretold(step, left_prompts=self._leaves_prompts())
        self._in_flight.append(step)
        self._roster.queue.note_step(step.rows[step.work.decode_rows :])
        for row in step.rows:
            self.accounts.charge(row)
        return step.plan

    def settle(
        self, plan: StepPlan, result: StepResult, now_ns: int, *, dispatched_ns: int, newcomer_id: int | None
    ) -> list[SequenceEvent]:
        """`commit`, where the step may have been cut short for the newcomer before it was done."""
        if result.is_cut:
            assert newcomer_id is not None, "a step is only cut for somebody's sake"
            self._note_cut(plan, newcomer_id, dispatched_ns=dispatched_ns, now_ns=now_ns)
        return self.commit(plan, result, now_ns)

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> list[SequenceEvent]:
        """Take a step's tokens, in the order of the plans. At most one event a sequence. `now_ns`: when its results were there. Where it
        was cut short, its prompts' chunks are planned again."""
        step = self._in_flight.popleft()
        assert step.plan is plan, "steps are committed in the order they were planned"
        self._committed = step
        events: list[SequenceEvent] = []
        for index, row in enumerate(step.rows):
            if self._is_late(row):
                self.accounts.refund(row)
                continue
            if result.is_cut and not row.is_decode:
                self.accounts.refund(row)
                row.take_back()
                continue
            sequence = row.sequence
            sequence.computed_tokens += row.tokens
            if not row.is_decode and sequence.wants_prompt_logprobs:
                sequence.prompt_logprobs.extend(result.prompt_logprobs[index - len(plan.decodes)])
            self._roster.memory.register(sequence)
            if row.samples:
                row.draws, sequence.last_token_ns = True, now_ns
                sequence.first_token_ns = sequence.first_token_ns or now_ns
                events.append(self._take_token(sequence, result.tokens[index], result.logprobs[index]))
        self._roster.memory.pool.refill()
        self._check_if_idle()
        return events

    @property
    def may_interrupt(self) -> bool:
        """A step may be cut short, where the device can."""
        return self._roster.queue.is_fair and self._interrupts.is_enabled

    def newcomer_to_interrupt_for(self, now_ns: int, *, running_dispatched_ns: int) -> int | None:
        """The sequence for whose sake the one step in flight is to be cut short, where the device can. Of those that came since it was
        planned; each is asked about once."""
        running = self._pace.running(running_dispatched_ns)
        if running is None or not self.may_interrupt:
            return None
        step, began_ns = running
        for newcomer in self._interrupts.take_newcomers():
            waits = newcomer.slot < 0 and not newcomer.has_ended and not newcomer.is_paused
            if (
                waits
                and self._interrupts.is_worth_it(newcomer, step, began_ns=began_ns, now_ns=now_ns)
                and self._planner.can_start(newcomer)
            ):
                return newcomer.sequence_id
        return None

    def ahead_from_ns(self, running_dispatched_ns: int) -> int:
        """From when on a step may be planned while another runs (`Pace.ahead_from_ns`); at once where nobody else may come."""
        if not self._roster.queue.is_fair or not self.accounts.others_may_come:
            return running_dispatched_ns
        return self._pace.ahead_from_ns(running_dispatched_ns)

    @property
    def _in_flight(self) -> deque[PlannedStep]:
        return self._pace.in_flight

    @property
    def has_work(self) -> bool:
        """A sequence is alive, or a step's results are awaited."""
        return bool(self._sequences or self._in_flight)

    @property
    def is_idle(self) -> bool:
        return not self.has_work

    def check_integrity(self) -> None:
        """Constant time. Raises AssertionError when a page or slot is lost: our own bug."""
        self._roster.memory.pool.check()
        if self.is_idle:
            self._roster.check_nothing_held()
            assert not self._lone, "idle, but a sequence is remembered"

    def load(self, now_ns: int, *, compiles_after_ready: int = 0) -> Load:
        """State now; `compiles_after_ready` is passed through."""
        return load_of(
            now_ns=now_ns,
            last_sequence_id=self._last_sequence_id,
            running=self._roster.running,
            waiting=self._roster.waiting,
            oldest_queued_ns=self._roster.queue.oldest_received_ns(),
            pool=self._roster.memory.pool,
            page_size=self._limits.page_size,
            counters=self._roster.counters,
            eviction_policy=self._limits.eviction_policy,
            moves=self._roster.memory.moves,
            compiles_after_ready=compiles_after_ready,
            step_model_error_ratio=self._pace.error_ratio,
            accounts=self.accounts,
            drain=self._pace.drain.report(len(self._roster.running), self._roster.num_free_slots, self._reserved_rows),
        )

    def record(self, plan: StepPlan, *, planned_ns: int, dispatched_ns: int, done_ns: int, committed_ns: int) -> StepRecord:
        """The ledger's tuple of the step committed last; the step-time model learns from its times."""
        step = self._committed
        assert step is not None and step.plan is plan, "record belongs right after commit"
        self.learn(plan, dispatched_ns=dispatched_ns, done_ns=done_ns)
        return record_of(
            step,
            planned_ns=planned_ns,
            dispatched_ns=dispatched_ns,
            done_ns=done_ns,
            committed_ns=committed_ns,
            pages_free=self._roster.memory.pool.num_free,
        )

    def learn(self, plan: StepPlan, *, dispatched_ns: int, done_ns: int) -> None:
        """What the step committed last says about times: to the step-time model, and to the rates of waiting work. Part of `record`."""
        assert self._committed is not None, "learn belongs behind commit"
        self._pace.learn(self._committed, dispatched_ns=dispatched_ns, done_ns=done_ns)

    def repeat(self, times: StepTimes, now_ns: int, until_ns: int, token_of: TokenOf) -> Repeated:
        """For the simulator, right after a step was committed and learned: plan, run and commit steps of decodes, as long as nothing
        else can happen and steps begin before `until_ns`. Nobody ends in them, so there are no events but one token a running
        sequence and step."""
        if self._latest_starts:
            until_ns = min(until_ns, self._latest_starts[0][0] + 1)
        most = 0 if self._in_flight or self._lone or self._events else self._repeater.most_steps(token_of)
        repeated = self._repeater.run(times, now_ns, until_ns, most, whole=self.may_interrupt) if most else Repeated()
        if repeated.ended_ns:
            self._repeater.take(repeated, token_of)
            self._roster.queue.note_decodes()
            self._num_steps += len(repeated.ended_ns)
            self._roster.counters.pad_tokens += repeated.pad_tokens
            self._pace.last_done_ns = repeated.ended_ns[-1]
        return repeated

    def _note_cut(self, plan: StepPlan, newcomer_id: int, *, dispatched_ns: int, now_ns: int) -> None:
        """The newcomer's tenant is charged for what is done again, nobody else is, and no lane got the tokens that it was owed."""
        running = self._pace.running(dispatched_ns)
        assert running is not None and running[0].plan is plan, "only a step with nothing behind it is cut short"
        step, began_ns = running
        newcomer = self._sequences[newcomer_id]
        lost_tokens = self._interrupts.note_made(newcomer, step, began_ns=began_ns, now_ns=now_ns)
        self._in_flight[0] = replace(step, interrupted_by=newcomer, lost_tokens=lost_tokens)
        self._roster.queue.take_back_step()

    def _is_late(self, row: Row) -> bool:
        """Its sequence ended, was aborted or preempted after the row was planned: whatever it drew is dropped."""
        return row.epoch != row.sequence.epoch

    def _take_token(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> SequenceEvent:
        sequence.in_flight_samples -= 1
        sequence.tokens.append(token)
        finish = finish_reason(sequence, token, self._limits.eos_token_ids)
        if self._lone:
            self._lone.pop(sequence.sequence_id, None)
        event = event_of(sequence, (token,), () if logprob is None else (logprob,), finish)
        if finish is not None:
            self._end(sequence)
        return event

    @property
    def _reserved_rows(self) -> int:
        return self._roster.shares.reserved_rows if self._roster.queue.is_fair else 0

    def _leaves_prompts(self) -> bool:
        queued = len(self._roster.queue) > 0 and self._roster.num_free_slots > self._reserved_rows
        return queued or bool(self._roster.begun())

    def _end(self, sequence: Sequence) -> None:
        if sequence.slot >= 0 and sequence.last_token_ns > sequence.row_ns:
            self._pace.drain.note_row((sequence.last_token_ns - sequence.row_ns) / 1e9)
        del self._sequences[sequence.sequence_id]
        self._lone.pop(sequence.sequence_id, None)
        sequence.has_ended, sequence.leader = True, None
        output_tokens = len(sequence.tokens) - sequence.prompt_tokens
        if output_tokens:
            self._roster.outputs.note(sequence.submit.tenant_id, output_tokens)
        self.accounts.note_tokens(sequence.submit.tenant_id, output_tokens, sequence.last_token_ns or sequence.submit.received_ns)
        self.accounts.leave(sequence.submit.tenant_id)
        self._roster.remove(sequence)

    def _settle_lane(self, sequence: Sequence) -> None:
        """The lane for good, now that the prefix cache was asked; with it the targets of its tenant's tier."""
        submit, limits = sequence.submit, self._limits
        policy = self.accounts.of(submit.tenant_id).policy
        if submit.lane_by_length:
            cached_tokens = len(self._roster.memory.match(sequence).pages) * limits.page_size
            lane = final_lane(submit, sequence.prompt_tokens - cached_tokens, limits.fast_prompt_tokens)
            if lane != submit.lane:
                target_s = policy.ttft_s.get(lane)
                deadline_ns = submit.received_ns + round(target_s * 1e9) if target_s is not None else 0
                submit = sequence.submit = replace(submit, lane=lane, ttft_deadline_ns=deadline_ns)
        sequence.tpot_ns = round(policy.tpot_s.get(submit.lane, 0.0) * 1e9)
        sequence.latest_start_ns = latest_start_ns(submit, policy, limits.lane(submit.lane))
        if sequence.latest_start_ns:
            heappush(self._latest_starts, (sequence.latest_start_ns, sequence.sequence_id))

    def _expire(self, now_ns: int) -> None:
        """End what waited for its first step too long: it would be late, and whoever waits behind it too."""
        while self._latest_starts and self._latest_starts[0][0] < now_ns:
            sequence = self._sequences.get(heappop(self._latest_starts)[1])
            if sequence is not None and not sequence.scheduled_ns:
                self._events.append(event_of(sequence, (), (), FinishReason.EXPIRED))
                self._end(sequence)
                self._check_if_idle()

    def _preempt_if_forced(self) -> None:
        every = self._limits.preempt_every_steps
        victim = self._roster.youngest() if every and self._num_steps % every == 0 else None
        if victim is not None:
            self._roster.preempt(victim, "forced")

    def _check_if_idle(self) -> None:
        if self.is_idle:
            self.check_integrity()
