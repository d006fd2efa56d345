"""Who runs and who waits: every live sequence has a slot and pages, or a place in the queue."""

from bisect import insort
from heapq import heappop, heappush

from engine.scheduling.kv_memory import KvMemory, Match
from engine.scheduling.limits import Limits
from engine.scheduling.policy import Policy
from engine.scheduling.report import Counters, WaitingTally
from engine.scheduling.request import Sequence
from engine.scheduling.shares import Shares
from engine.scheduling.tenants import Accounts

MAX_PREEMPTIONS = 2
"""Of one sequence. Then it waits until all the pages of its longest output are to be had, takes them at once, and
runs to its end undisturbed. So there is always a sequence that can be preempted when a page is missing: one that
lacks a page has not been preempted twice."""


class Roster:
    """Moves sequences between queue, slots and the outside, and their pages with them."""

    def __init__(self, limits: Limits, queue: Policy, accounts: Accounts) -> None:
        self.limits = limits
        self.memory = KvMemory(limits)
        self.queue = queue
        self.accounts = accounts
        self.waiting = WaitingTally()
        self.running: list[Sequence] = []
        """Oldest first."""
        self.shares = Shares(limits, accounts, self.running)
        self.counters = Counters()
        self.preempted: list[int] = []
        """Since the last plan."""
        self._free_slots = list(range(limits.max_num_seqs))  # a heap

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def enqueue(self, sequence: Sequence) -> None:
        """It waits from now on."""
        self.accounts.join(sequence.submit.tenant_id)
        self.queue.add(sequence)
        self.waiting.add(sequence)

    def start(self, sequence: Sequence, match: Match, now_ns: int) -> None:
        """From the queue to a slot, with its cached prefix; one that may not be preempted again gets all its pages."""
        self._stop_waiting(sequence)
        sequence.slot = heappop(self._free_slots)
        sequence.awaited_key = None
        insort(self.running, sequence, key=_arrival)
        self.memory.adopt(sequence, match)
        if is_protected(sequence):
            self.memory.grow(sequence, self.tokens_to_hold(sequence))
        self._count_admission(sequence)
        self.accounts.charge_admission(sequence.submit.tenant_id)
        sequence.scheduled_ns = sequence.scheduled_ns or now_ns

    def preempt(self, sequence: Sequence, cause: str) -> None:
        """Back to the queue, to recompute prompt and output known so far. Samples in flight for it are drawn again."""
        lost_tokens = sequence.planned_tokens
        self._leave_device(sequence)
        sequence.lost_tokens = lost_tokens
        sequence.preemptions += 1
        self.counters.preemptions[cause] += 1
        self.preempted.append(sequence.sequence_id)
        self.enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It ended, wherever it was."""
        if sequence.slot >= 0:
            self._leave_device(sequence)
        else:
            self._stop_waiting(sequence)

    def by_claim(self) -> list[Sequence]:
        """Running sequences; the last one loses its pages first."""
        return self.shares.by_claim() if self.queue.is_fair else list(self.running)

    def youngest(self) -> Sequence | None:
        """The youngest running sequence that may be preempted."""
        return next((sequence for sequence in reversed(self.running) if not is_protected(sequence)), None)

    def last_prefill_behind(self, sequence: Sequence, planned: list[Sequence]) -> Sequence | None:
        """Of the prefills with a weaker claim to pages than `sequence`, and not in the step already, the weakest."""
        for other in reversed(self.by_claim()):
            if other is sequence:
                return None
            if not other.decoding and not is_protected(other) and other not in planned:
                return other
        return None

    def weakest_of_others(self, tenant_id: str) -> Sequence | None:
        """Who may be preempted for this tenant's sake first."""
        others = (s for s in reversed(self.by_claim()) if s.submit.tenant_id != tenant_id and not is_protected(s))
        return next(others, None)

    def tokens_to_hold(self, sequence: Sequence) -> int:
        """Admission needs room for all known tokens; after the last preemption for the longest output too, whose
        last token is never written."""
        return sequence.max_tokens - 1 if is_protected(sequence) else len(sequence.tokens)

    def pages_promised(self) -> int:
        """What running prefills have still to take, and one page a running sequence, so that an admission is not
        undone by the next few decodes."""
        pages_for = self.limits.pages_for
        return sum(
            1 if sequence.decoding else 1 + pages_for(len(sequence.tokens)) - len(sequence.pages)
            for sequence in self.running
            if not is_protected(sequence)
        )

    def check_nothing_held(self) -> None:
        """The idle invariant. Raises AssertionError when a page or slot is lost."""
        self.memory.check_nothing_used()
        assert len(self._free_slots) == self.limits.max_num_seqs, "idle, but a slot is taken"
        assert not self.running and not len(self.queue), "idle, but a sequence is scheduled"

    def _stop_waiting(self, sequence: Sequence) -> None:
        self.queue.remove(sequence)
        self.waiting.remove(sequence)
        self.accounts.part(sequence.submit.tenant_id)

    def _leave_device(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self.memory.release(sequence)
        sequence.forget_device_state()

    def _count_admission(self, sequence: Sequence) -> None:
        if sequence.preemptions:
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
