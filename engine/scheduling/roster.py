"""Who runs and who waits: every live sequence has a slot and pages, or a place in the queue."""

from bisect import insort
from heapq import heappop, heappush

from engine.scheduling.kv_memory import KvMemory, Match
from engine.scheduling.limits import Limits
from engine.scheduling.output_lengths import OutputLengths
from engine.scheduling.policy import Policy
from engine.scheduling.report import Counters, WaitingTally
from engine.scheduling.request import Sequence
from engine.scheduling.shares import Shares
from engine.scheduling.step_model import StepModel
from engine.scheduling.swap import swap_is_cheaper
from engine.scheduling.tenants import Accounts
from engine.wire import Preemption

MAX_PREEMPTIONS = 2
"""Of one sequence. Then it waits until all the pages of its longest output are to be had, takes them at once, and
runs to its end undisturbed. So there is always a sequence that can be preempted when a page is missing: one that
lacks a page has not been preempted twice."""


class Roster:
    """Moves sequences between queue, slots and the outside, and their pages with them."""

    def __init__(self, limits: Limits, queue: Policy, accounts: Accounts, model: StepModel | None) -> None:
        self.limits = limits
        self.memory = KvMemory(limits)
        self.queue = queue
        self.accounts = accounts
        self.waiting = WaitingTally()
        self.running: list[Sequence] = []
        """Oldest first."""
        self.shares = Shares(limits, accounts, self.memory, self.running)
        self.outputs = OutputLengths()
        self.counters = Counters()
        self.parked: dict[int, Sequence] = {}
        """Paused sequences without row and pages, by id: neither running nor waiting."""
        self.preempted: list[Preemption] = []
        """Since the last plan."""
        self._model = model
        self._free_slots = list(range(limits.max_num_seqs))  # a heap

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def enqueue(self, sequence: Sequence) -> None:
        """It waits from now on."""
        self.accounts.join(sequence.submit.tenant_id)
        cached_tokens = len(self.memory.match(sequence).pages) * self.limits.page_size
        sequence.waiting_tokens = len(sequence.tokens) - cached_tokens if sequence.leader is None else 0  # it gets its leader's pages
        self.queue.add(sequence)
        self.waiting.add(sequence)

    def start(self, sequence: Sequence, match: Match, now_ns: int) -> None:
        """From the queue to a slot, with its cached prefix; one that may not be preempted again gets all its pages."""
        self._stop_waiting(sequence)
        sequence.slot = heappop(self._free_slots)
        sequence.awaited_key = sequence.leader = None
        insort(self.running, sequence, key=_arrival)
        sequence.expected_tokens = self.expected_tokens(sequence)
        self.memory.adopt(sequence, match)
        if is_protected(sequence) or self.limits.contiguous_kv:
            self.memory.grow(sequence, self.tokens_to_hold(sequence))
        self._count_admission(sequence)
        self.accounts.charge_admission(sequence.submit.tenant_id)
        sequence.row_ns = now_ns
        sequence.scheduled_ns = sequence.scheduled_ns or now_ns

    def preempt(self, sequence: Sequence, cause: str, taker_id: str = "") -> None:
        """Back to the queue, with what it computed kept on the host where that is cheaper than computing it again. Samples in flight for
        it are drawn again. `taker_id`: the tenant that lacked what it had."""
        sequence.preemptions += 1
        self._take_away(sequence, cause, taker_id)

    def pause(self, sequence: Sequence) -> None:
        """Its reader lags. A prefill that runs goes on to its first token; what waits leaves the queue."""
        if sequence.is_paused:
            return
        sequence.is_paused = True
        if sequence.slot < 0:
            self._stop_waiting(sequence)
            self.parked[sequence.sequence_id] = sequence

    def resume(self, sequence: Sequence) -> None:
        """Its reader has caught up."""
        sequence.is_paused = False
        if self.parked.pop(sequence.sequence_id, None) is not None:
            self.enqueue(sequence)

    def park_one(self, *, taker_id: str = "", of_tenant: str | None = None) -> bool:
        """Take row and pages of the youngest paused sequence (of one tenant), because somebody needs them; False: there is none.

        It comes back as after a preemption when it is resumed. This is none of the preemptions it may suffer at most: its reader
        brought it about.
        """
        idle = (s for s in reversed(self.running) if s.is_paused and s.decoding and not s.in_flight_samples)
        victim = next((s for s in idle if of_tenant in (None, s.submit.tenant_id)), None)
        if victim is None:
            return False
        self._take_away(victim, "slow_reader", taker_id)
        return True

    def remove(self, sequence: Sequence) -> None:
        """It ended, wherever it was."""
        if sequence.slot >= 0:
            self._leave_device(sequence)
            return
        if self.parked.pop(sequence.sequence_id, None) is None:
            self._stop_waiting(sequence)
        self.memory.forget(sequence)

    def begun(self) -> list[Sequence]:
        """Running sequences that have prompt tokens to compute still, oldest first."""
        return [sequence for sequence in self.running if not sequence.decoding]

    def is_batch(self, sequence: Sequence) -> bool:
        """It yields to interactive work."""
        return self.shares.is_batch(sequence)

    def by_claim(self) -> list[Sequence]:
        """Running sequences; the last one loses its pages first."""
        return self.shares.by_claim() if self.queue.is_fair else list(self.running)

    def youngest(self) -> Sequence | None:
        """The youngest running sequence that may be preempted."""
        return next((sequence for sequence in reversed(self.running) if not is_protected(sequence)), None)

    def last_prefill_behind(self, sequence: Sequence, planned: list[Sequence]) -> Sequence | None:
        """Of the prefills with a weaker claim to pages than `sequence`, and not in the step already, the weakest that can help.
        None where it is interactive and batch work in the step can yield: that goes first, before the next step."""
        behind = self._victims(sequence.submit.tenant_id, until=sequence)
        victim = next((other for other in behind if not other.decoding and other not in planned), None)
        if victim is not None and self.queue.is_fair and not self.is_batch(victim):
            return None if any(map(self.is_batch, behind)) else victim
        return victim

    def victim_for(self, first: Sequence, *, is_within_share: bool) -> Sequence | None:
        """Who is preempted first so that `first` can start: batch work, then interactive work of tenants beyond their share. A tenant
        beyond its share gets the place of its own batch work only, and batch work no other place than of batch work beyond a share."""
        tenant_id, is_interactive = first.submit.tenant_id, not self.is_batch(first)
        for other in self._victims(tenant_id):
            is_own, is_batch = other.submit.tenant_id == tenant_id, self.is_batch(other)
            if is_own:
                yields = is_batch and is_interactive
            else:
                is_over = self.shares.is_over(other.submit.tenant_id)
                yields = is_within_share and (is_batch or is_over if is_interactive else is_batch and is_over)
            if yields:
                return other
        return None

    def clear_the_way(self) -> None:
        """Where a begun interactive prompt finds no page for its next token, the batch sequence that goes first is preempted for it."""
        for sequence in self.begun():
            is_stuck = self.memory.room(sequence) <= sequence.planned_tokens
            if is_stuck and not self.is_batch(sequence):
                victim = next(filter(self.is_batch, self._victims(sequence.submit.tenant_id)), None)
                if victim is not None:
                    self.preempt(victim, "memory", sequence.submit.tenant_id)
                return

    def _victims(self, tenant_id: str, until: Sequence | None = None) -> list[Sequence]:
        """Running sequences that can be preempted for a tenant's sake, the weakest claim first; those behind `until` only."""
        weakest_first = self.by_claim()[::-1]
        behind = weakest_first if until is None else weakest_first[: weakest_first.index(until)]
        return [other for other in behind if not is_protected(other) and self.shares.may_lose_to(other, tenant_id)]

    def tokens_to_hold(self, sequence: Sequence) -> int:
        """Its start needs room for all known tokens; after the last preemption for the longest output too, whose last token is never
        written; where KV is contiguous, for the longest context."""
        if self.limits.contiguous_kv:
            return self.limits.max_model_len
        return sequence.max_tokens - 1 if is_protected(sequence) else len(sequence.tokens)

    def expected_tokens(self, sequence: Sequence) -> int:
        """Tokens whose pages are promised to it when it starts: by its tenant's recent outputs; one more page where they say nothing."""
        known = self.tokens_to_hold(sequence)
        produced = len(sequence.tokens) - sequence.prompt_tokens
        output = self.outputs.expected(sequence.submit.tenant_id, produced)
        expected = known + self.limits.page_size if output is None else sequence.prompt_tokens + output
        return max(known, min(expected, sequence.max_tokens - 1))

    def check_nothing_held(self) -> None:
        """The idle invariant. Raises AssertionError when a page or slot is lost."""
        self.memory.check_nothing_used()
        assert len(self._free_slots) == self.limits.max_num_seqs, "idle, but a slot is taken"
        assert not self.running and not self.parked and not len(self.queue), "idle, but a sequence is scheduled"

    def _is_worth_keeping(self, sequence: Sequence) -> bool:
        tokens = self.memory.swappable_tokens(sequence)
        pages = self.limits.pages_for(tokens)
        return 0 < pages <= self.memory.moves.host.num_free and swap_is_cheaper(self._model, self.limits.buckets, tokens, pages)

    def _stop_waiting(self, sequence: Sequence) -> None:
        self.queue.remove(sequence)
        self.waiting.remove(sequence)
        self.accounts.part(sequence.submit.tenant_id)

    def _take_away(self, sequence: Sequence, cause: str, taker_id: str) -> None:
        lost_tokens = sequence.planned_tokens
        if self._is_worth_keeping(sequence) and self.memory.swap_out(sequence) and cause == "memory":
            cause = "swap"
        self._leave_device(sequence)
        sequence.lost_tokens = lost_tokens
        self.counters.preemptions[cause] += 1
        self.preempted.append(Preemption(sequence.sequence_id, cause, taker_id))
        if sequence.is_paused:
            self.parked[sequence.sequence_id] = sequence
        else:
            self.enqueue(sequence)

    def _leave_device(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self.memory.release(sequence)
        sequence.forget_device_state()

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.lost_tokens:
            self.counters.recomputed_tokens += max(0, sequence.lost_tokens - sequence.planned_tokens)
        elif self.limits.enable_prefix_caching:
            self.counters.prefix_query_tokens += sequence.prompt_tokens
            self.counters.prefix_hit_tokens += sequence.planned_tokens
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = sequence.planned_tokens


def is_protected(sequence: Sequence) -> bool:
    """It was preempted as often as anybody may be."""
    return sequence.preemptions >= MAX_PREEMPTIONS


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
