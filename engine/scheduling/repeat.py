"""Many decode steps at once, for the simulator: where nobody who waits can start and nobody ends, the next step holds the same rows again.

What changes from step to step is then known beforehand: each row is one token further, and the step's time grows with the context. A
property test holds the result to that of planning and committing every step.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster
from engine.scheduling.step_model import StepModel, StepTimes, Work
from engine.scheduling.tenants import KV_READS_PER_TOKEN, Account

type TokenOf = Callable[[int], int]
"""The token that a sequence, named by its id, draws every time."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of it."""

    sequence_ids: tuple[int, ...] = ()
    """Who got a token in each step."""
    ended_ns: tuple[int, ...] = ()
    """When each step was done."""
    pad_tokens: int = 0


class DecodeRepeater:
    """Looks ahead as far as nothing can happen but decodes."""

    def __init__(self, roster: Roster, model: StepModel | None) -> None:
        self._roster = roster
        self._limits = roster.limits
        self._model = model

    def most_steps(self, token_of: TokenOf) -> int:
        """How many steps follow for certain, if nobody comes, that hold one decode of each running sequence and nothing else; the step
        in which somebody ends is not among them."""
        running = self._roster.running
        may_start = len(self._roster.queue) and self._roster.num_free_slots
        if not running or may_start or self._limits.preempt_every_steps:
            return 0
        steps = min([sequence.max_tokens - len(sequence.tokens) for sequence in running]) - 1
        if steps <= 0 or self._roster.begun() or not all(self._goes_on(sequence, token_of) for sequence in running):
            return 0
        while steps > 0 and not self._has_pages(steps):
            steps //= 2
        return steps

    def run(self, times: StepTimes, now_ns: int, until_ns: int, most: int, *, whole: bool) -> Repeated:
        """Steps one after another from `now_ns`, none of which begins at `until_ns` or later, or, if they are to be `whole`, ends later:
        whoever comes then may cut it short. At most `most`."""
        running = self._roster.running
        rows, context = len(running), sum([sequence.planned_tokens for sequence in running]) + len(running)
        bucket = self._limits.buckets.choose(rows, 0)
        bound_s = self._bound_s()
        ended: list[int] = []
        while len(ended) < most and now_ns < until_ns:
            work = Work(decode_rows=rows, decode_context=context)
            if bound_s and self._model is not None and self._model.likely_s(bucket, work) > bound_s:
                break
            step_ns = max(1, round(times.seconds(bucket, work) * 1e9))
            if whole and now_ns + step_ns > until_ns:
                break
            now_ns += step_ns
            ended.append(now_ns)
            context += rows
            if self._model is not None:
                self._model.observe(bucket, work, step_ns / 1e9)
        if not ended:
            return Repeated()
        return Repeated(tuple(s.sequence_id for s in running), tuple(ended), len(ended) * (bucket.decode_rows - rows))

    def take(self, repeated: Repeated, token_of: TokenOf) -> None:
        """The tokens, pages and charges of those steps."""
        steps, last_ns = len(repeated.ended_ns), repeated.ended_ns[-1]
        by_claim, memory = self._roster.by_claim(), self._roster.memory
        self._charge(by_claim, steps)
        for sequence in by_claim:
            sequence.tokens += [token_of(sequence.sequence_id)] * steps
            sequence.planned_tokens += steps
            sequence.computed_tokens += steps
            has_room = memory.grow(sequence, sequence.planned_tokens)
            assert has_room, "the pages of all steps were counted before"
            sequence.sent_pages = len(sequence.pages)
            sequence.last_token_ns = last_ns
            memory.register(sequence)

    def _goes_on(self, sequence: Sequence, token_of: TokenOf) -> bool:
        """It decodes, nothing of it is in flight, and its next token does not end it by what it is."""
        if not sequence.wants_decode or sequence.planned_tokens + 1 != len(sequence.tokens):
            return False
        sampling = sequence.submit.sampling
        if sampling.ignore_eos and not sampling.stop_token_ids:
            return True
        token = token_of(sequence.sequence_id)
        return token not in sampling.stop_token_ids and (sampling.ignore_eos or token not in self._limits.eos_token_ids)

    def _has_pages(self, steps: int) -> bool:
        """Free ones, so that nothing is evicted for them, and for each tenant within what reserves and caps leave it."""
        pages_for, pool = self._limits.pages_for, self._roster.memory.pool
        missing: dict[str, int] = {}
        for sequence in self._roster.running:
            name = sequence.submit.tenant_id
            more = pages_for(sequence.planned_tokens + steps) - len(sequence.pages)
            missing[name] = missing.get(name, 0) + max(0, more)  # who took all its pages at once has some to spare for nobody
        total = sum(missing.values())
        within_caps = all(count <= pool.holdings.of(name).room_under_cap for name, count in missing.items() if count)
        return total <= pool.num_spare and within_caps and all(total <= pool.available_to(name) for name in missing)

    def _bound_s(self) -> float:
        """A longer step might leave out a decode of another lane, or of a tenant outside its contract, while the fast lane works."""
        roster = self._roster
        has_fast = roster.waiting.lanes["fast"] > 0 or any(sequence.submit.lane == "fast" for sequence in roster.running)
        return self._limits.max_step_ms / 1e3 if has_fast else 0.0

    def _charge(self, by_claim: Iterable[Sequence], steps: int) -> None:
        """As step by step: a counter is a sum of floats, so the order of a tenant's rows counts."""
        contexts: dict[str, list[int]] = {}
        for sequence in by_claim:
            contexts.setdefault(sequence.submit.tenant_id, []).append(sequence.planned_tokens + 1)
        accounts = self._roster.accounts
        if accounts.unit == "tokens":
            for tenant_id, firsts in contexts.items():
                _charge_decodes(accounts.of(tenant_id), firsts, steps)


def _charge_decodes(account: Account, firsts: list[int], steps: int) -> None:
    weight = account.policy.weight
    if math.frexp(weight)[0] == 0.5 and math.frexp(KV_READS_PER_TOKEN)[0] == 0.5:
        # every cost is a multiple of a power of two: sums are exact in any order
        reads = steps * sum(firsts) + len(firsts) * (steps * (steps - 1) // 2)
        account.counter += (steps * len(firsts) + reads / KV_READS_PER_TOKEN) / weight
        return
    for step in range(steps):
        for first in firsts:
            account.counter += (1 + (first + step) / KV_READS_PER_TOKEN) / weight
