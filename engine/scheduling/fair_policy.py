"""Between lanes by speed with guaranteed shares, between tenants by virtual counters, within a tenant by deadline."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from engine.scheduling.draft import Row
from engine.scheduling.lanes import LaneShares
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import Accounts
from engine.wire import LANES

JUMP_BEFORE_NS = 160_000_000
"""A prompt that has to begin so soon for its first token to be in time may jump the order of the counters,"""
JUMP_DEBT = 256.0
"""while its tenant is inside its contract and was served at most so many virtual tokens more than the least served one."""
NO_DEADLINE_NS = 2**63

type Group = tuple[str, str]
"""Lane and tenant."""


@dataclass(slots=True)
class TenantFair:
    """Implements `Policy`: `vtc` over token accounts, `wrr` over request accounts."""

    accounts: Accounts
    lanes: LaneShares = field(default_factory=LaneShares)
    by_deadline: bool = True
    """Off (for comparisons): within a tenant by arrival, and no deadline jumps."""
    is_fair: bool = True
    _waiting: dict[Group, list[Sequence]] = field(default_factory=dict)
    """Each list by deadline."""
    _own_lanes: dict[str, LaneShares] = field(default_factory=dict)
    """Of tenants that have work in several lanes: what these are owed of the tenant's own tokens."""
    _with_work: frozenset[Group] = frozenset()
    _noted: list[LaneShares] = field(default_factory=list)
    """Those that the newest step went into."""
    _size: int = 0
    _prompt_token_s: float = 0.0

    def add(self, sequence: Sequence) -> None:
        """A new sequence, or a preempted one: its old deadline puts it in front."""
        insort(self._waiting.setdefault(_group(sequence), []), sequence, key=self._turn)
        self._size += 1

    def remove(self, sequence: Sequence) -> None:
        group = _group(sequence)
        waiting = self._waiting[group]
        del waiting[bisect_left(waiting, self._turn(sequence), key=self._turn)]
        self._size -= 1
        if not waiting:
            del self._waiting[group]
            if not self._waiting_lanes(group[1]):
                self._own_lanes.pop(group[1], None)

    def order(self, prefills: Iterable[Sequence], now_ns: int, *, with_waiting: bool) -> Iterator[Sequence]:
        """Lane by lane, tenant by tenant; of one tenant begun prompts first, by deadline, and whoever is closer to its end first among
        equals."""
        begun: dict[Group, list[Sequence]] = {}
        for sequence in prefills:
            begun.setdefault(_group(sequence), []).append(sequence)
        for prompts in begun.values():
            prompts.sort(key=self._claim)
        groups = dict.fromkeys((*begun, *self._waiting)) if with_waiting else dict.fromkeys(begun)
        self._with_work = frozenset(groups)
        for lane in self.lanes.order({lane for lane, _ in groups}):
            firsts = {tenant: (begun.get((lane, tenant)) or self._waiting[lane, tenant])[0] for name, tenant in groups if name == lane}
            for tenant in sorted(firsts, key=lambda tenant: self._rank(tenant, firsts[tenant], now_ns)):
                yield from begun.get((lane, tenant), ())
                if with_waiting:
                    yield from tuple(self._waiting.get((lane, tenant), ()))

    def owed_before(self, sequence: Sequence) -> Sequence | None:
        lane, tenant = _group(sequence)
        own = self._own_lanes.get(tenant)
        due = own.due(self._waiting_lanes(tenant)) if own is not None else []
        return self._waiting[due[0], tenant][0] if due and due[0] != lane else None

    def note_pace(self, prompt_token_s: float) -> None:
        self._prompt_token_s = prompt_token_s

    def note_step(self, rows: Iterable[Row]) -> None:
        """Lanes are owed by prefill tokens: decodes are in every step anyway."""
        tokens: dict[str, int] = {}
        by_tenant: dict[str, dict[str, int]] = {}
        for row in rows:
            lane, tenant = _group(row.sequence)
            tokens[lane] = tokens.get(lane, 0) + row.tokens
            own = by_tenant.setdefault(tenant, {})
            own[lane] = own.get(lane, 0) + row.tokens
        self.lanes.note_step(tokens, {lane for lane, _ in self._with_work})
        self._noted = [self.lanes]
        for tenant, own in by_tenant.items():
            self._note_own(tenant, own)

    def note_decodes(self) -> None:
        """A lane without prompts is owed nothing."""
        self._with_work = frozenset()
        self.note_step(())

    def take_back_step(self) -> None:
        """What a lane is owed does not count as delivered: else a flood of short prompts would cut steps until nothing is left of it."""
        for shares in self._noted:
            shares.take_back_step()

    def __len__(self) -> int:
        return self._size

    def oldest_received_ns(self) -> int:
        return min((waiting[0].submit.received_ns for waiting in self._waiting.values()), default=0)

    def _note_own(self, tenant: str, tokens: dict[str, int]) -> None:
        lanes = [lane for lane in LANES if (lane, tenant) in self._with_work]
        if len(lanes) > 1:
            shares = self._own_lanes.setdefault(tenant, LaneShares(self.lanes.rules))
            shares.note_step(tokens, lanes)
            self._noted.append(shares)

    def _waiting_lanes(self, tenant: str) -> list[str]:
        return [lane for lane in LANES if (lane, tenant) in self._waiting]

    def _rank(self, tenant: str, first: Sequence, now_ns: int) -> tuple[bool, float, int, int, int]:
        """What can not be in time any more jumps no more: a flood never could. Between tenants that were served alike priority decides,
        then who is closer to its first token: nobody starves by that."""
        account = self.accounts.of(tenant)
        deadline_ns = first.submit.ttft_deadline_ns
        latest_ns = deadline_ns - round(first.uncomputed_tokens * self._prompt_token_s * 1e9)
        is_near = self.by_deadline and deadline_ns > 0 and 0 <= latest_ns - now_ns < JUMP_BEFORE_NS
        jumps = is_near and self.accounts.debt(tenant) < JUMP_DEBT and self.accounts.is_in_contract(tenant, now_ns)
        served = self.accounts.stretch(account)
        return not jumps, deadline_ns if jumps else served, -account.policy.priority, first.uncomputed_tokens, account.order

    def _turn(self, sequence: Sequence) -> tuple[int, int]:
        """Its place among its tenant's waiting ones."""
        return self._deadline(sequence), sequence.arrival

    def _claim(self, sequence: Sequence) -> tuple[int, int, int]:
        """Its place among its tenant's begun ones."""
        return self._deadline(sequence), sequence.uncomputed_tokens, sequence.arrival

    def _deadline(self, sequence: Sequence) -> int:
        return sequence.submit.ttft_deadline_ns or NO_DEADLINE_NS if self.by_deadline else 0


def _group(sequence: Sequence) -> Group:
    return sequence.submit.lane, sequence.submit.tenant_id
