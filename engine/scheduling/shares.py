"""How much of rows and pages a tenant may take, and whose pages go first when somebody lacks some."""

from collections.abc import Collection

from engine.scheduling.kv_memory import KvMemory
from engine.scheduling.limits import Limits
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import Accounts

RESERVED_PART = 8
"""One row of so many, and one page of so many, is kept for tenants that have few; but of rows no more than others had at once lately."""
BATCH_LEAVES_PART = 16
"""A batch sequence starts only where one page of so many is left for interactive work that is there."""


class Shares:
    """Looks at running sequences and at what tenants hold; changes nothing."""

    def __init__(self, limits: Limits, accounts: Accounts, memory: KvMemory, running: list[Sequence]) -> None:
        self._limits = limits
        self._accounts = accounts
        self._memory = memory
        self._running = running

    @property
    def reserved_rows(self) -> int:
        """For tenants that hold fewer. None where there are no other tenants."""
        if self._limits.max_num_seqs == 1 or not self._accounts.others_may_come:
            return 0
        return max(1, min(self._limits.max_num_seqs // RESERVED_PART, self._accounts.others_at_once))

    def has_row(self, tenant_id: str, free_rows: int) -> bool:
        """The last rows are for tenants that hold few."""
        if free_rows > self.reserved_rows:
            return True
        return free_rows > 0 and self._memory.pool.holdings.of(tenant_id).sequences < self.reserved_rows

    def pages_kept_back(self, sequence: Sequence) -> int:
        """Available pages that its admission must leave. Nothing where nothing runs; a batch sequence leaves some to interactive work
        that is there, and one of a tenant beyond its share leaves some to the others."""
        if not self._running or not self._limits.enable_kv_quota:
            return 0
        leaves = 0
        if self.is_batch(sequence) and not all(map(self.is_batch, self._running)):
            leaves = self._limits.num_pages // BATCH_LEAVES_PART
        part = self._limits.num_pages // RESERVED_PART
        if self._accounts.others_may_come and self.is_over(sequence.submit.tenant_id, part):
            leaves = max(leaves, part)
        return leaves

    def is_over(self, tenant_id: str, slack_pages: int = 0) -> bool:
        """It uses more pages than its share among the active tenants, or than its reserve where that is more."""
        if not self._limits.enable_kv_quota:
            return False
        holding = self._memory.pool.holdings.of(tenant_id)
        share_pages = self._accounts.share(tenant_id) * self._limits.num_pages
        return holding.used > max(share_pages, holding.quota.reserve_pages) - slack_pages

    def by_claim(self) -> list[Sequence]:
        """Running sequences, who keeps its pages longest first: interactive ones, those of tenants within their share, the oldest."""
        over = self.tenants_over()
        if not over and "batch" not in [sequence.submit.lane for sequence in self._running]:
            return self._running.copy()  # oldest first
        groups: tuple[list[Sequence], ...] = ([], [], [], [])
        for sequence in self._running:
            groups[2 * self.is_batch(sequence) + (sequence.submit.tenant_id in over)].append(sequence)
        return [sequence for group in groups for sequence in group]

    def tenants_over(self) -> Collection[str]:
        """Those with running sequences that are beyond their share."""
        return [name for name in dict.fromkeys([sequence.submit.tenant_id for sequence in self._running]) if self.is_over(name)]

    def is_batch(self, sequence: Sequence) -> bool:
        """It yields to interactive work; nothing does where batch preemption is off."""
        return sequence.submit.lane == "batch" and self._limits.enable_batch_preemption

    def may_lose_to(self, victim: Sequence, tenant_id: str) -> bool:
        """Whether preempting `victim` can give this tenant pages: it is its own, or its tenant's above its reserve."""
        if victim.submit.tenant_id == tenant_id:
            return True
        return not self._memory.is_held_by_cap(tenant_id) and self._memory.pool.holdings.of(victim.submit.tenant_id).is_above_reserve
