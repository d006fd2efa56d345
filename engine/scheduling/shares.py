"""How much of rows and pages a tenant may take, and whose pages go first when somebody lacks some."""

from engine.scheduling.limits import Limits
from engine.scheduling.request import Sequence
from engine.scheduling.tenants import Accounts

RESERVED_PART = 8
"""One row of so many, and one page of so many, is kept for tenants that have few."""


class Shares:
    """Looks at running sequences; changes nothing."""

    def __init__(self, limits: Limits, accounts: Accounts, running: list[Sequence]) -> None:
        self._limits = limits
        self._accounts = accounts
        self._running = running
        self._reserved_rows = max(1, limits.max_num_seqs // RESERVED_PART) if limits.max_num_seqs > 1 else 0

    def has_row(self, tenant_id: str, free_rows: int) -> bool:
        """The last rows are for tenants that hold few, as long as there are other tenants."""
        if not self._accounts.others_may_come or free_rows > self._reserved_rows:
            return free_rows > 0
        return free_rows > 0 and self._rows(tenant_id) < self._reserved_rows

    def pages_kept_back(self, tenant_id: str) -> int:
        """Available pages that an admission must leave: none for a tenant below its share."""
        if not self._accounts.others_may_come or not self.is_over(tenant_id, self._limits.num_pages // RESERVED_PART):
            return 0
        return self._limits.num_pages // RESERVED_PART

    def within_cap(self, tenant_id: str, more_pages: int) -> bool:
        """Its tier's cap; one sequence may always run."""
        used = self._pages(tenant_id)
        return not used or used + more_pages <= self._accounts.of(tenant_id).policy.kv_cap_ratio * self._limits.num_pages

    def is_over(self, tenant_id: str, slack_pages: int = 0) -> bool:
        """It holds more pages than its share among the active tenants, or than its reserve where that is more."""
        ratio = max(self._accounts.share(tenant_id), self._accounts.of(tenant_id).policy.kv_reserve_ratio)
        return self._pages(tenant_id) > ratio * self._limits.num_pages - slack_pages

    def by_claim(self) -> list[Sequence]:
        """Running sequences, who keeps its pages longest first: those of tenants within their share, interactive, oldest."""
        over = {name: self.is_over(name) for name in dict.fromkeys(sequence.submit.tenant_id for sequence in self._running)}

        def claim(sequence: Sequence) -> tuple[bool, bool, int]:
            return over[sequence.submit.tenant_id], sequence.submit.lane == "batch", sequence.arrival

        return sorted(self._running, key=claim)

    def _rows(self, tenant_id: str) -> int:
        return sum(sequence.submit.tenant_id == tenant_id for sequence in self._running)

    def _pages(self, tenant_id: str) -> int:
        """Taken for it; pages found in the prefix cache count for whoever computed them."""
        return sum(len(sequence.pages) - sequence.adopted_pages for sequence in self._running if sequence.submit.tenant_id == tenant_id)
