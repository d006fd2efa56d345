"""Fills a step: decodes first, then prefill chunks of running sequences, then new ones, under the token budget."""

from engine.scheduling.draft import Draft
from engine.scheduling.kv_memory import Match
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster


class Planner:
    """Decides on rows; the roster moves sequences and pages accordingly."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._limits = roster.limits
        self._memory = roster.memory

    def draft(self, now_ns: int, *, lone_first: bool, lone_possible: bool) -> Draft:
        """The next step's rows; an empty draft when nothing can run before the steps in flight are committed.

        A chunk with prompt log-probabilities is *lone*: it has its step to itself, decodes included. Lone steps
        alternate with ordinary ones, so that nobody waits for more than one of them.
        """
        if not lone_possible:
            return self._fill(Draft(self._limits), now_ns)
        draft = self._fill(Draft(self._limits, lone=lone_first), now_ns)
        if draft.is_empty:
            draft = self._fill(Draft(self._limits, lone=not lone_first), now_ns)
        return draft

    def _fill(self, draft: Draft, now_ns: int) -> Draft:
        if not draft.lone:
            self._plan_decodes(draft)
        self._plan_prefills(draft, now_ns)
        if draft.prefills and self._limits.enable_chunked_prefill:
            draft.trim()
        return draft

    def _plan_decodes(self, draft: Draft) -> None:
        for sequence in tuple(self._roster.running):
            if sequence.wants_decode and self._make_room_for_decode(sequence):
                draft.add_decode(sequence)

    def _make_room_for_decode(self, sequence: Sequence) -> bool:
        """Oldest first, so a victim is the sequence itself or one that is not in the plan yet."""
        while not self._memory.grow(sequence, sequence.planned_tokens + 1):
            victim = self._roster.youngest()
            assert victim is not None, "a sequence that lacks a page can itself be preempted"
            self._roster.preempt(victim, "memory")
            if victim is sequence:
                return False
        return True

    def _plan_prefills(self, draft: Draft, now_ns: int) -> None:
        for sequence in tuple(self._roster.running):
            if not draft.tokens_left:
                return
            is_next = sequence.slot >= 0 and sequence.uncomputed_tokens and sequence.wants_prompt_logprobs == draft.lone
            if is_next and not self._plan_chunk(draft, sequence):
                return
        self._admit(draft, now_ns)

    def _plan_chunk(self, draft: Draft, sequence: Sequence) -> bool:
        """Plan its next chunk; False when budget or memory cut it short and nobody behind it may go ahead."""
        wanted = self._chunk_tokens(draft, sequence.uncomputed_tokens)
        if not wanted:
            return False
        while not self._memory.grow(sequence, sequence.planned_tokens + wanted):
            victim = self._roster.youngest_prefill_behind(sequence)
            if victim is None:
                break
            self._roster.preempt(victim, "memory")
        # Without a younger prefill to take pages from it waits for decodes to end: they are not preempted for it.
        tokens = min(wanted, self._memory.room(sequence) - sequence.planned_tokens)
        if tokens:
            self._memory.grow(sequence, sequence.planned_tokens + tokens)
            draft.add_chunk(sequence, tokens)
        return tokens == wanted

    def _chunk_tokens(self, draft: Draft, remaining_tokens: int) -> int:
        """How many of a prompt's remaining tokens go into this step."""
        tokens = min(remaining_tokens, draft.tokens_left)
        must_be_whole = not self._limits.enable_chunked_prefill and remaining_tokens <= draft.capacity_tokens
        return 0 if must_be_whole and tokens < remaining_tokens else tokens

    def _admit(self, draft: Draft, now_ns: int) -> None:
        """Take new sequences in the queue's order.

        Who lacks a slot or memory stops everybody behind it, so nobody starves. A sequence of the other kind (lone
        or not) is passed over, and the slot and pages it needs are left for it. A sequence whose next pages a running
        prefill is computing is passed over too: that prefill has a chunk in the next steps, or decodes before it have.
        """
        slots, spoken_for = self._roster.num_free_slots, 0
        for sequence in self._roster.queue if slots else ():
            if slots <= 0 or not draft.tokens_left:
                break
            match = self._match_unless_held(sequence)
            if match is None:
                continue
            missing = self._memory.missing_pages(sequence, self._roster.tokens_to_hold(sequence), match)
            if missing + spoken_for + self._roster.pages_promised() > self._memory.pool.num_available:
                break
            slots -= 1
            if sequence.wants_prompt_logprobs != draft.lone:
                spoken_for += missing
                continue
            if not self._chunk_tokens(draft, len(sequence.tokens) - len(match.pages) * self._limits.page_size):
                break
            self._roster.start(sequence, match, now_ns)
            draft.admit(sequence)
            if not self._plan_chunk(draft, sequence):
                break

    def _match_unless_held(self, sequence: Sequence) -> Match | None:
        """None: the next pages it lacks are being computed by a running prefill; soon it can have them for nothing."""
        if sequence.awaited_key is not None and self._memory.is_announced(sequence.awaited_key):
            return None
        match = self._memory.match(sequence)
        sequence.awaited_key = match.awaited_key
        return None if match.awaited_key is not None else match
