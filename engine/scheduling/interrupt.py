"""When the step that runs is cut short, because somebody has just come whose first token should not wait for its end.

On a device that can stop between two layers. What the step did is done again: its rows are planned anew, beside the newcomer's
prompt or behind it, and write the same K and V to the same places. Their time is lost, so there is a bound to it, in all and for each
tenant by its share, and the tenant that came is charged for the work that is done again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from engine.scheduling.budget import next_due_ns
from engine.scheduling.draft import PlannedStep, Row
from engine.scheduling.fair_policy import JUMP_DEBT
from engine.scheduling.limits import Limits
from engine.scheduling.request import Sequence
from engine.scheduling.step_model import NO_WORK, StepModel
from engine.scheduling.tenants import Accounts, cost_of

CUT_S = 0.003
"""From the wish to the end of the step: a layer, an empty sampler, the way back."""
LEAST_GAIN_S = 0.006
"""For less than this beyond the cut itself nobody's work is thrown away."""
LOST_SHARE = 0.1
"""Most of the device's time that cut steps may take, in the long run: a tenant may cause its share of that, by weight among the active,"""
MOST_LOST_S = 0.1
"""and at once."""


@dataclass(slots=True)
class Credit:
    """Time that may still be lost: it grows as time goes by."""

    left_s: float = MOST_LOST_S
    noted_ns: int = 0

    def at(self, now_ns: int, share: float) -> float:
        """What it is, having grown by this share of the time since it was noted."""
        return min(MOST_LOST_S, self.left_s + share * (now_ns - self.noted_ns) / 1e9)

    def spend(self, lost_s: float, now_ns: int, share: float) -> None:
        self.left_s, self.noted_ns = self.at(now_ns, share) - lost_s, now_ns


class Interrupts:
    """Remembers who came since the step that runs was planned, and how much time may still be lost."""

    def __init__(self, limits: Limits, accounts: Accounts, model: StepModel | None) -> None:
        self._limits = limits
        self._accounts = accounts
        self._model = model
        self.is_enabled = model is not None and limits.enable_step_interrupts
        self._newcomers: list[Sequence] = []
        self._credit = Credit()
        self._credit_of: defaultdict[str, Credit] = defaultdict(Credit)
        """By the newcomers' tenants."""

    def note_arrival(self, sequence: Sequence) -> None:
        """It waits for its first step."""
        if self.is_enabled and sequence.submit.lane == "fast" and not sequence.wants_prompt_logprobs:
            self._newcomers.append(sequence)

    def note_plan(self) -> None:
        """Whoever came before has had a say in the step that runs now."""
        self._newcomers.clear()

    def take_newcomers(self) -> list[Sequence]:
        """Each is asked about once: as time goes by there is ever less to gain."""
        newcomers, self._newcomers = self._newcomers, []
        return newcomers

    def is_worth_it(self, newcomer: Sequence, running: PlannedStep, *, began_ns: int, now_ns: int) -> bool:
        """Whether the running step is to be cut for the newcomer, which could start in the next one.

        It saves the newcomer the rest of the step; it costs time that was not lost lately, by anybody or by its tenant; that is within
        its contract and not ahead of the others; and the step works for the slow and the batch lane or for tenants outside their
        contracts, while nobody else of the fast lane in it waits for a first token, and nobody at all would get the next one too late.
        """
        if self._model is None:
            return False
        gone_s = (now_ns - began_ns) / 1e9
        tenant_id, accounts = newcomer.submit.tenant_id, self._accounts
        if running.expected_s - gone_s < CUT_S + LEAST_GAIN_S or gone_s + CUT_S > self._credit_s(tenant_id, now_ns):
            return False
        if accounts.debt(tenant_id) >= JUMP_DEBT or not accounts.is_in_contract(tenant_id, now_ns):
            return False
        rows = [row for row in running.rows if row.epoch == row.sequence.epoch]
        hurried = [row for row in rows if not self._is_patient(row.sequence, now_ns)]
        if len(hurried) == len(rows) or not all(row.is_decode for row in hurried):
            return False
        next_end_ns = now_ns + round((CUT_S + self._next_step_s(newcomer, hurried, self._model)) * 1e9)
        return all(next_due_ns(row.sequence, row.sequence.last_token_ns) >= next_end_ns for row in rows if row.is_decode)

    def note_made(self, newcomer: Sequence, step: PlannedStep, lost_s: float, now_ns: int) -> None:
        """The step was cut that had taken so long: of its work as much is lost as is due to that time."""
        tenant_id = newcomer.submit.tenant_id
        self._credit.spend(lost_s, now_ns, LOST_SHARE)
        self._credit_of[tenant_id].spend(lost_s, now_ns, LOST_SHARE * self._accounts.share(tenant_id))
        part = min(1.0, lost_s / step.expected_s) if step.expected_s else 1.0
        self._accounts.charge_lost(tenant_id, part * sum(map(cost_of, step.rows)))

    def forget_all_but(self, tenant_ids: Collection[str]) -> None:
        """Of the others nobody will come any more."""
        for tenant_id in self._credit_of.keys() - tenant_ids:
            del self._credit_of[tenant_id]

    def _credit_s(self, tenant_id: str, now_ns: int) -> float:
        own_s = self._credit_of[tenant_id].at(now_ns, LOST_SHARE * self._accounts.share(tenant_id))
        return min(own_s, self._credit.at(now_ns, LOST_SHARE))

    def _is_patient(self, sequence: Sequence, now_ns: int) -> bool:
        return sequence.submit.lane != "fast" or not self._accounts.is_in_contract(sequence.submit.tenant_id, now_ns)

    def _next_step_s(self, newcomer: Sequence, hurried: Iterable[Row], model: StepModel) -> float:
        """What 9 of 10 such steps stay below as the next one, with the newcomer's prompt and the rows that are not left out of it: where a
        token is late by a few milliseconds once in ten cuts, its stream makes up for it, and the newcomer had no step to wait for."""
        work = NO_WORK
        for row in hurried:
            work = work.with_decode(row.context_tokens)
        buckets = self._limits.buckets
        tokens = min(newcomer.waiting_tokens, buckets.prefill_capacity(work.decode_rows))
        bucket = buckets.choose(work.decode_rows, tokens)
        return model.likely_s(bucket, work.with_chunk(tokens, newcomer.prompt_tokens - newcomer.waiting_tokens))
