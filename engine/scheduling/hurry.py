"""When first tokens would be late: decodes give them time that they make up for later.

A step is as long as the tightest token deadline allows. A stream that has just begun has no lead, so in a burst the first tokens of the
burst's own first prompts keep steps short, and short steps do less for the prompts behind them. But a stream is judged by its mean, and
one that has many tokens to come makes up for a few long gaps.
"""

from collections.abc import Iterable
from itertools import islice

from engine.scheduling.budget import StepBudget, due_ns
from engine.scheduling.fair_policy import JUMP_DEBT
from engine.scheduling.request import Sequence
from engine.scheduling.roster import Roster

LOOK_AHEAD = 32
"""First tokens of so many prompts are foretold."""
ON_TIME_PART = 0.8
"""Of the time until a first token is due, what a forecast may fill: it is a mean."""
LOST_TIMES = 3.0
"""Who would be so many times too late at the best rate is lost, and hurries nobody: where too much comes for long, longer gaps would help
no one."""
BURST_TOKENS = 8
"""A stream that has no more to come may end before steps are short again, and makes up for nothing."""
MAKES_UP_PART = 0.2
"""Of the tokens that a stream has to come beyond these: so many targets it may be behind, as they come quicker."""


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


def behind_ns(decode: Sequence) -> int:
    """How far a stream may fall behind its target's mean, by what its tenant's recent outputs make likely to come."""
    left = min(decode.expected_tokens, decode.max_tokens) - len(decode.tokens)
    return round(MAKES_UP_PART * max(0, left - BURST_TOKENS) * decode.tpot_ns)


class Hurry:
    """Decides; changes nothing."""

    def __init__(self, roster: Roster, budget: StepBudget) -> None:
        self._roster = roster
        self._budget = budget
        limits = roster.limits
        is_by_time = budget.foretells and limits.max_step_ms > 0 and limits.enable_chunked_prefill and not limits.fixed_chunk_tokens
        self._is_enabled = roster.queue.is_fair and limits.enable_deadline_order and is_by_time

    def token_limit_s(self, decodes: list[Sequence], limit_s: float | None, start_ns: int, now_ns: int) -> float | None:
        """How long the step that starts at `start_ns` may take by its decodes: `limit_s`, or longer where a first token would be late."""
        prompts = self._prompts(now_ns) if self._is_enabled and limit_s is not None else []
        if not prompts:
            return limit_s
        wanted, is_fast = sum(map(tokens_of, prompts)), prompts[0].submit.lane == "fast"
        rate = self._budget.prefill_rate(decodes, limit_s, wanted_tokens=wanted, is_fast=is_fast)
        best_rate = self._budget.prefill_rate((), None, wanted_tokens=wanted, is_fast=is_fast)
        late = pressed(prompts, start_ns, rate, best_rate)
        if late is None:
            return limit_s
        due = [
            due_ns(decode, start_ns, behind_ns=behind_ns(decode) if self._may_wait(decode, late, now_ns) else 0)
            for decode in decodes
            if decode.tpot_ns
        ]
        return (min(due) - start_ns) / 1e9

    def _prompts(self, now_ns: int) -> list[Sequence]:
        """Those that come next; batch work is in no hurry."""
        begun = self._roster.begun()
        with_waiting = self._roster.num_free_slots > 0
        if not begun and not (with_waiting and len(self._roster.queue)):
            return []
        order = self._roster.queue.order(begun, now_ns, with_waiting=with_waiting)
        return [sequence for sequence in islice(order, LOOK_AHEAD) if sequence.submit.lane != "batch"]

    def _may_wait(self, decode: Sequence, late: Sequence, now_ns: int) -> bool:
        """For a prompt of its own tenant, and of a tenant of a higher priority; of an equal one where that has had no more than its due."""
        accounts, tenant_id, late_id = self._roster.accounts, decode.submit.tenant_id, late.submit.tenant_id
        if tenant_id == late_id:
            return True
        own, others = accounts.of(tenant_id).policy.priority, accounts.of(late_id).policy.priority
        has_claim = accounts.debt(late_id) < JUMP_DEBT and accounts.is_in_contract(late_id, now_ns)
        return own < others or (own == others and has_claim)
