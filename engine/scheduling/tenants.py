"""What each tenant has been served, in virtual tokens: the fairness of Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024. Whoever has the smallest counter goes first; a counter rises by work over weight when work is planned.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from engine.scheduling.contract import MinuteTokens
from engine.scheduling.draft import Row
from engine.scheduling.plan import QUERY_BLOCK_TOKENS
from engine.wire import TenantPolicy

LATELY_NS = 60_000_000_000
"""What a tenant had at once is remembered as long as no more time goes by between two of its requests."""
KV_READS_PER_TOKEN = 512
"""Reading so many cached tokens costs about as much as computing one."""
TIE_TOKENS = 64.0
"""Tenants whose counters lie in the same stretch of so many virtual tokens were served alike. A stretch is soon used up."""
TIE_REQUESTS = 1.0
"""The same where requests are counted: whoever had one more is behind."""


def cost_of(row: Row) -> float:
    """Virtual tokens: those computed, and the cached ones read; a query block of a chunk reads its context once."""
    if row.is_decode:
        return 1 + row.context_tokens / KV_READS_PER_TOKEN
    reads = row.context_tokens * -(-row.tokens // QUERY_BLOCK_TOKENS)
    return row.tokens + reads / KV_READS_PER_TOKEN


@dataclass(slots=True)
class Account:
    """One tenant."""

    policy: TenantPolicy
    order: int
    """Of first appearance; breaks ties."""
    counter: float = 0.0
    lifted: float = 0.0
    """Of the counter, what was never served: sum of all lifts."""
    lost: float = 0.0
    """Of the counter, others' work that was done again for this tenant's sake."""
    live: int = 0
    """Sequences between submit and end."""
    waiting: int = 0
    """Of these, those without a slot."""
    minute_tokens: MinuteTokens = field(default_factory=MinuteTokens)
    """Prompts as they came, outputs as they ended."""


@dataclass(frozen=True, slots=True)
class _Lately:
    peak: int
    """Most live sequences at once."""
    came_ns: int
    """When its last request came."""


class Accounts:
    """All tenants' counters. `unit`: charge tokens (VTC), or one a request admitted (weighted round robin)."""

    def __init__(self, unit: Literal["tokens", "requests"] = "tokens") -> None:
        self.unit = unit
        self._accounts: dict[str, Account] = {}
        self._num_seen = 0
        self._last_waiting: Account | None = None
        self._lately: dict[str, _Lately] = {}
        """Tenants by when their last request came."""
        self.others_at_once = 0
        """Sequences that all tenants but the one with most of them had at once lately, each at its own time."""
        self._active_weight: float | None = None
        """Sum over tenants with live sequences; None: to be summed anew."""
        self._shares: dict[str, float] = {}
        """By that sum, as far as anybody asked for them."""
        self._waiting: dict[str, Account] = {}
        """Those with sequences that wait for a slot."""
        self._has_contracts = False

    def set_policies(self, policies: Iterable[TenantPolicy]) -> None:
        """Replace all; a tenant that is not among them keeps its account while it has sequences."""
        self._forget_shares()
        by_name = {policy.tenant_id: policy for policy in policies}
        for name in tuple(self._accounts):
            if name not in by_name and not self._accounts[name].live:
                del self._accounts[name]
        for name, policy in by_name.items():
            self.of(name).policy = policy
        self._has_contracts = any(account.policy.committed_tpm is not None for account in self._accounts.values())

    def of(self, tenant_id: str) -> Account:
        """The tenant's account; one of default policy where nothing is known of it."""
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account(TenantPolicy(tenant_id=tenant_id), self._num_seen)
            self._num_seen += 1
        return account

    @property
    def others_may_come(self) -> bool:
        """Somebody else than one tenant is known: keep room for it."""
        return len(self._accounts) > 1

    def active(self) -> Iterable[tuple[str, Account]]:
        """Tenants with live sequences."""
        return ((name, account) for name, account in self._accounts.items() if account.live)

    def enter(self, tenant_id: str, now_ns: int) -> None:
        """A sequence came."""
        account = self.of(tenant_id)
        account.live += 1
        lately = self._lately.pop(tenant_id, None)
        self._lately[tenant_id] = _Lately(max(account.live, lately.peak if lately else 0), now_ns)
        while self._lately[first := next(iter(self._lately))].came_ns <= now_ns - LATELY_NS:
            del self._lately[first]
        peaks = [each.peak for each in self._lately.values()]
        self.others_at_once = sum(peaks) - max(peaks)
        if account.live == 1:
            self._forget_shares()

    def leave(self, tenant_id: str) -> None:
        """A sequence ended."""
        account = self._accounts[tenant_id]
        account.live -= 1
        if not account.live:
            self._forget_shares()

    def waiting(self) -> Collection[Account]:
        """Of tenants with sequences that wait for a slot."""
        return self._waiting.values()

    def note_tokens(self, tenant_id: str, tokens: int, now_ns: int) -> None:
        """A prompt came, or an output ended."""
        self.of(tenant_id).minute_tokens.add(tokens, now_ns)

    def is_in_contract(self, tenant_id: str, now_ns: int) -> bool:
        """It had no more tokens in the last minute than its tier commits to; always where that says nothing."""
        account = self.of(tenant_id)
        committed = account.policy.committed_tpm
        return committed is None or account.minute_tokens.at(now_ns) <= committed

    def outside_contract(self, tenant_ids: Iterable[str], now_ns: int) -> Collection[str]:
        """Those of them that are not inside it."""
        if not self._has_contracts:
            return ()
        return [name for name in dict.fromkeys(tenant_ids) if not self.is_in_contract(name, now_ns)]

    def join(self, tenant_id: str) -> None:
        """A sequence waits for a slot. A tenant that had none waiting is lifted to the least served of those that have, or to
        whoever was the last to have: time without demand earns no credit."""
        account = self.of(tenant_id)
        if not account.waiting:
            self._lift(account)
            self._waiting[tenant_id] = account
        account.waiting += 1

    def part(self, tenant_id: str) -> None:
        """A sequence waits no more."""
        account = self._accounts[tenant_id]
        account.waiting -= 1
        if not account.waiting:
            self._last_waiting = account
            del self._waiting[tenant_id]

    def charge(self, row: Row) -> None:
        """The row was planned."""
        if self.unit == "tokens":
            self._add(row.sequence.submit.tenant_id, cost_of(row))

    def refund(self, row: Row) -> None:
        """The row was late: nobody got its token."""
        if self.unit == "tokens":
            self._add(row.sequence.submit.tenant_id, -cost_of(row))

    def charge_lost(self, tenant_id: str, cost: float) -> None:
        """So much work is done again, because a step was cut short for the tenant's sake."""
        if self.unit == "tokens":
            account = self.of(tenant_id)
            account.lost += cost / account.policy.weight
            self._add(tenant_id, cost)

    def charge_admission(self, tenant_id: str) -> None:
        """A sequence got its slot."""
        if self.unit == "requests":
            self._add(tenant_id, 1.0)

    def stretch(self, account: Account) -> float:
        """Tenants of the same one were served alike."""
        return account.counter // (TIE_TOKENS if self.unit == "tokens" else TIE_REQUESTS)

    def debt(self, tenant_id: str) -> float:
        """How much more the tenant was served than the least served one that waits, in virtual tokens over weight."""
        counter = self.of(tenant_id).counter
        return counter - min([account.counter for account in self._waiting.values()], default=counter)

    def share(self, tenant_id: str) -> float:
        """The tenant's weight among the active ones, it included."""
        share = self._shares.get(tenant_id)
        if share is not None:
            return share
        if self._active_weight is None:
            self._active_weight = sum(account.policy.weight for _, account in self.active())
        own = self.of(tenant_id)
        share = own.policy.weight / (self._active_weight + (0.0 if own.live else own.policy.weight))
        self._shares[tenant_id] = share
        return share

    def _forget_shares(self) -> None:
        self._active_weight = None
        self._shares.clear()

    def _lift(self, account: Account) -> None:
        last = self._last_waiting.counter if self._last_waiting is not None else 0.0
        floor = min([other.counter for other in self._waiting.values()], default=last)
        lift = max(0.0, floor - account.counter)
        account.counter += lift
        account.lifted += lift

    def _add(self, tenant_id: str, cost: float) -> None:
        account = self._accounts.get(tenant_id)
        if account is not None:  # a late row's tenant may be gone
            account.counter += cost / account.policy.weight
