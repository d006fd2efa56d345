"""Fills a step: decodes first, then prefill chunks in the policy's order, under the budgets of tokens and time."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.scheduling.budget import StepBudget
from engine.scheduling.draft import Draft
from engine.scheduling.kv_memory import Match
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster, is_protected


@dataclass(slots=True)
class _Turn:
    """What is left for prefills and admissions while one step is filled."""

    slots: int
    spoken_for: int = 0
    """Pages that sequences of the other kind (lone or not) will need, which were passed over."""
    is_open: bool = True
    """Nobody was stopped for whom everybody behind has to wait."""
    blocked: set[str] = field(default_factory=set)
    """Tenants that get no more rows, or are beyond their share of pages and lack more: nobody else waits for them."""
    lane_rows: dict[str, int] = field(default_factory=dict)
    """Prompts in the step by lane."""

    def count_rows(self, lane: str, more: int) -> None:
        """So many more of the lane's prompts are in the step."""
        self.lane_rows[lane] = self.lane_rows.get(lane, 0) + more


class Planner:
    """Decides on rows; the roster moves sequences and pages accordingly."""

    def __init__(self, roster: Roster, budget: StepBudget) -> None:
        self._roster = roster
        self._limits = roster.limits
        self._memory = roster.memory
        self._policy = roster.queue
        self._budget = budget

    def draft(self, now_ns: int, *, ahead_s: float, is_idle: bool, lone_first: bool, lone_possible: bool) -> Draft:
        """The next step's rows; an empty draft when nothing can run before the steps in flight are committed, which
        will take `ahead_s`. `is_idle`: there are none.

        A chunk with prompt log-probabilities is *lone*: it has its step to itself, decodes included. Lone steps
        alternate with ordinary ones, so that nobody waits for more than one of them.
        """
        start_ns = now_ns + round(ahead_s * 1e9)
        if self._policy.is_fair:
            self._roster.clear_the_way()
            self._make_way(now_ns)
        draft = self._fill(Draft(self._limits, lone=lone_possible and lone_first), now_ns, start_ns)
        if draft.is_empty and lone_possible:
            draft = self._fill(Draft(self._limits, lone=not lone_first), now_ns, start_ns)
        if draft.is_empty and is_idle:
            self._add_waiting_decodes(draft := Draft(self._limits))
        return draft

    def can_start(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence finds a row and its pages now, with nobody preempted for it."""
        if self._lane_is_open(sequence) or not self._roster.shares.has_row(sequence.submit.tenant_id, self._roster.num_free_slots):
            return False
        match = self._match_unless_held(sequence)
        return match is not None and self._has_pages(
            sequence, self._memory.missing_pages(sequence, self._roster.expected_tokens(sequence), match)
        )

    def _fill(self, draft: Draft, now_ns: int, start_ns: int) -> Draft:
        if not draft.lone:
            self._plan_decodes(draft, start_ns)
        self._plan_prefills(draft, now_ns)
        if draft.prefills and self._limits.enable_chunked_prefill and self._budget.pays_padding:
            draft.trim()
        return draft

    # ---- decodes

    def _plan_decodes(self, draft: Draft, start_ns: int) -> None:
        by_claim = self._roster.by_claim()
        decodes = [sequence for sequence in by_claim if sequence.wants_decode]
        outside = self._roster.accounts.outside_contract([sequence.submit.tenant_id for sequence in decodes], start_ns)
        chosen = self._budget.choose_decodes(decodes, start_ns, is_urgent=self._has_fast_work(), outside_contract=outside)
        draft.token_limit = self._budget.token_limit(chosen, start_ns)
        self._add_decodes(draft, chosen, by_claim)

    def _add_decodes(self, draft: Draft, decodes: Iterable[Sequence], victims: list[Sequence]) -> None:
        """In the order of their claims."""
        for sequence in decodes:
            if sequence.slot >= 0 and self._make_room_for_decode(sequence, victims):
                draft.add_decode(sequence)

    def _add_waiting_decodes(self, draft: Draft) -> None:
        """Whoever they stayed out for can not start, and the device would stand still until they are due: on a machine whose every step
        is longer than the step limit, no decode is within it."""
        by_claim = self._roster.by_claim()
        self._add_decodes(draft, [sequence for sequence in by_claim if sequence.wants_decode], by_claim)

    def _has_fast_work(self) -> bool:
        roster = self._roster
        return roster.waiting.lanes["fast"] > 0 or any(s.submit.lane == "fast" and not s.is_paused for s in roster.running)

    def _make_room_for_decode(self, sequence: Sequence, victims: list[Sequence]) -> bool:
        """Strongest claim first, so a victim is the sequence itself or one that is not in the plan yet."""
        while not self._memory.grow(sequence, sequence.planned_tokens + 1):
            if self._park_for(sequence, is_beyond_cap=self._memory.is_held_by_cap(sequence.submit.tenant_id)):
                continue
            victim = next((other for other in reversed(victims) if self._can_yield(other, sequence)), None)
            assert victim is not None, "a sequence that lacks a page can itself be preempted"
            self._roster.preempt(victim, "memory", sequence.submit.tenant_id)
            if victim is sequence:
                return False
        return True

    def _can_yield(self, other: Sequence, sequence: Sequence) -> bool:
        return other.slot >= 0 and not is_protected(other) and self._roster.shares.may_lose_to(other, sequence.submit.tenant_id)

    # ---- prefills

    def _plan_prefills(self, draft: Draft, now_ns: int) -> None:
        """Whoever is cut short stops all admissions behind it, so nobody starves; but a tenant beyond its share of pages
        stops only itself. Begun prompts go on whoever waits: they were promised their pages."""
        if len(self._policy) and not self._roster.num_free_slots:
            self._roster.park_one()
        self._policy.note_pace(self._budget.prompt_token_s(draft.decode_work))
        turn = _Turn(self._roster.num_free_slots)
        begun = {sequence.sequence_id: sequence for sequence in self._roster.begun()}
        fast_is_to_come = self._policy.is_fair and self._has_fast_prefills(begun.values())
        budget_is_fast: bool | None = None
        for sequence in self._policy.order(begun.values(), now_ns, with_waiting=turn.slots > 0):
            is_fast = sequence.submit.lane == "fast"
            fast_is_to_come = fast_is_to_come and not is_fast
            if budget_is_fast is None or (budget_is_fast and not is_fast) or (is_fast and not budget_is_fast and self._policy.is_fair):
                budget_is_fast = is_fast
                self._set_budget(draft, sequence, is_fast=is_fast, has_fast=fast_is_to_come or draft.has_fast_chunk)
            if not draft.tokens_left:
                if fast_is_to_come:
                    continue  # a lane that was owed went first; the step is the fast lane's all the same
                return
            if self._lane_is_full(sequence, turn):
                continue
            tenant_id, num_chunks = sequence.submit.tenant_id, len(draft.prefills)
            if sequence.sequence_id in begun:
                went_on = sequence.slot < 0 or self._go_on(draft, sequence)  # no slot: preempted for this very step
            elif turn.is_open and tenant_id not in turn.blocked:
                went_on = self._admit(draft, sequence, turn, now_ns)
            else:
                continue
            turn.count_rows(sequence.submit.lane, len(draft.prefills) - num_chunks)
            if not went_on and self._policy.is_fair and self._roster.shares.is_over(tenant_id):
                turn.blocked.add(tenant_id)
            elif not went_on:
                turn.is_open = False

    def _has_fast_prefills(self, begun: Iterable[Sequence]) -> bool:
        return self._roster.waiting.lanes["fast"] > 0 or any(sequence.submit.lane == "fast" for sequence in begun)

    def _set_budget(self, draft: Draft, first: Sequence, *, is_fast: bool, has_fast: bool) -> None:
        """By time: for the fast lane's chunks, and anew for what comes behind them."""
        if draft.lone or not self._limits.enable_chunked_prefill:
            return
        is_shared = self._roster.accounts.others_may_come
        draft.budget_rows = self._budget.prefill_rows(
            draft.token_limit,
            draft.decode_work,
            first.planned_tokens,
            wanted_tokens=draft.padded_tokens + first.uncomputed_tokens,
            is_fast=is_fast,
            is_shared=is_shared,
            has_fast=has_fast,
        )

    def _go_on(self, draft: Draft, sequence: Sequence) -> bool:
        return sequence.wants_prompt_logprobs != draft.lone or self._plan_chunk(draft, sequence)

    def _plan_chunk(self, draft: Draft, sequence: Sequence) -> bool:
        """Plan its next chunk; False when budget or memory cut it short and nobody behind it may go ahead."""
        wanted = self._chunk_tokens(draft, sequence.uncomputed_tokens)
        if not wanted:
            return False
        while not self._memory.grow(sequence, sequence.planned_tokens + wanted):
            if self._park_for(sequence, is_beyond_cap=self._memory.is_held_by_cap(sequence.submit.tenant_id)):
                continue
            victim = self._victim_behind(draft, sequence)
            if victim is None:
                break
            self._roster.preempt(victim, "memory", sequence.submit.tenant_id)
        # Without another prefill to take pages from it waits for decodes to end: they are not preempted for it.
        tokens = min(wanted, self._memory.room(sequence) - sequence.planned_tokens)
        if tokens:
            self._memory.grow(sequence, sequence.planned_tokens + tokens)
            draft.add_chunk(sequence, tokens)
        return tokens == wanted

    def _victim_behind(self, draft: Draft, sequence: Sequence) -> Sequence | None:
        """A prefill with a weaker claim that is not in the step already."""
        planned = [row.sequence for row in draft.rows]
        return self._roster.last_prefill_behind(sequence, planned)

    def _chunk_tokens(self, draft: Draft, remaining_tokens: int) -> int:
        """How many of a prompt's remaining tokens go into this step."""
        tokens = min(remaining_tokens, draft.tokens_left)
        must_be_whole = not self._limits.enable_chunked_prefill and remaining_tokens <= draft.capacity_tokens
        return 0 if must_be_whole and tokens < remaining_tokens else tokens

    # ---- admissions

    def _admit(self, draft: Draft, sequence: Sequence, turn: _Turn, now_ns: int) -> bool:
        """Take a waiting sequence into a slot and plan its first chunk; False when it is stopped by what it lacks.

        A sequence of the other kind (lone or not) is passed over, and the slot and pages it needs are left for it. A
        sequence whose next pages a running prefill is computing is passed over too: that prefill has a chunk in the
        next steps, or decodes before it have.
        """
        if self._lane_is_open(sequence):
            return True
        while not self._has_row(sequence, turn):
            if self._roster.park_one(taker_id=sequence.submit.tenant_id):
                turn.slots += 1
                continue
            turn.blocked.add(sequence.submit.tenant_id)
            return self._policy.is_fair  # another tenant may still have one
        match = self._match_unless_held(sequence, draft)
        if match is None:
            return True
        missing = self._memory.missing_pages(sequence, self._roster.expected_tokens(sequence), match)
        wanted = missing + turn.spoken_for
        owed_before = self._pages_owed_before(sequence)
        if owed_before and not self._has_pages(sequence, wanted + owed_before):
            return True
        if not self._has_pages(sequence, wanted):
            if self._park_for(sequence, is_beyond_cap=self._memory.is_beyond_cap(sequence, wanted)):
                turn.slots += 1
                return self._admit(draft, sequence, turn, now_ns)  # what it finds in the cache may be more now
            return False
        turn.slots -= 1
        if sequence.wants_prompt_logprobs != draft.lone:
            turn.spoken_for += missing
            return True
        if not self._chunk_tokens(draft, len(sequence.tokens) - match.tokens):
            return False
        self._roster.start(sequence, match, now_ns)
        draft.admit(sequence)
        return self._plan_chunk(draft, sequence)

    def _lane_is_full(self, sequence: Sequence, turn: _Turn) -> bool:
        """Its lane has as many prompts in this step as it may have."""
        most = self._limits.lane(sequence.submit.lane).prefill_rows
        return self._policy.is_fair and 0 < most <= turn.lane_rows.get(sequence.submit.lane, 0)

    def _lane_is_open(self, sequence: Sequence) -> bool:
        """Its lane has as many begun prompts as it may have, one of them its tenant's; it is passed over."""
        lane, tenant_id = sequence.submit.lane, sequence.submit.tenant_id
        most = self._limits.lane(lane).open_prefills
        if not most or not self._policy.is_fair:
            return False
        begun = [other.submit.tenant_id for other in self._roster.begun() if other.submit.lane == lane]
        return len(begun) >= most and tenant_id in begun

    def _pages_owed_before(self, sequence: Sequence) -> int:
        """What the first of another lane lacks that goes before it to its tenant's pages."""
        owed = self._policy.owed_before(sequence)
        match = None if owed is None else self._match_unless_held(owed)
        if owed is None or match is None:
            return 0
        return self._memory.missing_pages(owed, self._roster.expected_tokens(owed), match)

    def _has_row(self, sequence: Sequence, turn: _Turn) -> bool:
        if not self._policy.is_fair:
            return turn.slots > 0
        return self._roster.shares.has_row(sequence.submit.tenant_id, turn.slots)

    def _park_for(self, sequence: Sequence, *, is_beyond_cap: bool) -> bool:
        """Pages of a paused sequence for one that lacks some; only its own tenant's help it where the tenant's cap is in the way."""
        tenant_id = sequence.submit.tenant_id
        return self._roster.park_one(taker_id=tenant_id, of_tenant=tenant_id if is_beyond_cap else None)

    def _has_pages(self, sequence: Sequence, missing: int) -> bool:
        keep_back = self._roster.shares.pages_kept_back(sequence) if self._policy.is_fair else 0
        return self._memory.has_room(sequence, missing, keep_back=keep_back)

    def _match_unless_held(self, sequence: Sequence, draft: Draft | None = None) -> Match | None:
        """None: the next pages it lacks are being computed by a running prefill, or will be by the first output of its prompt; soon it
        can have them for nothing."""
        leader = self._leader_of(sequence)
        if leader is not None:
            is_in_step = draft is not None and any(row.sequence is leader and not row.is_decode for row in draft.rows)
            return None if is_in_step or not leader.decoding else self._memory.fork(sequence, leader)
        if sequence.awaited_key is not None and self._memory.is_announced(sequence.awaited_key):
            return None
        match = self._memory.match(sequence)
        sequence.awaited_key = match.awaited_key
        return None if match.awaited_key is not None else match

    def _leader_of(self, sequence: Sequence) -> Sequence | None:
        """Not one that ended, or that lost the prompt's pages before."""
        leader = sequence.leader
        if leader is not None and (leader.has_ended or leader.is_paused or leader.preemptions or sequence.preemptions):
            leader = sequence.leader = None
        return leader

    def _make_way(self, now_ns: int) -> None:
        """For the first waiting sequence with a claim: preempt batch work, then sequences of tenants beyond their share. A tenant within
        its share has a claim, and interactive work to the place of its own tenant's batch work."""
        shares, running = self._roster.shares, self._roster.running
        if not len(self._policy) or not self._roster.num_free_slots:
            return
        with_batch = {sequence.submit.tenant_id for sequence in running if self._roster.is_batch(sequence)}
        if not self._roster.accounts.others_may_come and not with_batch:
            return
        over = shares.tenants_over()
        for first in self._policy.order((), now_ns, with_waiting=True):
            tenant_id = first.submit.tenant_id
            if tenant_id not in over or (not self._roster.is_batch(first) and tenant_id in with_batch):
                self._make_way_for(first)
                return

    def _make_way_for(self, first: Sequence) -> None:
        match = self._match_unless_held(first)
        if match is None:
            return
        missing = self._memory.missing_pages(first, self._roster.expected_tokens(first), match)
        is_within = not self._roster.shares.is_over(first.submit.tenant_id, missing)
        while not self._has_pages(first, missing):
            victim = self._roster.victim_for(first, is_within_share=is_within)
            if victim is None:
                return
            self._roster.preempt(victim, "memory", first.submit.tenant_id)
