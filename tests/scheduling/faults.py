"""Schedulers with one fault each: what a property is for, it must see."""

import random

from engine.scheduling.scheduler import Scheduler
from engine.wire import Submit


class KeepsLateTokens(Scheduler):
    def _is_late(self, row) -> bool:
        return False


class LosesPages(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        release = self._roster.memory.release

        def lossy(sequence) -> None:
            sequence.pages = sequence.pages[:-1]
            release(sequence)

        self._roster.memory.release = lossy


class ReleasesPagesTwice(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        release = self._roster.memory.release

        def doubled(sequence) -> None:
            sequence.pages = [*sequence.pages, *sequence.pages[-1:]]
            release(sequence)

        self._roster.memory.release = doubled


class CachesUncommittedPages(Scheduler):
    """Registers what is planned instead of what is committed, after the device may have been told to do otherwise."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        release = memory.release

        def too_early(sequence) -> None:
            sequence.computed_tokens = len(sequence.pages) * limits.page_size
            sequence.computed_tokens = min(sequence.computed_tokens, len(sequence.tokens))
            memory.register(sequence)
            release(sequence)

        memory.release = too_early


class SharesThePageThatIsWritten(Scheduler):
    """Siblings get the prompt's last page itself instead of a copy."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        adopt = memory.adopt

        def uncopied(sequence, match) -> None:
            adopt(sequence, match)
            if match.copy_of is not None:
                memory.moves._copied.pop()
                memory.pool.retain(match.copy_of, sequence.submit.tenant_id)
                memory.pool.release(sequence.pages.pop())
                sequence.pages.append(match.copy_of)

        memory.adopt = uncopied


class ForksInTheStepThatComputes(Scheduler):
    """Does not wait until the prompt's pages were planned in an earlier step."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        match = self._planner._match_unless_held
        self._planner._match_unless_held = lambda sequence, draft=None: match(sequence)


class NeverCopies(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        adopt = memory.adopt
        memory.adopt = lambda sequence, match: (adopt(sequence, match), memory.moves._copied.clear())  # type: ignore[assignment]


class SwapsOutAfterTheStep(Scheduler):
    """The pages are another's by then."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        moves, late = self._roster.memory.moves, {}
        take = moves.take

        def too_late():
            leaving = dict(moves._out)
            moves._out = dict(late)
            late.clear()
            late.update(leaving)
            return take()

        moves.take = too_late  # type: ignore[method-assign]


class KeepsTokensThatNobodyKnows(Scheduler):
    """Counts what a step in flight draws among what the host keeps."""

    def __init__(self, limits) -> None:
        super().__init__(limits)
        memory = self._roster.memory
        memory.swappable_tokens = lambda sequence: sequence.planned_tokens if sequence.sent_pages else 0  # type: ignore[method-assign]


class LosesHostPages(Scheduler):
    def __init__(self, limits) -> None:
        super().__init__(limits)
        self._roster.memory.moves.return_host = lambda host_pages: None  # type: ignore[method-assign]


class ForgetsSalts(Scheduler):
    def submit(self, submit: Submit) -> None:
        root = self._roster.memory.cache.root
        self._roster.memory.cache.root = lambda salt: root("")
        super().submit(submit)


class IgnoresCaps(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        memory = self._roster.memory
        memory.is_beyond_cap = lambda sequence, pages: False  # type: ignore[method-assign]
        memory._available = lambda sequence: memory.pool.available_to(sequence.submit.tenant_id)  # type: ignore[method-assign]


class LendsReserves(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        memory = self._roster.memory
        memory.pool.holdings.set_aside_for_others = lambda holding: 0  # type: ignore[method-assign]
        memory.has_room = lambda sequence, pages, keep_back=0: pages <= memory.pool.num_free + memory.pool.num_cached  # type: ignore[method-assign]


class PreemptsTheYoungest(Scheduler):
    """Whatever its lane, for whoever waits."""

    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._roster.victim_for = lambda first, is_within_share: self._roster.youngest()  # type: ignore[method-assign]


class AdmitsOneAStep(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        admit = self._planner._admit
        self._planner._admit = lambda draft, *rest: not draft.admitted and admit(draft, *rest)  # type: ignore[method-assign]


class PlansByChance(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        by_claim = self._roster.by_claim
        self._roster.by_claim = lambda: random.sample(by_claim(), len(by_claim()))  # type: ignore[method-assign]


class NeverLifts(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts._lift = lambda account: None  # type: ignore[method-assign]


class NeverRefunds(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.refund = lambda row: None  # type: ignore[method-assign]


class ChargesPromptsOnly(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        charge = self.accounts.charge
        self.accounts.charge = lambda row: None if row.is_decode else charge(row)  # type: ignore[method-assign]


class NeverLeaves(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.leave = lambda tenant_id: None  # type: ignore[method-assign]


class KeepsNoRows(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._roster.shares.has_row = lambda tenant_id, free_rows: free_rows > 0  # type: ignore[method-assign]


class MakesNoWay(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._make_way = lambda now_ns: None  # type: ignore[method-assign]
        self._roster.shares.pages_kept_back = lambda tenant_id: 0  # type: ignore[method-assign]


class NeverCharges(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self.accounts.charge = self.accounts.refund = lambda row: None  # type: ignore[method-assign]


class TakesNoAccountOfTime(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._budget.prefill_rows = lambda *_, **__: None  # type: ignore[method-assign]


class LeavesDecodesOut(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        self._planner._budget.choose_decodes = lambda decodes, *_, **__: decodes[:1]  # type: ignore[method-assign]


class PrefillsOnlyWithoutDecodes(Scheduler):
    def __init__(self, limits, **rest) -> None:
        super().__init__(limits, **rest)
        fill = self._planner._plan_prefills
        self._planner._plan_prefills = lambda draft, now_ns: None if draft.decodes else fill(draft, now_ns)  # type: ignore[method-assign]
