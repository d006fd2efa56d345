"""Which rows run in the next step, and what becomes of a step's tokens. Pure and deterministic: no clock, no I/O.

Decode first: every running decode is in every step. Then prefill chunks, first come first served, under the token
budget. A step may be planned while the one before it runs: a decode row whose input token is still on the device is
planned by its position alone, and what turns out to be late is dropped at its commit (see `Sequence.epoch`).
"""

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush

from engine.errors import InvalidSequence
from engine.scheduling.door import check_submit
from engine.scheduling.draft import Draft, PlannedStep
from engine.scheduling.kv_memory import KvMemory, Match
from engine.scheduling.limits import Limits
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.policy import FirstComeFirstServed, WaitingQueue
from engine.scheduling.report import Counters, WaitingTally, load_of, pad_tokens_of, record_of
from engine.scheduling.request import Sequence
from engine.wire import FinishReason, Load, SequenceEvent, StepRecord, Submit, TokenLogprob

MAX_PREEMPTIONS = 2
"""Of one sequence. Then it waits until all the pages of its longest output are to be had, takes them at once, and
runs to its end undisturbed. So there is always a sequence that can be preempted when a page is missing: one that
lacks a page has not been preempted twice."""


class Scheduler:
    """Owns all sequences between `submit` and their one event with `finish`."""

    def __init__(self, limits: Limits, queue: WaitingQueue | None = None) -> None:
        self._limits = limits
        self._memory = KvMemory(limits)
        self._queue = queue or FirstComeFirstServed()
        self._waiting = WaitingTally()
        self._counters = Counters()
        self._sequences: dict[int, Sequence] = {}
        self._running: list[Sequence] = []  # oldest first
        self._free_slots = list(range(limits.max_num_seqs))
        heapify(self._free_slots)
        self._in_flight: deque[PlannedStep] = deque()
        self._committed: PlannedStep | None = None
        self._events: list[SequenceEvent] = []
        self._lone: dict[int, None] = {}  # live sequences that want prompt log-probabilities
        self._last_step_was_lone = False
        self._num_steps = 0
        self._num_arrivals = 0
        self._last_sequence_id = 0
        self._preempted: list[int] = []  # since the last plan
        self._evicted_before = 0

    # ---- from outside -------------------------------------------------------------------------------------------

    def submit(self, submit: Submit) -> None:
        """Take a sequence into the queue.

        Raises:
            InvalidSequence: it can never run; nothing was taken.
        """
        self._last_sequence_id = submit.sequence_id
        check_submit(submit, self._limits)
        if submit.sequence_id in self._sequences:
            raise InvalidSequence(f"sequence {submit.sequence_id} exists already")
        sequence = Sequence(submit, self._num_arrivals, list(submit.prompt), len(submit.prompt))
        self._check_pool(sequence)
        self._num_arrivals += 1
        self._sequences[submit.sequence_id] = sequence
        if sequence.wants_prompt_logprobs:
            self._lone[submit.sequence_id] = None
        self._enqueue(sequence)

    def abort(self, sequence_id: int) -> None:
        """End a sequence now, wherever it is; its event comes from `take_events`. Unknown ids ended already."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._events.append(self._event(sequence, (), (), FinishReason.ABORT))
            self._end(sequence)
            self._check_if_idle()

    def take_events(self) -> list[SequenceEvent]:
        """Events that no step made, since the last call."""
        events, self._events = self._events, []
        return events

    def pin_prefix(self, salt: str, tokens: tuple[int, ...]) -> int:
        """Keep the full pages of `tokens` for ever, once a sequence with this prompt has run; pages pinned."""
        return self._memory.pin(salt, tokens)

    @property
    def has_work(self) -> bool:
        """A sequence is alive, or a step's results are awaited."""
        return bool(self._sequences or self._in_flight)

    @property
    def is_idle(self) -> bool:
        return not self.has_work

    def check_integrity(self) -> None:
        """Constant time. Raises AssertionError when a page or slot is lost: our own bug."""
        self._memory.pool.check()
        if self.is_idle:
            self._memory.check_nothing_used()
            assert len(self._free_slots) == self._limits.max_num_seqs, "idle, but a slot is taken"
            assert not self._running and not len(self._queue), "idle, but a sequence is scheduled"

    def load(self, now_ns: int, *, compiles_after_ready: int = 0) -> Load:
        """State now; `compiles_after_ready` is passed through."""
        return load_of(
            now_ns=now_ns,
            last_sequence_id=self._last_sequence_id,
            running=self._running,
            waiting=self._waiting,
            oldest_queued_ns=self._queue.oldest_received_ns(),
            pool=self._memory.pool,
            page_size=self._limits.page_size,
            counters=self._counters,
            compiles_after_ready=compiles_after_ready,
        )

    def record(self, plan: StepPlan, *, planned_ns: int, dispatched_ns: int, done_ns: int, committed_ns: int) -> StepRecord:
        """The ledger's tuple of the step committed last."""
        step = self._committed
        assert step is not None and step.plan is plan, "record belongs right after commit"
        return record_of(
            step,
            planned_ns=planned_ns,
            dispatched_ns=dispatched_ns,
            done_ns=done_ns,
            committed_ns=committed_ns,
            pages_free=self._memory.pool.num_free,
        )

    # ---- plan ---------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int) -> StepPlan | None:
        """The next step, or None when there is nothing to run before the steps in flight are committed."""
        self._preempt_if_forced()
        draft = self._draft(now_ns)
        if draft.is_empty:
            return None
        evicted = self._memory.pool.num_evicted
        step = draft.finish(self._num_steps, tuple(self._preempted), evicted - self._evicted_before)
        self._evicted_before = evicted
        self._preempted = []
        self._num_steps += 1
        self._last_step_was_lone = draft.lone
        self._counters.pad_tokens += pad_tokens_of(step)
        self._in_flight.append(step)
        return step.plan

    def _draft(self, now_ns: int) -> Draft:
        # A chunk with prompt log-probabilities has its step to itself, decodes included; such steps alternate with
        # ordinary ones, so that nobody waits for more than one of them.
        if self._lone and not self._last_step_was_lone:
            draft = Draft(self._limits, lone=True)
            self._plan_prefills(draft, now_ns)
            if not draft.is_empty:
                return draft
        draft = Draft(self._limits)
        self._plan_decodes(draft)
        self._plan_prefills(draft, now_ns)
        if draft.is_empty and self._lone:
            draft = Draft(self._limits, lone=True)
            self._plan_prefills(draft, now_ns)
        return draft

    def _plan_decodes(self, draft: Draft) -> None:
        for sequence in tuple(self._running):
            if sequence.wants_decode and self._make_room_for_decode(sequence):
                draft.add_decode(sequence)

    def _make_room_for_decode(self, sequence: Sequence) -> bool:
        """Oldest first, so a victim is the sequence itself or one that is not in the plan yet."""
        while not self._memory.grow(sequence, sequence.planned_tokens + 1):
            victim = self._youngest()
            assert victim is not None, "a sequence that lacks a page can itself be preempted"
            self._preempt(victim, "memory")
            if victim is sequence:
                return False
        return True

    def _plan_prefills(self, draft: Draft, now_ns: int) -> None:
        for sequence in tuple(self._running):
            if not draft.tokens_left:
                return
            if sequence.slot >= 0 and sequence.uncomputed_tokens and sequence.wants_prompt_logprobs == draft.lone:
                if not self._plan_chunk(draft, sequence):
                    return
        self._admit(draft, now_ns)

    def _plan_chunk(self, draft: Draft, sequence: Sequence) -> bool:
        """Plan its next chunk; False when budget or memory cut it short and nobody behind it may go ahead."""
        wanted = self._chunk_tokens(draft, sequence.uncomputed_tokens)
        if not wanted:
            return False
        while not self._memory.grow(sequence, sequence.planned_tokens + wanted):
            victim = self._youngest_prefill_behind(sequence)
            if victim is None:
                break
            self._preempt(victim, "memory")
        # Without a younger prefill to take pages from it waits for decodes to end: they are never preempted for it.
        tokens = min(wanted, self._memory.room(sequence) - sequence.planned_tokens)
        if tokens:
            self._memory.grow(sequence, sequence.planned_tokens + tokens)
            draft.add_chunk(sequence, tokens)
        return tokens == wanted

    def _chunk_tokens(self, draft: Draft, remaining_tokens: int) -> int:
        """How many of a prompt's remaining tokens go into this step."""
        tokens = min(remaining_tokens, draft.tokens_left)
        must_be_whole = not self._limits.enable_chunked_prefill and remaining_tokens <= draft.capacity_tokens and not draft.lone
        return 0 if must_be_whole and tokens < remaining_tokens else tokens

    # ---- admission ----------------------------------------------------------------------------------------------

    def _admit(self, draft: Draft, now_ns: int) -> None:
        held = self._admit_in_order(draft, now_ns, may_hold=True)
        if held and draft.is_empty and not self._in_flight:
            self._admit_in_order(draft, now_ns, may_hold=False)

    def _admit_in_order(self, draft: Draft, now_ns: int, *, may_hold: bool) -> bool:
        """Whether a sequence was held back because somebody computes its prefix right now.

        Who lacks a slot or memory stops everybody behind it, so nobody starves. A sequence of the other kind (lone
        or not) is passed over, and the slot and pages it needs are left for it.
        """
        held = False
        slots, spoken_for = len(self._free_slots), 0
        for sequence in self._queue if slots else ():
            if slots <= 0 or not draft.tokens_left:
                break
            match = self._match_unless_held(sequence) if may_hold else self._memory.match(sequence)
            if match is None:
                held = True
                continue
            missing = self._memory.missing_pages(sequence, self._tokens_to_hold(sequence), match)
            if missing + spoken_for + self._pages_promised() > self._memory.pool.num_available:
                break
            slots -= 1
            if sequence.wants_prompt_logprobs != draft.lone:
                spoken_for += missing
                continue
            cached_tokens = len(match.pages) * self._limits.page_size
            if not self._chunk_tokens(draft, len(sequence.tokens) - cached_tokens):
                break
            self._start(draft, sequence, match, now_ns)
            if not self._plan_chunk(draft, sequence):
                break
        return held

    def _match_unless_held(self, sequence: Sequence) -> Match | None:
        """None: the next pages it lacks are being computed by a running prefill; soon it can have them for nothing."""
        if sequence.awaited_key is not None and self._memory.is_announced(sequence.awaited_key):
            return None
        match = self._memory.match(sequence)
        sequence.awaited_key = match.awaited_key
        return None if match.awaited_key is not None else match

    def _tokens_to_hold(self, sequence: Sequence) -> int:
        """Admission needs room for all known tokens; after the last preemption for the longest output too, whose
        last token is never written."""
        return sequence.max_tokens - 1 if sequence.preemptions >= MAX_PREEMPTIONS else len(sequence.tokens)

    def _pages_promised(self) -> int:
        """What running prefills have still to take, and one page a running sequence, so that an admission is not
        undone by the next few decodes."""
        pages_for = self._limits.pages_for
        return sum(
            1 if running.decoding else 1 + pages_for(len(running.tokens)) - len(running.pages)
            for running in self._running
            if running.preemptions < MAX_PREEMPTIONS
        )

    def _start(self, draft: Draft, sequence: Sequence, match: Match, now_ns: int) -> None:
        """Slot, cached prefix, and for a sequence that may not be preempted again all its pages."""
        self._queue.remove(sequence)
        self._waiting.remove(sequence)
        sequence.slot = heappop(self._free_slots)
        sequence.awaited_key = None
        insort(self._running, sequence, key=_arrival)
        self._memory.adopt(sequence, match)
        if sequence.preemptions >= MAX_PREEMPTIONS:
            self._memory.grow(sequence, self._tokens_to_hold(sequence))
        self._count_admission(sequence)
        sequence.scheduled_ns = sequence.scheduled_ns or now_ns
        draft.admit(sequence)

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.preemptions:
            self._counters.recomputed_tokens += max(0, sequence.lost_tokens - sequence.planned_tokens)
        elif self._limits.enable_prefix_caching:
            self._counters.prefix_query_tokens += sequence.prompt_tokens
            self._counters.prefix_hit_tokens += sequence.planned_tokens
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.planned_tokens

    def _check_pool(self, sequence: Sequence) -> None:
        needed = self._limits.pages_for(sequence.max_tokens - 1)
        if needed <= self._limits.num_pages - self._memory.num_pinned:
            return
        available = self._memory.pages_ever_available(sequence)
        if needed > available:
            raise InvalidSequence(
                f"the prompt has {sequence.prompt_tokens} tokens and max_tokens is {sequence.submit.sampling.max_tokens}: that needs"
                f" {needed} KV pages of {self._limits.page_size} tokens, and the pool has {available} for one sequence"
            )

    # ---- preemption ---------------------------------------------------------------------------------------------

    def _preempt_if_forced(self) -> None:
        every = self._limits.preempt_every_steps
        if every and self._num_steps and self._num_steps % every == 0:
            victim = self._youngest()
            if victim is not None:
                self._preempt(victim, "forced")

    def _youngest(self) -> Sequence | None:
        """The youngest running sequence that may be preempted."""
        return next((sequence for sequence in reversed(self._running) if sequence.preemptions < MAX_PREEMPTIONS), None)

    def _youngest_prefill_behind(self, sequence: Sequence) -> Sequence | None:
        """The same among younger prefills, none of which is in the plan yet."""
        for other in reversed(self._running):
            if other is sequence:
                return None
            if not other.decoding and other.preemptions < MAX_PREEMPTIONS:
                return other
        return None

    def _preempt(self, sequence: Sequence, cause: str) -> None:
        """Back to the queue, to recompute prompt and output known so far. Samples in flight for it are drawn again."""
        lost_tokens = sequence.planned_tokens
        self._leave_device(sequence)
        sequence.lost_tokens = lost_tokens
        sequence.preemptions += 1
        self._counters.preemptions[cause] += 1
        self._preempted.append(sequence.sequence_id)
        self._enqueue(sequence)

    # ---- commit -------------------------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, result: StepResult, now_ns: int) -> list[SequenceEvent]:
        """Take a step's tokens, in the order of the plans. At most one event a sequence."""
        del now_ns  # the tenant-fair policy and the step model will want it
        step = self._in_flight.popleft()
        assert step.plan is plan, "steps are committed in the order they were planned"
        self._committed = step
        events: list[SequenceEvent] = []
        for index, row in enumerate(step.rows):
            sequence = row.sequence
            if row.epoch != sequence.epoch:
                continue  # late: the sequence ended, was aborted or preempted after this row was planned
            sequence.computed_tokens += row.tokens
            if sequence.submit.sampling.prompt_logprobs >= 0 and not row.is_decode and result.prompt_logprobs:
                sequence.prompt_logprobs.extend(result.prompt_logprobs[index - len(plan.decodes)])
            self._memory.register(sequence)
            if row.samples:
                events.append(self._take_token(sequence, result.tokens[index], result.logprobs[index]))
        self._check_if_idle()
        return events

    def _take_token(self, sequence: Sequence, token: int, logprob: TokenLogprob | None) -> SequenceEvent:
        sequence.in_flight_samples -= 1
        sequence.tokens.append(token)
        finish = self._finish_reason(sequence, token)
        event = self._event(sequence, (token,), () if logprob is None else (logprob,), finish)
        if finish is not None:
            self._end(sequence)
        return event

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        sampling = sequence.submit.sampling
        if len(sequence.tokens) - sequence.prompt_tokens >= sampling.min_tokens:
            if token in sampling.stop_token_ids or (token in self._limits.eos_token_ids and not sampling.ignore_eos):
                return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.tokens) >= sequence.max_tokens else None

    def _event(
        self, sequence: Sequence, tokens: tuple[int, ...], logprobs: tuple[TokenLogprob, ...], finish: FinishReason | None
    ) -> SequenceEvent:
        stop_token_id = tokens[0] if finish is FinishReason.STOP else None
        if sequence.first_event_sent:
            return SequenceEvent(sequence.sequence_id, tokens, logprobs, finish, stop_token_id)
        prompt_logprobs = tuple(sequence.prompt_logprobs[: sequence.prompt_tokens - 1])
        sequence.first_event_sent = True
        self._lone.pop(sequence.sequence_id, None)
        return SequenceEvent(
            sequence.sequence_id,
            tokens,
            logprobs,
            finish,
            stop_token_id,
            cached_tokens=sequence.cached_tokens,
            scheduled_ns=sequence.scheduled_ns,
            prompt_logprobs=prompt_logprobs,
        )

    # ---- shared -------------------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        self._queue.add(sequence)
        self._waiting.add(sequence)

    def _leave_device(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self._memory.release(sequence)
        sequence.forget_device_state()

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.sequence_id]
        if sequence.slot >= 0:
            self._leave_device(sequence)
        else:
            self._queue.remove(sequence)
            self._waiting.remove(sequence)

    def _check_if_idle(self) -> None:
        if self.is_idle:
            self.check_integrity()


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
