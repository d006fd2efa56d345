"""Tickets: a request holds one from admission to its end. Slots and reservations are counted by the tickets that are out.

Limits are those of this process: where several share a database, the part of each limit that falls to it (`peers`).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from appliance.domain.access.principal import Limits, Principal
from appliance.domain.admission.decisions import Admit, Occupancy, Reject, Standing, decide, has_full_queue, own_limit
from appliance.domain.admission.demand import Demand
from appliance.domain.admission.gate import Door
from appliance.domain.admission.meters import Account, blend
from appliance.domain.admission.prediction import Ask, Predictor, Promises
from appliance.errors import OverBudget, OverOwnLimit, Unavailable
from engine.wire import TenantPolicy


@dataclass(frozen=True, slots=True)
class TenantUse:
    """Requests in flight, those of them that wait for a row, and what is used of rates and budgets."""

    in_flight: int
    waiting: int
    standing: Standing


class Ticket:
    """One admitted request. Every ticket is closed exactly once, by the request's one `finally`."""

    def __init__(self, admission: "Admission", tenant_id: str, accounts: tuple[Account, ...], tokens: int, shadowed: str) -> None:
        self._admission = admission
        self._is_waiting = True
        self._accounts = accounts
        self._tokens = tokens
        self._entered_ns = admission.now_ns()
        self.tenant_id = tenant_id
        self.shadowed = shadowed
        """The own limit that would have refused it, but for shadow mode; empty where none would."""
        self.is_promised = False
        """It is served even if it turns out late."""

    def start(self) -> None:
        """The engine began to work on it: it waits no more."""
        self._leave_queue(refused=False)

    def close(self, used_tokens: int = 0, *, refused: bool = False) -> None:
        """Settle the reservation to what was used. `refused`: by us; a request that still waited costs none of `rpm` then."""
        self._leave_queue(refused=refused)
        self._admission.note_request_s(self.tenant_id, self._entered_ns)
        self._admission.release(self.tenant_id, self._accounts, self._tokens, used_tokens)

    def _leave_queue(self, *, refused: bool) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._admission.leave_queue(self.tenant_id, self._accounts, refused=refused)


class Admission:
    """Counts what is in the house and asks `decide`."""

    def __init__(
        self,
        gate: Door,
        max_queue_depth: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_s: Callable[[], float] = time.time,
        predictor: Predictor | None = None,
    ) -> None:
        """Without a predictor nothing is refused for being late, and whatever waits for its first step counts as queued."""
        self.gate = gate
        self._predictor = predictor
        self.now_ns = clock_ns
        self._max_queue_depth = max_queue_depth
        self._clock_ns = clock_ns
        self._wall_s = wall_s
        self._mean_request_s = 0.0
        self._in_flight: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._tenants: dict[str, Account] = {}
        self._keys: dict[str, Account] = {}
        self.demand = Demand()

    @property
    def num_in_flight(self) -> int:
        """Tickets that are out."""
        return self._in_flight.total()

    @property
    def num_waiting(self) -> int:
        """Requests admitted that the engine has not begun to work on."""
        return self._waiting.total()

    @property
    def reserved_tokens(self) -> int:
        """Tokens that requests in flight may still use."""
        return sum(account.reserved for account in self._tenants.values())

    def kept(self, lane: str) -> Promises:
        """What refused clients were promised in a lane."""
        return self._predictor.kept(lane, self._clock_ns() / 1e9) if self._predictor is not None else Promises(requests=0, tokens=0.0)

    def spent_today(self, tenant_id: str) -> int:
        """Tokens a tenant has settled since midnight (UTC)."""
        return self._tenants[tenant_id].spent.today(self._wall_s()) if tenant_id in self._tenants else 0

    def knows(self, tenant_id: str) -> bool:
        """Whether a request of it came since the start."""
        return tenant_id in self._tenants

    def use_of(self, policy: TenantPolicy) -> TenantUse:
        """What a tenant has in the house, and how it stands under its limits."""
        tenant_id = policy.tenant_id
        account = self._tenants.get(tenant_id) or Account()
        standing = account.standing(tenant_id, limits_of(policy), self._clock_ns(), self._wall_s())
        waiting = self._waiting.get(tenant_id, 0)
        if waiting and self._predictor is not None:
            waiting = min(waiting, self._predictor.rows_lacking(tenant_id).own)
        return TenantUse(self._in_flight.get(tenant_id, 0), waiting, standing)

    def restore(self, tenants: Mapping[str, tuple[int, int]], keys: Mapping[str, tuple[int, int]], at: datetime) -> None:
        """Tokens that all processes have used of the day and the month of a moment, when they were read, by tenant and by meter of keys;
        what we know beyond stays. It is not the present moment: around midnight the day before would be charged to the new one."""
        for account_of, spent in ((self._tenant_account, tenants), (self._key_account, keys)):
            for owner_id, (today, this_month) in spent.items():
                account_of(owner_id).spent.raise_to(today, this_month, at.timestamp())

    def standings(self, principal: Principal) -> list[Standing]:
        """How the caller's tenant and key stand under their limits."""
        now_ns, wall_s = self._clock_ns(), self._wall_s()
        tenant, key = self._accounts_of(principal)
        limits, whole = limits_of(principal.policy), principal.whole or principal
        tenant.take_part(principal, limits, now_ns, principal.policy.committed_tpm)
        key.take_part(principal, principal.limits, now_ns)
        return [
            tenant.standing(f"tenant {principal.tenant_id!r}", limits, now_ns, wall_s, limits_of(whole.policy)),
            key.standing(f"key {principal.key_id!r}", principal.limits, now_ns, wall_s, whole.limits),
        ]

    def enter(self, principal: Principal, tokens: int = 0, ask: Ask | None = None) -> Ticket:
        """A ticket for one request that may use so many tokens, which are reserved from now on. `ask`: what a prediction needs of it.

        Raises:
            OverOwnLimit, OverBudget: an own ceiling of the tenant or the key, or its own work makes it late.
            Unavailable: warming up, draining, no engine, the queue is full, or it would be late.
        """
        self.gate.require_open()
        policy, tenant_id = principal.policy, principal.tenant_id
        self.demand.note(tenant_id, tokens if policy.tpm is not None else 1)
        occupancy = self._occupancy(policy, principal.whole)
        standings = self.standings(principal)
        shadowed = own_limit(policy, occupancy, standings, tokens) if policy.shadow_mode else None
        if shadowed is not None:
            policy, standings = TenantPolicy(tenant_id=tenant_id, max_concurrency=None), []
        verdict = decide(policy, occupancy, self._max_queue_depth, standings, tokens)
        if isinstance(verdict, Admit) and shadowed is None:
            verdict = self._predict(principal, tokens, ask)
            if isinstance(verdict, Reject) and policy.shadow_mode:
                verdict, shadowed = Admit(), verdict
        match verdict:
            case Admit(is_promised):
                ticket = self._admit(principal, tokens, shadowed.reason if shadowed else "")
                ticket.is_promised = is_promised
                return ticket
            case Reject("budget", message, retry_after_s):
                raise OverBudget(message, reason="budget", retry_after_s=retry_after_s)
            case Reject(reason, message, retry_after_s, own_limit=True):
                self.demand.note_limit(tenant_id, self._clock_ns() / 1e9)
                raise OverOwnLimit(message, reason=reason, retry_after_s=retry_after_s)
            case Reject(_, message, retry_after_s):
                raise Unavailable(message, reason=verdict.reason, retry_after_s=retry_after_s, code="overloaded")

    def note_submit(self, sequence_id: int, lane: str, policy: TenantPolicy, prompt_tokens: int) -> None:
        """A sequence of an admitted request goes to the engine."""
        if self._predictor is not None:
            tokens = prompt_tokens * self._tenant_account(policy.tenant_id).uncached_ratio
            self._predictor.note_submit(sequence_id, lane, policy, tokens)

    def note_prompt(self, tenant_id: str, prompt_tokens: int, cached_tokens: int) -> None:
        """How much of an ended request's prompts the prefix cache had."""
        if prompt_tokens:
            account = self._tenant_account(tenant_id)
            account.uncached_ratio = blend(account.uncached_ratio, 1 - cached_tokens / prompt_tokens)

    def note_request_s(self, tenant_id: str, entered_ns: int) -> None:
        account = self._tenant_account(tenant_id)
        seconds = (self._clock_ns() - entered_ns) / 1e9
        account.request_s = blend(account.request_s, seconds) if account.request_s else seconds
        self._mean_request_s = blend(self._mean_request_s, seconds) if self._mean_request_s else seconds

    def _occupancy(self, policy: TenantPolicy, whole: Principal | None) -> Occupancy:
        """Who waits for a first step counts as queued only where rows are lacking, which is looked at where it decides."""
        tenant_id = policy.tenant_id
        counted = Occupancy(
            tenant_in_flight=self._in_flight[tenant_id],
            waiting=self.num_waiting,
            tenant_waiting=self._waiting[tenant_id],
            tenant_request_s=self._tenant_account(tenant_id).request_s,
            in_flight=self.num_in_flight,
            request_s=self._mean_request_s,
            whole=whole.policy if whole is not None else None,
        )
        if self._predictor is None or not has_full_queue(policy, counted, self._max_queue_depth):
            return counted
        lacking = self._predictor.rows_lacking(tenant_id)
        return replace(counted, waiting=min(counted.waiting, lacking.all), tenant_waiting=min(counted.tenant_waiting, lacking.own))

    def _predict(self, principal: Principal, tokens: int, ask: Ask | None) -> Admit | Reject:
        if self._predictor is None or ask is None:
            return Admit()
        policy, account, now_ns = principal.policy, self._tenant_account(principal.tenant_id), self._clock_ns()
        committed = policy.committed_tpm
        in_contract = committed is not None and account.last_minute.at(now_ns) + account.reserved + tokens <= committed
        return self._predictor.judge(policy, ask, account.uncached_ratio, in_contract=in_contract, now_s=now_ns / 1e9)

    def leave_queue(self, tenant_id: str, accounts: Iterable[Account], *, refused: bool = False) -> None:
        _count_down(self._waiting, tenant_id)
        now_ns = self._clock_ns()
        for account in accounts:
            account.leave_queue(now_ns, refused=refused)

    def release(self, tenant_id: str, accounts: Iterable[Account], reserved: int, used: int) -> None:
        _count_down(self._in_flight, tenant_id)
        now_ns, wall_s = self._clock_ns(), self._wall_s()
        for account in accounts:
            account.settle(reserved, used, now_ns, wall_s)

    def _admit(self, principal: Principal, tokens: int, shadowed: str) -> Ticket:
        self._in_flight[principal.tenant_id] += 1
        self._waiting[principal.tenant_id] += 1
        accounts = self._accounts_of(principal)
        for account in accounts:
            account.reserve(tokens)
        return Ticket(self, principal.tenant_id, accounts, tokens, shadowed)

    def _accounts_of(self, principal: Principal) -> tuple[Account, Account]:
        return self._tenant_account(principal.tenant_id), self._key_account(principal.meter_id)

    def _tenant_account(self, tenant_id: str) -> Account:
        return _account(self._tenants, tenant_id)

    def _key_account(self, meter_id: str) -> Account:
        return _account(self._keys, meter_id)


def limits_of(policy: TenantPolicy) -> Limits:
    """A tenant's ceilings of rate and budget."""
    return Limits(policy.rpm, policy.tpm, policy.tokens_per_day, policy.tokens_per_month)


def _account(accounts: dict[str, Account], owner_id: str) -> Account:
    account = accounts.get(owner_id)
    if account is None:
        account = accounts[owner_id] = Account()
    return account


def _count_down(counter: Counter[str], tenant_id: str) -> None:
    counter[tenant_id] -= 1
    if not counter[tenant_id]:
        del counter[tenant_id]
