"""When the step that runs is cut short, because somebody has just come whose first token should not wait for its end.

On a device that can leave rows out between two layers. The step's decodes go on and get their tokens, the sooner for it. What it did for
prompts is done again: their chunks are planned anew, behind the newcomer's prompt or beside it, and write the same K and V to the same
places. Their time is lost, so there is a bound to it, in all and for each tenant by its share, and the tenant that came is charged for
the work that is done again.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from engine.scheduling.draft import PlannedStep
from engine.scheduling.fair_policy import JUMP_DEBT
from engine.scheduling.limits import Limits
from engine.scheduling.request import Sequence
from engine.scheduling.step_model import StepModel
from engine.scheduling.tenants import Accounts, cost_of

CUT_S = 0.002
"""From the wish to where the prompts are left out: a layer, and the way there and back."""
LEAST_GAIN_S = 0.004
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

        It saves the newcomer what prompts take of the rest of the step; it costs what they took of it so far, time that was not lost
        lately, by anybody or by its tenant; that is within its contract and not ahead of the others; and the prompts are of the slow and
        the batch lane or of tenants outside their contracts.
        """
        if self._model is None:
            return False
        gone_s, prompts_share = (now_ns - began_ns) / 1e9, self._prompts_share(running)
        tenant_id, accounts = newcomer.submit.tenant_id, self._accounts
        saved_s, lost_s = prompts_share * (running.expected_s - gone_s), prompts_share * gone_s
        if saved_s < CUT_S + LEAST_GAIN_S or lost_s + CUT_S > self._credit_s(tenant_id, now_ns):
            return False
        if accounts.debt(tenant_id) >= JUMP_DEBT or not accounts.is_in_contract(tenant_id, now_ns):
            return False
        chunks = [row for row in running.rows[running.work.decode_rows :] if row.epoch == row.sequence.epoch]
        return bool(chunks) and all(self._is_patient(row.sequence, now_ns) for row in chunks)

    def note_made(self, newcomer: Sequence, step: PlannedStep, *, began_ns: int, now_ns: int) -> float:
        """The step was cut, and is done: of its prompts' work as much is lost as is due to the time that its decodes would not have
        taken. Answers the lost work in virtual tokens."""
        tenant_id, prompts_share = newcomer.submit.tenant_id, self._prompts_share(step)
        full_s = prompts_share * step.expected_s
        lost_s = max(0.0, (now_ns - began_ns) / 1e9 - (step.expected_s - full_s))
        self._credit.spend(lost_s, now_ns, LOST_SHARE)
        self._credit_of[tenant_id].spend(lost_s, now_ns, LOST_SHARE * self._accounts.share(tenant_id))
        part = min(1.0, lost_s / full_s) if full_s else 1.0
        lost_tokens = part * sum(map(cost_of, step.rows[step.work.decode_rows :]))
        self._accounts.charge_lost(tenant_id, lost_tokens)
        return lost_tokens

    def forget_all_but(self, tenant_ids: Collection[str]) -> None:
        """Of the others nobody will come any more."""
        for tenant_id in self._credit_of.keys() - tenant_ids:
            del self._credit_of[tenant_id]

    def _credit_s(self, tenant_id: str, now_ns: int) -> float:
        own_s = self._credit_of[tenant_id].at(now_ns, LOST_SHARE * self._accounts.share(tenant_id))
        return min(own_s, self._credit.at(now_ns, LOST_SHARE))

    def _is_patient(self, sequence: Sequence, now_ns: int) -> bool:
        return sequence.submit.lane != "fast" or not self._accounts.is_in_contract(sequence.submit.tenant_id, now_ns)

    def _prompts_share(self, step: PlannedStep) -> float:
        """What part of its time a step takes for its prompts."""
        return 1.0 - self._model.times.kept_share(step.plan.bucket, step.work) if self._model is not None else 1.0
