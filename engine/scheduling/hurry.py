"""When first tokens would be late: which decodes stay out of a step, so that it does more for the prompts.

Beside many decodes a step has little room for prompts. A token that comes long before it is due is worth less than a first token that comes
too late. So where prompts are pressed for time, decodes whose next token comes in time in the step after, too, are left to that one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from engine.scheduling.budget import PROGRESS_RATIO, StepBudget, due_ns
from engine.scheduling.fair_policy import JUMP_DEBT
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster

LOOK_AHEAD = 32
"""First tokens of so many prompts are foretold."""
ON_TIME_PART = 0.8
"""Of the time until a first token is due, what a forecast may fill: it is a mean."""
LOST_TIMES = 1.5
"""Who would be so many times too late at the best rate is lost, and hurries nobody: where too much comes for long, decodes that wait would
only cost everybody tokens a second."""
LEAST_GAIN = 1.2
"""Prompt tokens a second of a step without some decodes, over those of one with all of them. For less nobody waits."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The decodes of a step, and what follows for its length."""

    decodes: list[Sequence]
    token_limit_s: float | None
    """As `StepBudget.token_limit_s`: so that those left out are in time, too."""
    left_out: tuple[Sequence, ...] = ()


def pressed(prompts: Iterable[Sequence], start_ns: int, tokens_per_s: float, best_tokens_per_s: float) -> Sequence | None:
    """Of prompts, in the order in which they are computed, the first one whose first token will be late at this rate, and is not lost at
    the best one."""
    ahead = 0
    for prompt in prompts:
        ahead += tokens_of(prompt)
        left_s = (prompt.submit.ttft_deadline_ns - start_ns) / 1e9
        if tokens_per_s * ON_TIME_PART * left_s < ahead <= best_tokens_per_s * LOST_TIMES * left_s:
            return prompt
    return None


def tokens_of(prompt: Sequence) -> int:
    """What is still to compute of it."""
    return prompt.waiting_tokens if prompt.slot < 0 else prompt.uncomputed_tokens


class Hurry:
    """Decides; changes nothing."""

    def __init__(self, roster: Roster, budget: StepBudget) -> None:
        self._roster = roster
        self._budget = budget
        limits = roster.limits
        is_by_time = budget.foretells and limits.max_step_ms > 0 and limits.enable_chunked_prefill and not limits.fixed_chunk_tokens
        self._is_enabled = roster.queue.is_fair and limits.enable_deadline_order and is_by_time

    def choose(self, decodes: list[Sequence], start_ns: int, now_ns: int) -> Choice:
        """Those of `decodes` that are in the step that starts at `start_ns`: as a rule all."""
        every = Choice(decodes, self._budget.token_limit_s(decodes, start_ns))
        prompts = self._prompts(now_ns) if self._is_enabled and decodes else []
        if not prompts:
            return every
        wanted, is_fast = sum(map(tokens_of, prompts)), prompts[0].submit.lane == "fast"
        with_all = self._budget.prospect(decodes, every.token_limit_s, wanted_tokens=wanted, is_fast=is_fast)
        without = self._budget.prospect((), None, wanted_tokens=wanted, is_fast=is_fast)
        late = pressed(prompts, start_ns, with_all.tokens_per_s, without.tokens_per_s)
        if late is None:
            return every
        best, best_rate = every, LEAST_GAIN * with_all.tokens_per_s
        for choice in self._choices(decodes, prompts, late, start_ns, now_ns):
            prospect = self._budget.prospect(choice.decodes, choice.token_limit_s, wanted_tokens=wanted, is_fast=is_fast)
            in_time = choice.token_limit_s is None or prospect.seconds <= choice.token_limit_s
            if in_time and prospect.tokens_per_s > best_rate:
                best, best_rate = choice, prospect.tokens_per_s
        return best

    def _prompts(self, now_ns: int) -> list[Sequence]:
        """Those that come next; batch work is in no hurry."""
        begun = self._roster.begun()
        with_waiting = self._roster.num_free_slots > 0
        if not begun and not (with_waiting and len(self._roster.queue)):
            return []
        order = self._roster.queue.order(begun, now_ns, with_waiting=with_waiting)
        return [sequence for sequence in islice(order, LOOK_AHEAD) if sequence.submit.lane != "batch"]

    def _choices(self, decodes: list[Sequence], prompts: list[Sequence], late: Sequence, start_ns: int, now_ns: int) -> Iterable[Choice]:
        """As many decodes as a smaller program holds: those that may not wait for the late prompt, then those that are due first."""
        may_wait = {sequence.sequence_id: self._may_wait(sequence, late, now_ns) for sequence in decodes}
        in_turn = sorted(decodes, key=lambda sequence: (may_wait[sequence.sequence_id], due_ns(sequence, start_ns)))
        next_s = PROGRESS_RATIO * self._budget.least_s(decodes, prompts[: self._roster.limits.max_prefill_rows])
        for rows in (0, *self._roster.limits.buckets.mixed_decode_rows):
            kept, left_out = in_turn[:rows], in_turn[rows:]
            if not left_out or not all(may_wait[sequence.sequence_id] for sequence in left_out):
                continue
            left_out_s = (min(due_ns(sequence, start_ns) for sequence in left_out) - start_ns) / 1e9 - next_s
            limit_s = self._budget.token_limit_s(kept, start_ns)
            is_kept = {sequence.sequence_id for sequence in kept}
            yield Choice(
                [sequence for sequence in decodes if sequence.sequence_id in is_kept],
                left_out_s if limit_s is None else min(limit_s, left_out_s),
                tuple(sequence for sequence in decodes if sequence.sequence_id not in is_kept),
            )

    def _may_wait(self, decode: Sequence, late: Sequence, now_ns: int) -> bool:
        """For a prompt of its own tenant, and of a tenant of a higher priority; of an equal one where that has had no more than its due."""
        accounts, tenant_id, late_id = self._roster.accounts, decode.submit.tenant_id, late.submit.tenant_id
        if tenant_id == late_id:
            return True
        own, others = accounts.of(tenant_id).policy.priority, accounts.of(late_id).policy.priority
        has_claim = accounts.debt(late_id) < JUMP_DEBT and accounts.is_in_contract(late_id, now_ns)
        return own < others or (own == others and has_claim)
